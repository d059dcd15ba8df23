"""Run the server process that forks local workers, and a worker until its boot message has come.

It is imported by the server before anything heavy: standard library only.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import NoReturn

from espnet3.parallel.surroundings import give

EVENT = struct.Struct("!cii")  # b"P": forked pid; b"X": pid ended with wait status
SIZE = struct.Struct("!I")
SCRATCH = "espnet3-dask-"
"""Begins the name of a folder for what Dask puts on the disk, of mode 0700, made for one process of a run."""
_GRACE = 2.0  # seconds that workers have to end once their driver has left
_LOOK = 1000  # milliseconds between looks whether the driver is still there


def kill_group(pid: int) -> None:
    """SIGKILL a worker and every process it started (it leads a session of its own)."""
    with suppress(ProcessLookupError, PermissionError):  # it is empty
        os.killpg(pid, signal.SIGKILL)


def fresh_signals() -> None:
    """Have signals come that the starter has blocked, and the ends of children that it does not wait for."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def serve(control_fd: int, driver: int, dask: bool) -> None:
    """Run the server until the driver's end of the control socket closes, or the driver is gone."""
    fresh_signals()
    control = socket.socket(fileno=control_fd)
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    os.set_blocking(wake_r, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    _load(dask)
    alive: set[int] = set()
    folders: list[str] = []
    patience, refusal = 0.0, ""
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
        if request in (b"R", b"I"):
            (size,) = SIZE.unpack(control.recv(SIZE.size, socket.MSG_WAITALL))
            text = os.fsdecode(control.recv(size, socket.MSG_WAITALL))
            if request == b"R":
                folders.append(text)
            else:
                refusal = refusal or _preload(text)
        elif request == b"F":
            alive.add(_fork(control, (wake_r, wake_w), fds[0], refusal))
        else:
            patience = _GRACE if request == b"L" else 0.0
            if request == b"K":  # the driver goes on, and removes these after what Dask removes in them
                folders = [one for one in folders if SCRATCH not in one]
            break
    _end(control, wake_r, alive, patience)
    import shutil

    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # it is gone already if the driver closed its pool
    os._exit(0)


def _fork(control: socket.socket, wake: tuple[int, int], fd: int, refusal: str) -> int:
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for each in wake:
            os.close(each)
        _child(fd, refusal)
    os.close(fd)
    _report(control, b"P", pid, 0)
    return pid


def _load(dask: bool) -> None:
    # the collector would take a tenth of the time, and find nothing: modules stay
    gc.disable()
    importlib.import_module("espnet3.parallel.local.worker_process")
    if dask:
        importlib.import_module("distributed.worker")
    gc.freeze()  # nor do the workers need to search them
    gc.enable()


def _preload(name: str) -> str:
    try:
        importlib.import_module(name)
    except Exception as error:
        return f"preload: the module {name} cannot be imported: {type(error).__name__}: {error}"
    instead = "load it in setup_fn or in a provider, once in each worker"
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the list itself
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                return f"preload: importing {name} has begun to use CUDA, which no fork survives: {instead}"
    if len(os.listdir("/proc/self/task")) > 1:
        return (
            f"preload: importing {name} has started threads, which a forked process does not have: {instead}"
        )
    gc.freeze()
    return ""


def _end(control: socket.socket, wake: int, alive: set[int], patience: float) -> None:
    end = time.monotonic() + patience
    while alive and (left := end - time.monotonic()) > 0:
        select.select([wake], [], [], left)
        _reap(control, alive)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)  # just forked, it leads no group yet
        kill_group(pid)
    for pid in alive:  # a worker that ends later could make its folder again
        os.waitpid(pid, 0)


def _reap(control: socket.socket, alive: set[int]) -> None:
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        alive.discard(pid)
        kill_group(pid)  # programs that the worker started end with it
        _report(control, b"X", pid, status)


def _report(control: socket.socket, kind: bytes, pid: int, status: int) -> None:
    with suppress(OSError):  # the driver is gone; the next read of `control` says so
        control.sendall(EVENT.pack(kind, pid, status))


def _child(fd: int, refusal: str) -> NoReturn:
    code = 1
    try:
        os.setsid()
        sock = socket.socket(fileno=fd)
        head = sock.recv(SIZE.size, socket.MSG_WAITALL)
        if len(head) == SIZE.size:
            (size,) = SIZE.unpack(head)
            boot = pickle.loads(sock.recv(size, socket.MSG_WAITALL))
            refusal = refusal or give(boot["surroundings"])
            os.environ.update(boot["env"])
            if refusal:
                import json

                sock.sendall(json.dumps({"error": refusal}).encode() + b"\n")
            else:
                from espnet3.parallel.local.worker_process import run  # it is loaded

                run(sock, boot)
            code = 0
    except BaseException:  # last frame of this process: leave without unwinding the server's
        import traceback

        traceback.print_exc()
    finally:
        import atexit

        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # an item has closed it, or put something else in its place
                stream.flush()
        os._exit(code)
