"""A framed, authenticated stream of Python objects between the driver and one worker slot.

One message is one pickle (protocol 5). Large `bytes` and out-of-band buffers (numpy arrays) are
handed to the kernel where they lie, without being copied into the pickle first; the receiver
reads a message into one buffer that it keeps, because fresh pages cost more than the copy.
Nothing is unpickled before both ends have proved that they hold the pool's key.

A slot's mark outlives its worker, in memory that both ends have mapped:

    worker slot ── the items it is inside, since when: one write per step ──> a page of a file in the pool's
    driver      <── reads it when the worker has died ────────────────────── private folder (same host only)

The file has no name any more once the driver has opened it. Where the two are on different hosts there is none, and the
driver knows only which chunk a dead worker held.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import mmap
import os
import pickle
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import ssl

_HEAD = struct.Struct("!QI")  # bytes of the pickle, number of out-of-band buffers
_SIZE = struct.Struct("!Q")
_SMALL = 1 << 16  # bytes of a message that is cheaper to copy than to send in parts
# Bytes of a receive buffer that has had no larger message: a driver has three for each worker
_FIRST = 1 << 12
_KEEP = 64 << 20  # a receive buffer larger than this is given back after use
_NONCE = 32
_GONE = 30  # seconds without a word from the other host, after which it is taken to be gone: as long as Dask waits
_PROBES = 4  # in that time, once nothing has come for a third of it
_PAGE = struct.Struct("=qqqqd")  # a mark, an `InFlight`; its parts
_CHUNK, _STEP = struct.Struct("=qq"), struct.Struct("=qqd")
_pack_step, _monotonic = _STEP.pack_into, time.monotonic
_ALL = -1  # items of a mark: the whole chunk, on its way in or out
SETUP = -1  # start of its chunk: none yet, the run's env is being built


class Message:
    """An object as it travels; one that cannot travel raises here."""

    def __init__(self, obj: Any, pickler: Any = pickle.Pickler) -> None:
        self.parts: list[Any] = []
        self.buffers: list[pickle.PickleBuffer] = []
        self.size = 0  # of the parts
        pickler(self, 5, buffer_callback=self.buffers.append).dump(obj)

    def write(self, data: Any) -> int:
        """Take a part, as the pickler's file."""
        self.parts.append(data)  # large bytes arrive as themselves; a frame is a bytes object of its own
        self.size += len(data)
        return len(data)


