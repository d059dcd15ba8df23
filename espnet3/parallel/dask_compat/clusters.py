"""Undocumented parts of the clusters of distributed, dask-jobqueue and dask-kubernetes, and of Dask's servers."""

from __future__ import annotations

import asyncio
import errno
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from distributed.comm.tcp import TLSListener
from distributed.core import Status
from distributed.deploy.cluster import Cluster
from tornado import tcpserver
from tornado.ioloop import IOLoop
from tornado.netutil import add_accept_handler

_END = 5.0  # seconds for a start that was cut off, or an event loop, to end
_HANDSHAKE = 10.0  # seconds that a connection may take to prove who it is, or to send a request
_AGAIN = 0.5  # seconds for which connections wait outside while this process has no descriptors for them
_MOST = 1 << 20  # open files: some programs go through all that they may have
_OWN = 64  # descriptors that no connection gets: what this process opens itself must not fail
_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class KeptCluster:
    """Mixin for a `SpecCluster`: workers that go away stay wanted, and something of its own is closed with it.

    Dask drops a worker's spec 15 seconds after its death, even if a replacement has come or its job waits in the
    queue again. A worker may be unknown when it goes: `wait_for_workers` reads the list of workers anew, ahead of
    pending notes about them.
    """

    def __init__(self, *args: Any, certificate: str | None = None, **kwargs: Any) -> None:
        self.certificate = certificate  # the folder of the run's, removed at last
        super().__init__(*args, **kwargs)

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # the base of SpecCluster, which only notes who came and who went
        note: Any = Cluster._update_worker_status
        known: Any = self.scheduler_info["workers"]  # type: ignore[attr-defined]  # mixed into one that has it
        if op != "remove" or msg in known:
            note(self, op, msg)

    async def before_closing(self) -> None:
        """Close what must go before the workers; perhaps more than once."""

    async def after_closing(self) -> None:
        """Close what the workers needed; also after an error."""
        if self.certificate is not None:
            shutil.rmtree(self.certificate, ignore_errors=True)

    async def _close(self) -> None:
        try:
            await self.before_closing()
            await super()._close()  # type: ignore[misc]  # mixed into one that has it
        finally:
            await self.after_closing()


def ignore_errors_of_loop(cluster: Any) -> None:
    """Drop what goes wrong from now on in a cluster's event loop."""
    cluster.loop.asyncio_loop.set_exception_handler(lambda *_: None)


def give_up_cluster(cluster: Any) -> None:
    """Stop the event loop of a cluster that is half started or half closed; Dask does not wait for it at exit.

    It has no runner yet where its start failed early, and no loop yet where Ctrl-C came while that started.
    """
    cluster.shutdown_on_close = False
    runner = getattr(cluster, "_loop_runner", None)
    if runner is None or not runner.is_started():
        return
    ignore_errors_of_loop(cluster)
    with suppress(TimeoutError):  # a task of Dask's did not take its end
        runner.stop(timeout=_END)


class StartsInTime:
    """Mixin for a `KubeCluster`, whose own limit does not cover a pod of the scheduler that never runs."""

    start_timeout: float  # seconds

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except BaseException:  # Ctrl-C too: a half-started cluster cannot be closed
            give_up_cluster(self)
            raise

    async def too_late(self) -> None:
        """Raise the error of a start that took too long; called while the cluster is still there."""

    async def _start(self) -> None:
        start = asyncio.ensure_future(super()._start())  # type: ignore[misc]  # mixed into one that has it
        try:
            done, _ = await asyncio.wait({start}, timeout=self.start_timeout)
            if not done:
                start.cancel()
                await asyncio.wait({start}, timeout=_END)
                await self.too_late()
            start.result()
        except BaseException:
            close: Any = Cluster._close  # closes the parts in this process and deletes nothing
            await close(self)
            raise


def guard_listeners() -> None:
    """Have the listeners that Dask opens in this process from now on bear a thousand idle connections.

    The limit of open files is what the system lets this process have. Beyond it connections wait, where tornado would
    log an error at each turn of its loop. One over TLS without a handshake ends.
    """
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
    """Do as `tornado.netutil.add_accept_handler`, but wait while this process has no descriptor free."""
    patient: Any = _Patient(sock)
    return add_accept_handler(patient, callback)


class _Patient:
    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.loop: Any = IOLoop.current()
        self.fileno, self.close = sock.fileno, sock.close

    def accept(self) -> Any:
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
    role = "worker" if hasattr(server, "nanny") else "scheduler"  # a scheduler has no nanny
    try:
        server.http_server.conn_params.header_timeout = _HANDSHAKE  # for each request
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
    server.http_server.conn_params.header_timeout = _HANDSHAKE  # for each of them
    server.http_server.request_callback = make(server.http_server.request_callback)


async def kill_starting_worker(nanny: Any) -> None:
    """Kill the worker of a nanny, if it has not come up."""
    worker = nanny.process
    if worker is not None and worker.status is Status.starting and worker.process is not None:
        await worker.process.kill()
