"""What an item may do to its process besides its work: files, threads, signals, forks and worse."""

import atexit
import gc
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from espnet3.parallel import BaseRunner
from tests.parallel.faults.signs import once


class KillsWhenPickled:
    def __reduce__(self) -> Any:
        os._exit(5)


def stop_iteration(x: int) -> int:
    """Let a StopIteration out, as a forgotten `next()` does."""
    return next(iter([]))


def keyboard_interrupt(x: int) -> int:
    """Raise KeyboardInterrupt, as a library may that was interrupted itself."""
    raise KeyboardInterrupt


def recursion(x: int) -> int:
    return recursion(x) + 1


def kills_when_pickled(x: int) -> Any:
    return KillsWhenPickled()


def changes_directory(x: int) -> int:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
    return x


def starts_a_thread(x: int) -> int:
    threading.Thread(target=time.sleep, args=(100,)).start()
    return x


def prints_much(x: int) -> int:
    print("a line of a hundred characters".ljust(99, ".") * 100_000, end="")
    return x


def closes_descriptors(x: int) -> int:
    """Close all files and sockets of the process, ours among them."""
    os.closerange(3, 1024)
    return x


def forks_and_returns(x: int) -> int:
    os.fork()
    return x


def daemon_and_death(x: int) -> int:
    """Leave a daemon behind, in a session of its own and with all our sockets, and die."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(20)
        os._exit(0)
    os._exit(3)


def broken_stdout(x: int) -> int:
    """Put something in the place of standard output that cannot be flushed."""

    class Broken:
        def write(self, text: str) -> int:
            return len(text)

        def flush(self) -> None:
            raise RuntimeError("nothing flows here")

    sys.stdout = Broken()  # type: ignore[assignment]  # as a badly written logger
    return x


def warns_with_errors(x: int) -> int:
    warnings.simplefilter("error")
    gc.disable()
    socket.setdefaulttimeout(0.001)
    return x


def hangs_at_exit(x: int) -> int:
    """Leave a function that holds the process up when it ends."""
    atexit.register(time.sleep, 100)
    return x


def uses_multiprocessing(x: int) -> int:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-x])[0]


def handles_signals(x: int) -> int:
    """Set a signal handler, which only a main thread may."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return x


HARMLESS: dict[str, Callable[[int], Any]] = {
    f.__name__: f
    for f in (
        changes_directory,
        starts_a_thread,
        prints_much,
        forks_and_returns,
        broken_stdout,
        warns_with_errors,
        hangs_at_exit,
        uses_multiprocessing,
    )
}
HARMFUL: dict[str, tuple[Callable[[int], Any], str, str]] = {
    f.__name__: (f, cause, kind)
    for f, cause, kind in [
        (stop_iteration, "error", "StopIteration"),
        (keyboard_interrupt, "error", "KeyboardInterrupt"),
        (recursion, "error", "RecursionError"),
        (kills_when_pickled, "poison", "WorkerDied"),
        (handles_signals, "error", "ValueError"),
        (closes_descriptors, "poison", "WorkerDied"),
        (daemon_and_death, "poison", "WorkerDied"),
    ]
}


class Mischief(BaseRunner):
    @staticmethod
    def forward(idx: int, act: str, at: int) -> Any:
        if idx == at and act in HARMFUL:
            return HARMFUL[act][0](idx)
        if idx == at:
            HARMLESS[act](idx)
        return idx * idx


def fills_memory(x: int, at: int) -> int:
    if x == at:
        held = []
        while True:
            held.append(bytearray(50_000_000))
            time.sleep(0.05)  # slower than the eye that watches it, faster than the machine's end
    time.sleep(0.005)  # long enough to be alone in its step
    return x


def breaks_the_pilot(x: int, at: int, where: str) -> int:
    """Damage, in its own process, what the package runs its next chunk with."""
    worker = sys.modules["espnet3.parallel.pilots.worker"]
    if x == at and once(where):

        def broken(*args: Any, **kwargs: Any) -> Any:
            raise ArithmeticError("an item has damaged this process")

        worker.run_items = broken  # type: ignore[attr-defined]  # a module of any kind
    return x


def closes_the_channel(x: int, at: int, where: str) -> int:
    """Close every socket of its process that leads to a driver of ours."""
    if x == at and once(where):
        for pilot in [each for each in gc.get_objects() if type(each).__name__ == "Pilot"]:
            if pilot.channel.fileno() >= 0:
                pilot.channel.sock.shutdown(socket.SHUT_RDWR)
    return x