class Channel:
    """One connected socket, which it owns; `send` and `recv` move whole objects, or raise an OSError: it is over."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # to notice a host that is lost
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            idle = _GONE // 3  # macOS has another name for it
            times = {"TCP_KEEPIDLE": idle, "TCP_KEEPALIVE": idle, "TCP_KEEPINTVL": (_GONE - idle) // _PROBES}
            for name, value in {**times, "TCP_KEEPCNT": _PROBES}.items():
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.received = 0  # bytes of the last message
        self.trip = 0.0  # seconds to another host and back, as it connected; of this host, however busy, 0
        self._inbox = bytearray(_FIRST)
        self._fd = sock.fileno()

    def fileno(self) -> int:
        """Return the socket's descriptor, so that selectors take a channel."""
        return self.sock.fileno()

    def close(self) -> None:
        """Close the socket; the other end reads an end of file."""
        with contextlib.suppress(OSError):  # an item may have closed all descriptors of its process
            self.sock.close()

    def finish(self) -> None:
        """Close the socket once the other end has read everything and closed its own.

        One that is closed with something unread tells the other end at once, and drops what is still on its way there.
        """
        with contextlib.suppress(OSError):  # it has gone already
            self.sock.settimeout(_GONE)
            # not SSLSocket's own, which would take the TLS state away: more may have to be read
            socket.socket.shutdown(self.sock, socket.SHUT_WR)
            while self.sock.recv(1 << 16):
                pass
        self.close()

    def readable(self) -> bool:
        """Return whether `recv` would find a message or the end without waiting."""
        return self._polled(select.POLLIN)

    def writable(self) -> bool:
        """Return whether a short message can be sent without waiting for the other end to read."""
        return self._polled(select.POLLOUT)

    def _polled(self, event: int) -> bool:
        poll = select.poll()
        poll.register(self._fd, event)
        return bool(poll.poll(0))

    def buffered(self) -> bool:
        """Say whether there is more to read that no selector will tell of."""
        return False

    def at_end(self) -> bool:
        """Return whether the other end is gone and nothing of it is left to read."""
        try:
            return self.readable() and not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:  # closed here, or broken
            return True

    def send(self, obj: Any) -> None:
        """Send one object."""
        self.send_message(Message(obj))

    def send_message(self, message: Message) -> None:
        """Send what has been pickled already."""
        raw = [b.raw() for b in message.buffers]
        head = [_HEAD.pack(message.size, len(raw)), *(_SIZE.pack(r.nbytes) for r in raw)]
        parts = [b"".join(head), *message.parts, *raw]
        for part in [b"".join(parts)] if sum(map(len, parts)) <= _SMALL else parts:
            self.sock.sendall(part)

    def recv(self) -> Any:
        """Wait for one object."""
        size, n_buffers = _HEAD.unpack(self._read(_HEAD.size))
        sizes = [_SIZE.unpack(self._read(_SIZE.size))[0] for _ in range(n_buffers)]
        self.received = size + sum(sizes)
        view = self._read(size)
        buffers = [bytearray(n) for n in sizes]
        for buffer in buffers:
            self._fill(memoryview(buffer))
        try:
            return pickle.loads(view, buffers=buffers)
        finally:
            view.release()
            if len(self._inbox) > _KEEP:
                self._inbox = bytearray(_FIRST)

    def _read(self, n: int) -> memoryview:
        if n > len(self._inbox):
            self._inbox = bytearray(max(n, min(2 * n, _KEEP)))
        view = memoryview(self._inbox)[:n]
        self._fill(view)
        return view

    def _fill(self, view: memoryview) -> None:
        at, n = 0, view.nbytes
        while at < n:
            got = self.sock.recv_into(view[at:])
            if not got:
                raise ConnectionError("the other end closed the channel")
            at += got


def _is_encrypted(sock: socket.socket) -> TypeGuard[ssl.SSLSocket]:
    # encryption has imported it; others need not, and a thread may be about to
    return isinstance(sock, getattr(sys.modules.get("ssl"), "SSLSocket", ()))


class TlsChannel(Channel):
    """A channel over TLS, which decrypts ahead: what it holds is not seen by a selector."""

    sock: ssl.SSLSocket

    def readable(self) -> bool:
        """Return what the base does, with what is decrypted already."""
        return self.buffered() or super().readable()

    def buffered(self) -> bool:
        """Say whether there is more to read that no selector will tell of."""
        return self.sock.pending() > 0

    def at_end(self) -> bool:
        """Return whether the other end is gone; what is left to read is known only once it is decrypted."""
        return self.sock.fileno() < 0 or self._polled(select.POLLRDHUP)


def _proof(key: bytes, who: bytes, theirs: bytes, mine: bytes) -> bytes:
    return hmac.new(key, who + theirs + mine, hashlib.sha256).digest()


def _exactly(sock: socket.socket, n: int) -> bytes:
    data, begin = b"", time.monotonic()
    while len(data) < n:
        if time.monotonic() - begin > (sock.gettimeout() or float("inf")):  # a byte now and then
            raise TimeoutError("the other end took too long for the handshake")
        more = sock.recv(n - len(data))
        if not more:
            raise ConnectionError("the other end closed during the handshake")
        data += more
    return data


def _handshake(sock: socket.socket, key: bytes, me: bytes, peer: bytes) -> None:
    mine = os.urandom(_NONCE)
    sock.sendall(mine)
    theirs = _exactly(sock, _NONCE)
    sock.sendall(_proof(key, me, theirs, mine))
    if not hmac.compare_digest(_exactly(sock, 32), _proof(key, peer, mine, theirs)):
        raise PermissionError("the other end does not hold this pool's key")


