"""Undocumented parts of Dask's schedulers, workers and nannies: their TLS, their pages, their listeners."""

from __future__ import annotations

import asyncio
import errno
import resource
from collections.abc import Callable
from typing import Any

_HANDSHAKE = 10.0  # seconds that a connection may take to prove who it is, or to send a request
_AGAIN = 0.5  # seconds for which connections wait outside while this process has no descriptors for them
_MOST = 1 << 20  # open files: some programs go through all that they may have
_OWN = 64  # descriptors that no connection gets: what this process opens itself must not fail
_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def guard_listeners() -> None:
    """Have the listeners that Dask opens in this process from now on bear a thousand idle connections.

    The limit of open files is what the system lets this process have. Beyond it connections wait, where tornado would
    log an error at each turn of its loop. One over TLS without a handshake ends.
    """
    from distributed.comm.tcp import TLSListener
    from tornado import tcpserver

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    module: Any = tcpserver
    if module.add_accept_handler is accept_patiently:
        return
    listener: Any = TLSListener
    prepare = listener._prepare_stream

    async def prepared(self: Any, stream: Any, address: Any) -> Any:
        try:
            return await asyncio.wait_for(prepare(self, stream, address), _HANDSHAKE)
        except asyncio.TimeoutError:
            stream.close()
            return None

    module.add_accept_handler = accept_patiently
    listener._prepare_stream = prepared


def accept_patiently(sock: Any, callback: Callable[[Any, Any], None]) -> Callable[[], None]:
    """As `tornado.netutil.add_accept_handler`, but wait while this process has no descriptor free."""
    from tornado.netutil import add_accept_handler

    patient: Any = _Patient(sock)
    return add_accept_handler(patient, callback)


class _Patient:
    """A listening socket that leaves connections where they wait while this process has no descriptors for them."""

    def __init__(self, sock: Any) -> None:
        from tornado.ioloop import IOLoop

        self.sock = sock
        self.loop: Any = IOLoop.current()
        self.fileno, self.close = sock.fileno, sock.close

    def accept(self) -> Any:
        """As a socket's, but raise a BlockingIOError while no descriptor is free."""
        try:
            connection, address = self.sock.accept()
        except OSError as error:
            if error.errno not in _FULL:
                raise
        else:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            if limit == resource.RLIM_INFINITY or connection.fileno() < limit - _OWN:
                return connection, address
            connection.close()  # its other end may try again
        self.loop.update_handler(self, 0)
        self.loop.call_later(_AGAIN, self.listen)
        raise BlockingIOError

    def listen(self) -> None:
        here, _ = self.loop.handlers.get(self.fileno(), (None, None))
        if here is self:  # it was not closed meanwhile
            self.loop.update_handler(self, self.loop.READ)


def ask_for_certificate(server: Any) -> None:
    """Have the HTTP server of a scheduler or worker ask for the run's certificate; stop it if that fails."""
    role = "worker" if hasattr(server, "nanny") else "scheduler"  # which has none
    try:
        limit_requests(server)
        server.http_server.ssl_options = server.security.get_listen_args(role)["ssl_context"]
    except BaseException:
        server.http_server.stop()  # Dask goes on after a preload that fails
        raise


def guarded(server_class: Any, guard: Callable[[Any], None]) -> Any:
    """Return a subclass of a scheduler's or worker's class whose HTTP server is guarded before it takes a request."""

    class Guarded(server_class):  # type: ignore[misc]  # of a class that is known when it runs
        def start_http_server(self, *args: Any, **kwargs: Any) -> None:
            super().start_http_server(*args, **kwargs)
            guard(self)

    Guarded.__name__ = Guarded.__qualname__ = server_class.__name__  # Dask reports and compares it
    return Guarded


def put_before_pages(server: Any, make: Callable[[Any], Any]) -> None:
    """Have HTTP requests of a scheduler or worker answered by what `make` returns for what has answered them."""
    limit_requests(server)
    server.http_server.request_callback = make(server.http_server.request_callback)


def limit_requests(server: Any) -> None:
    """Give a connection to an HTTP server seconds for each request."""
    server.http_server.conn_params.header_timeout = _HANDSHAKE


async def kill_starting_worker(nanny: Any) -> None:
    """Kill the worker of a nanny, if it has not come up."""
    from distributed.core import Status

    worker = nanny.process
    if worker is not None and worker.status is Status.starting and worker.process is not None:
        await worker.process.kill()
