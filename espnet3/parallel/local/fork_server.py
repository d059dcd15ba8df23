"""A small server process that forks local workers, already holding what they need in memory.

    driver ──Popen──> server ──fork──> worker        (each in a session of its own)
       └── one socket to each worker: boot message down, "ready" up, "stop" down ──┘

It is started before the driver itself imports what it needs, so that both imports run at once. A worker never imports
the caller's main module, which is why scripts without a `__main__` guard, notebooks and `python -` work. When the
driver goes away, however it goes, the server sees the end of its socket, or that it has another parent now (a child
that the driver forked may hold the socket open), and kills every worker with all that the worker started.

This is the driver's side; the server's is `forking`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from espnet3.parallel.backends import BACKENDS, GPU_VARIABLE, WITHOUT_DASK, Kind
from espnet3.parallel.backends.backend import has_option
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.engine.inside import inside_item
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.local.forking import EVENT, SIZE
from espnet3.parallel.surroundings import search_path, surroundings

# Options of `LocalCluster` that the calling process keeps anyway, and with which values; any other asks for a worker
_KEPT: dict[str, Callable[[Any], bool]] = {
    "threads_per_worker": lambda value: value == 1,  # None is as many threads as there are cores
    "memory_limit": lambda value: value in (None, 0, "auto"),
    "dashboard_address": lambda value: value is None,
    "processes": lambda value: value is False,
    "silence_logs": lambda value: True,  # about Dask's own log lines, of which there are none
}
# glibc gives memory back to the kernel and takes it again for every large result; both
# thresholds must be raised together (either alone turns the other's adaptive rule off)
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
# one worker a core: a BLAS or OpenMP pool in each of them would only fight the others
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def alone(config: ParallelConfig) -> bool:
    """Return whether a block means the calling process: local, one worker, no option that needs a process."""
    if config.env != "local" or config.n_workers != 1:
        return False
    return all(name in _KEPT and _KEPT[name](value) for name, value in config.options.items())


def own_processes(config: ParallelConfig) -> bool:
    """Return whether a block's workers are our own: `local`, and `local_gpu` without options of dask-cuda alone."""
    kind, own = BACKENDS[config.env].kind, BACKENDS["local"]
    return kind is Kind.LOCAL or (
        kind is Kind.GPU and all(name == GPU_VARIABLE or has_option(own, name) for name in config.options)
    )


def without_dask(config: ParallelConfig) -> bool:
    """Return whether a block's workers can do without Dask: on this machine, without options of Dask's own."""
    of_dask = config.options.keys() - WITHOUT_DASK - {GPU_VARIABLE}
    if config.options.get("dashboard_address", "") is None:  # no dashboard is wanted
        of_dask -= {"dashboard_address"}
    return own_processes(config) and not of_dask