def greet_worker(sock: socket.socket, key: bytes) -> Channel:
    """Make the driver's side of the handshake; return the channel or raise."""
    if _is_encrypted(sock):
        sock.do_handshake()
    begin = time.perf_counter()
    _handshake(sock, key, b"driver", b"worker")
    channel = TlsChannel(sock) if _is_encrypted(sock) else Channel(sock)
    if sock.family != socket.AF_UNIX:
        channel.trip = time.perf_counter() - begin  # their proof is an answer to what we have sent
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE * 1000)
    return channel


def connect(address: Any, key: bytes, timeout: float = 5.0, tls: ssl.SSLContext | None = None) -> Channel:
    """Connect to a driver's listener and prove the key."""
    is_path = isinstance(address, str)
    sock = socket.socket(socket.AF_UNIX) if is_path else socket.create_connection(address, timeout)
    try:
        sock.settimeout(timeout)
        if is_path:
            sock.connect(address)
        elif tls is not None:
            sock = tls.wrap_socket(sock)
        _handshake(sock, key, b"worker", b"driver")
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return TlsChannel(sock) if _is_encrypted(sock) else Channel(sock)


def worker_context(ca_file: str, cert: str, key: str | None, ciphers: str | None) -> ssl.SSLContext:
    """Return the context of Dask's `Security` for a worker, from the same files."""
    import ssl

    context = ssl.create_default_context(cafile=ca_file)
    context.check_hostname = False  # the files' own authority is trusted, and hosts have addresses
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_cert_chain(cert, key)
    if ciphers:
        context.set_ciphers(ciphers)
    return context


@dataclass(frozen=True, slots=True)
class InFlight:
    """The content of a mark."""

    run: int
    start: int  # of the chunk, in the dispatch order
    at: int  # position of the first item in progress
    items: int  # how many there are at most; 0 where nothing has begun, -1 for all from `at` on
    since: float  # when they began, by `time.monotonic`; 0 between steps


class Mark:
    """The worker's end, in the pool's private folder; "" where the driver is on another host."""

    def __init__(self, folder: str) -> None:
        self._memory: Any = bytearray(_PAGE.size)
        self.name = ""
        if not folder:
            return
        path = os.path.join(folder, f"mark-{os.getpid()}-{id(self):x}")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                # written, not only sized: a hole would end this process when the disk is full
                os.write(fd, bytes(mmap.PAGESIZE))
                self._memory = mmap.mmap(fd, mmap.PAGESIZE)
            finally:
                os.close(fd)
        except OSError:  # the disk is full, or the folder is gone with the driver: do without
            return
        self.name = os.path.basename(path)

    def begin(self, run: int, start: int) -> None:
        """Note a chunk that has come; its items may end this process as soon as they are unpickled."""
        self._write(0)
        _CHUNK.pack_into(self._memory, 0, run, start)
        self._write(_ALL)

    def step(self, at: int, items: int) -> None:
        """Note that a step of items begins."""
        _pack_step(self._memory, _CHUNK.size, at, items, _monotonic())

    def leave(self, done: int) -> None:
        """Note that the items are done; their results may end this process while they are pickled."""
        self._write(done or _ALL)

    def clear(self) -> None:
        """Note that the answer to the chunk is sent, or the env built."""
        self._write(0)

    def _write(self, items: int) -> None:
        _pack_step(self._memory, _CHUNK.size, 0, items, 0.0)


class Window:
    """The driver's end: reads the mark whose name the worker has sent; OSError where it is not there."""

    def __init__(self, folder: str, name: str) -> None:
        path = os.path.join(folder, os.path.basename(name))
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            self._memory = mmap.mmap(fd, _PAGE.size, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
            os.unlink(path)

    def read(self) -> InFlight:
        """Read the mark as it is now."""
        return InFlight(*_PAGE.unpack_from(self._memory))

    def is_in(self, run: int) -> bool:
        """Return whether the slot is building the env of a run, or is inside its items."""
        seen = self.read()
        return seen.run == run and seen.items != 0

    def within(self, run: int, start: int, items: Sequence[Any]) -> tuple[int, int] | None:
        """Return a chunk's items in progress, as (first, how many); None if it has not begun."""
        seen = self.read()
        if (seen.run, seen.start) != (run, start) or not seen.items:
            return None
        left = len(items) - seen.at
        return seen.at, left if seen.items < 0 else min(seen.items, left)
