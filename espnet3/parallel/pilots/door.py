"""The door of a pool: accepts connections, and lets in those that prove the key and introduce themselves.

    listener ──accept──> a thread for each connection: TLS, handshake, Hello ──admit──> the pool
        └── a connection that has not introduced itself after `LIMIT` seconds is shut down

One peer that says nothing, or what nobody understands, keeps no other one waiting.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from espnet3.parallel.engine.exceptions import ANYTHING
from espnet3.parallel.pilots.channel import Channel, greet_worker
from espnet3.parallel.pilots.protocol import Hello

if TYPE_CHECKING:
    import ssl

logger = logging.getLogger(__name__)

LIMIT = 5.0  # seconds from a connection to its greeting, over all steps
_PAUSE = 0.1  # seconds after a connection that this process has no descriptor, thread or memory for
_LOOK = 0.5  # seconds between looks for connections whose time is over

# The listener itself is no more. What else accept() raises is of the moment (no descriptor is free) or of one
# connection (Linux reports its network errors there): it waits in the queue, or its worker tries again.
_NO_LISTENER = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK})


class Door:
    """Accepts the connections of workers until it is closed, and closes the listener then.

    `admit` is called with each channel and its greeting, in the connection's own thread.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        admit: Callable[[Channel, Hello], None],
        tls: ssl.SSLContext | None = None,
        limit: float = LIMIT,
    ) -> None:
        self._listener = listener
        self._key = key
        self._admit = admit
        self._tls = tls
        self._limit = limit
        self._lock = threading.Lock()
        self._greeted: dict[socket.socket, float] = {}  # until when each connection may take
        self._closed = threading.Event()
        self._held_up = False  # since the last connection was accepted
        self._wake_r, self._wake_w = socket.socketpair()
        listener.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="pilot-door", daemon=True)
        self._thread.start()

    @property
    def address(self) -> object:
        """What workers connect to: a path, or a host and a port."""
        return self._listener.getsockname()

    def fileno(self) -> int:
        """Return the listener's descriptor; -1 once it is closed."""
        return self._listener.fileno()

    def close(self) -> None:
        """Accept nothing more; connections that are being greeted are shut down."""
        self._closed.set()
        self._wake_w.close()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(self._wake_r, select.POLLIN)
        try:
            while not self._closed.is_set():
                poller.poll(_LOOK * 1000 if self._greeted else None)
                self._shut_down(time.monotonic())
                if not self._closed.is_set():
                    self._accept()
        finally:
            self._shut_down(None)
            self._listener.close()
            self._wake_r.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # it went again before it was accepted
            return
        except OSError as error:
            if error.errno in _NO_LISTENER:
                raise
            if not self._held_up:
                logger.warning("workers that want to connect have to wait: %s", error)
            self._held_up = True
            self._closed.wait(_PAUSE)
            return
        self._held_up = False
        try:
            sock.setblocking(True)
            if self._tls is not None:  # its handshake is the first step of the connection's own thread
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            with self._lock:
                self._greeted[sock] = time.monotonic() + self._limit
            threading.Thread(target=self._greet, args=(sock,), name="pilot-greeting", daemon=True).start()
        except (OSError, RuntimeError) as error:  # it has gone; or no thread can be started just now
            logger.warning("a worker's connection was dropped, and it will try again: %s", error)
            self._forget(sock)
            sock.close()
            self._closed.wait(_PAUSE)

    def _greet(self, sock: socket.socket) -> None:
        try:
            channel = greet_worker(sock, self._key)
            hello = channel.recv()
            if not isinstance(hello, Hello):
                raise TypeError(f"a greeting is a Hello, not {type(hello).__name__}")
        except ANYTHING as error:
            self._forget(sock)
            sock.close()
            if isinstance(error, OSError):  # it went, took too long, or does not hold the key
                logger.debug("a connection to the pool ended in its handshake: %s", error)
                return
            logger.warning(
                "a worker's greeting cannot be read (%s: %s): does it run another version of this package?",
                type(error).__name__,
                error,
            )
        else:
            self._forget(sock)
            self._admit(channel, hello)

    def _forget(self, sock: socket.socket) -> None:
        with self._lock:
            self._greeted.pop(sock, None)

    def _shut_down(self, now: float | None) -> None:
        """Shut down the connections whose time is over, or all of them; their threads then read an end."""
        with self._lock:
            for sock, until in self._greeted.items():
                if now is None or now > until:
                    try:
                        # not SSLSocket's own, which would take the TLS state away from the thread that uses it
                        socket.socket.shutdown(sock, socket.SHUT_RDWR)
                    except OSError:  # the other end has gone already
                        pass
