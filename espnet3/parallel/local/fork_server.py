"""A small server process that forks local workers, already holding what they need in memory.

    driver ──Popen──> server ──fork──> worker        (each in a session of its own)
       └── one socket to each worker: boot message down, "ready" up, "stop" down ──┘

It is started before the driver itself imports what it needs (`distributed`, for workers of Dask), so both imports
run at once. A
worker never imports the caller's main module, which is why scripts without a `__main__` guard,
notebooks and `python -` work. When the driver goes away, however it goes, the server sees the
end of its socket, or that it has another parent now (a child that the driver forked may hold the socket
open), and kills every worker with all that the worker started.

This module is imported by the server before anything heavy: standard library only.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from espnet3.parallel.checks import search_path

EVENT = struct.Struct("!cii")  # b"P": forked pid; b"X": pid ended with wait status
_SIZE = struct.Struct("!I")
_GRACE = 2.0  # seconds that workers have to end once their driver has left
_LOOK = 1000  # milliseconds between looks whether the driver is still there

# glibc gives memory back to the kernel and takes it again for every large result; both
# thresholds must be raised together (either alone turns the other's adaptive rule off)
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
# one worker a core: a BLAS or OpenMP pool in each of them would only fight the others
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class ForkServer:
    """The driver's handle of one server process. Its methods are for one thread unless they say otherwise.

    Args:
        extra_env: Environment variables for the workers, over the caller's own.
        dask: Whether they are workers of Dask; else they have nothing but slots (`pilot_process`).
    """

    def __init__(self, extra_env: dict[str, str] | None = None, *, dask: bool = True) -> None:
        ours, theirs = socket.socketpair()
        self.sock = ours
        env = {**_MALLOC, **_ONE_THREAD, **os.environ, **(extra_env or {})}
        code = (
            f"import sys; sys.path[:] = {search_path()!r}\n"
            "from espnet3.parallel.local.fork_server import serve\n"
            f"serve({theirs.fileno()}, {os.getpid()}, {dask})"
        )
        # the interpreter's own flags (-O, -W, -X ...), as multiprocessing passes them on
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            self.process = subprocess.Popen(
                [sys.executable, *flags, "-c", code],
                stdin=subprocess.DEVNULL,  # `python -` reads the caller's script from it
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the terminal's Ctrl-C is the driver's business
                env=env,
            )
        finally:
            theirs.close()
        self._waiting: list[Callable[[int], None]] = []
        self._on_exit: dict[int, Callable[[int, int], None]] = {}
        self._exits: list[Callable[[int, int], None]] = []
        self._inbox = b""

    def fork(self, fd: int, on_pid: Callable[[int], None], on_exit: Callable[[int, int], None]) -> None:
        """Ask for a worker that talks over `fd`; `read_events` calls `on_pid` and `on_exit` (pid, wait status).

        Raises:
            OSError: If the server is gone.
        """
        self._waiting.append(on_pid)
        self._exits.append(on_exit)
        socket.send_fds(self.sock, [b"F"], [fd])

    def remove_at_end(self, folder: str) -> None:
        """Have the server remove a folder when it ends: it outlives a driver that is killed. For any thread."""
        path = os.fsencode(folder)
        message = b"R" + _SIZE.pack(len(path)) + path
        try:
            self.sock.sendall(message)  # short enough to be sent in one piece, whatever other threads send
        except OSError:  # the server is gone
            pass

    def read_events(self) -> bool:
        """Read what the server reports; call it when the socket is readable.

        Returns:
            False once the server is gone; those who wait for a worker get the pid 0.
        """
        try:
            data = self.sock.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            waiting, self._waiting = self._waiting, []
            for on_pid in waiting:
                on_pid(0)
            return False
        self._inbox += data
        while len(self._inbox) >= EVENT.size:
            kind, pid, status = EVENT.unpack_from(self._inbox)
            self._inbox = self._inbox[EVENT.size :]
            if kind == b"P":
                self._on_exit[pid] = self._exits.pop(0)
                self._waiting.pop(0)(pid)
            else:
                self._on_exit.pop(pid)(pid, status)
        return True

    def leave(self) -> None:
        """Have the server end by itself: as soon as its workers have, which were told to, or two seconds later."""
        try:
            self.sock.sendall(b"L")
        except OSError:  # it is gone
            pass
        self.sock.close()

    def close(self) -> None:
        """End the server and whatever it still has running, and wait for it."""
        self.sock.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def send_boot(sock: socket.socket, boot: dict[str, Any]) -> None:
    """Send a new worker what it needs to start; the first thing on its socket."""
    blob = pickle.dumps(boot)
    sock.sendall(_SIZE.pack(len(blob)) + blob)


def kill_group(pid: int) -> None:
    """SIGKILL a worker and every process it started (it leads a session of its own)."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # nobody left in it
        pass