class ForkServer:
    """The driver's handle of one server process. Its methods are for one thread unless they say otherwise.

    Without `dask`, workers have nothing but slots.
    """

    def __init__(self, *, dask: bool = True) -> None:
        # where the caller has closed a standard stream, a socket gets its number
        stdout, stderr = _null_if_closed(1), _null_if_closed(2)
        ours, theirs = socket.socketpair()
        self.sock = ours
        fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)
        env = {**_MALLOC, **_ONE_THREAD, **os.environ}
        code = (
            f"import sys; sys.path[:] = {search_path()!r}\n"
            "from espnet3.parallel.local.forking import serve\n"
            f"serve({fd}, {os.getpid()}, {dask})"
        )
        # the interpreter's own flags (-O, -W, -X ...), as multiprocessing passes them on
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            self.process = subprocess.Popen(
                [sys.executable, *flags, "-c", code],
                stdin=subprocess.DEVNULL,  # `python -` reads the caller's script from it
                stdout=stdout,
                stderr=stderr,
                pass_fds=[fd],
                start_new_session=True,  # the terminal's Ctrl-C is the driver's business
                env=env,
            )
        except (OSError, TypeError) as error:
            number = getattr(error, "errno", None)
            if number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
                raise
            why = f"sys.executable = {sys.executable!r} must be the path of a Python interpreter that can be run"
            if number == errno.E2BIG:
                size, name = max((len(os.fsencode(f"{name}={env[name]}")) + 1, name) for name in env)
                why = f"the variable {name} takes {size:,} bytes, and Linux takes 131,072 of one: use a file for it"
            raise ConfigError(f"workers cannot be started ({error}): {why}") from error
        finally:
            theirs.close()
            os.close(fd)
        self._inbox = b""

    def fork(self, fd: int) -> None:
        """Ask for a worker that talks over `fd`; the events tell the pids of those asked for in their order."""
        socket.send_fds(self.sock, [b"F"], [fd])

    def remove_at_end(self, folder: str) -> None:
        """Have the server remove a folder when it ends: it outlives a driver that is killed. For any thread."""
        self._tell(b"R", folder)

    def preload(self, module: str) -> None:
        """Have the server import a module before it forks again: workers share what that loads. For any thread."""
        self._tell(b"I", module)

    def _tell(self, request: bytes, text: str) -> None:
        data = os.fsencode(text)
        with contextlib.suppress(OSError):  # the server is gone
            # short enough to be sent in one piece, whatever other threads send
            self.sock.sendall(request + SIZE.pack(len(data)) + data)

    def read_events(self) -> list[tuple[bytes, int, int]] | None:
        """Read what the server reports, as `EVENT` has it, when the socket is readable; None: it is gone."""
        try:
            data = self.sock.recv(1 << 16)
        except OSError:
            data = b""
        said = self._inbox + data
        whole = len(said) // EVENT.size * EVENT.size
        self._inbox = said[whole:]
        return list(EVENT.iter_unpack(said[:whole])) if data else None

    def leave(self) -> None:
        """Have the server end by itself: as soon as its workers have, which were told to, or two seconds later."""
        with contextlib.suppress(OSError):  # it is gone
            self.sock.sendall(b"L")
        self.sock.close()

    def close(self) -> None:
        """End the server and whatever it still has running, and wait for it."""
        with contextlib.suppress(OSError):  # it is gone
            self.sock.sendall(b"K")
        self.sock.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _null_if_closed(fd: int) -> int | None:
    try:
        os.fstat(fd)
    except OSError:  # else a file of the new process would get its number, and what items print
        return subprocess.DEVNULL
    return None


def boot_of(env: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """Return what a new worker is told first."""
    return {"surroundings": surroundings(), "env": env, **more}


class _Begun(threading.local):
    server: ForkServer | None = None  # that this thread's run begins with, until the run takes it


_BEGUN = _Begun()
_FIRST = threading.Lock()  # held for good once a run has had its head start


def head_start(config: ParallelConfig) -> contextlib.AbstractContextManager[None]:
    """Start the server of the run that a block of code is about to begin, if it is the program's first.

    The server loads modules for a tenth of a second, and so does the driver: this way both do it at once. A server
    that the run did not take (nothing was left to do, or something was wrong) is ended.
    """
    if alone(config) or inside_item() or not without_dask(config) or not _FIRST.acquire(blocking=False):
        return contextlib.nullcontext()
    return begun_with(ForkServer(dask=False))


@contextlib.contextmanager
def begun_with(server: ForkServer) -> Iterator[None]:
    """Have a server ready for what a block of code starts in this thread; one that is not taken is ended."""
    before, _BEGUN.server = _BEGUN.server, server
    try:
        yield
    finally:
        if _BEGUN.server is not None:
            _BEGUN.server.process.kill()  # it has no workers
            _BEGUN.server.close()
        _BEGUN.server = before


def take_server(*, dask: bool) -> ForkServer:
    """Return the server that is ready for this thread, or another one."""
    server, _BEGUN.server = _BEGUN.server, None
    return server or ForkServer(dask=dask)


def _forget() -> None:
    _FIRST.acquire(blocking=False)  # the modules are loaded, or nearly so
    _BEGUN.server = None  # it is the parent's


os.register_at_fork(after_in_child=_forget)