# --- the server process ---------------------------------------------------------------------------


def serve(control_fd: int, driver: int, dask: bool) -> None:
    """Run the server until the driver's end of the control socket closes, or the driver is gone.

    Args:
        control_fd: The control socket.
        driver: The driver's pid, whose child this process is.
        dask: What workers are: of Dask, or slots alone.
    """
    control = socket.socket(fileno=control_fd)
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    os.set_blocking(wake_r, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    _load(dask)
    alive: set[int] = set()
    folders: list[str] = []
    patience = 0.0
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wake_r, select.POLLIN)
    while os.getppid() == driver:
        ready = {fd for fd, _ in poller.poll(_LOOK)}
        if wake_r in ready:
            os.read(wake_r, 4096)
            _reap(control, alive)
        if control.fileno() not in ready:
            continue
        try:
            request, fds, _, _ = socket.recv_fds(control, 1, 1)
        except ConnectionResetError:  # the driver closed with reports of ours unread
            break
        if request == b"R":
            folders.append(_read_path(control))
        elif request == b"F":
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                os.close(wake_r)
                os.close(wake_w)
                _child(fds[0])
            os.close(fds[0])
            alive.add(pid)
            _report(control, b"P", pid, 0)
        else:
            patience = _GRACE if request == b"L" else 0.0
            break
    _end(control, wake_r, alive, patience)
    import shutil

    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # it is gone already if the driver closed its pool
    os._exit(0)


def _load(dask: bool) -> None:
    """Import what workers need."""
    # the collector would take a tenth of the time, and find nothing: modules stay
    gc.disable()
    if dask:
        import distributed
        import distributed.worker  # noqa: F401

        import espnet3.parallel.pilots.dask.plugin
    else:
        import espnet3.parallel.local.pilot_process  # noqa: F401
    gc.freeze()  # nor do the workers need to search them
    gc.enable()


def _end(control: socket.socket, wake: int, alive: set[int], patience: float) -> None:
    """Wait for workers that were told to stop, and kill those that are left."""
    end = time.monotonic() + patience
    while alive and (left := end - time.monotonic()) > 0:
        select.select([wake], [], [], left)
        _reap(control, alive)
    for pid in alive:
        kill_group(pid)


def _read_path(control: socket.socket) -> str:
    (size,) = _SIZE.unpack(control.recv(_SIZE.size, socket.MSG_WAITALL))
    return os.fsdecode(control.recv(size, socket.MSG_WAITALL))


def _reap(control: socket.socket, alive: set[int]) -> None:
    while alive:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        alive.discard(pid)
        kill_group(pid)  # what the worker had started does not outlive it
        _report(control, b"X", pid, status)


def _report(control: socket.socket, kind: bytes, pid: int, status: int) -> None:
    try:
        control.sendall(EVENT.pack(kind, pid, status))
    except OSError:  # the driver is gone; the next read of `control` says so
        pass


def _child(fd: int) -> None:
    """Become a worker; never returns."""
    code = 1
    try:
        os.setsid()
        sock = socket.socket(fileno=fd)
        head = sock.recv(_SIZE.size, socket.MSG_WAITALL)
        if len(head) == _SIZE.size:
            (size,) = _SIZE.unpack(head)
            boot = pickle.loads(sock.recv(size, socket.MSG_WAITALL))
            if boot.get("kind") == "pilots":
                from espnet3.parallel.local import pilot_process

                pilot_process.run(sock, boot)
            else:
                from espnet3.parallel.local import worker_process

                worker_process.run(sock, boot)
            code = 0
    except (
        BaseException
    ):  # last frame of this process: report, and leave without unwinding the server's frames
        import traceback

        traceback.print_exc()
    finally:
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
