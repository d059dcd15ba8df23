"""What an item may do to its process besides its work: files, threads, signals, forks and worse."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from espnet3.parallel import BaseRunner
from espnet3.parallel.engine.loop import run_items
from tests.parallel.faults.signs import once


class MuteError(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class KillsWhenPickled:
    """Ends the process that pickles it."""

    def __reduce__(self) -> Any:
        os._exit(5)


class ExitsWhenPickled:
    """Calls `sys.exit` where it is pickled."""

    def __reduce__(self) -> Any:
        sys.exit("pickled")


class ExitsWhenLoaded:
    """Calls `sys.exit` where it is loaded: in the driver."""

    def __reduce__(self) -> Any:
        return sys.exit, ("loaded",)


def stop_iteration(x: int) -> int:
    """Let a StopIteration out, as a forgotten `next()` does."""
    return next(iter([]))


def generator_exit(x: int) -> int:
    """Raise GeneratorExit."""
    raise GeneratorExit


def keyboard_interrupt(x: int) -> int:
    """Raise KeyboardInterrupt, as a library may that was interrupted itself."""
    raise KeyboardInterrupt


def mute_error(x: int) -> int:
    """Raise an error that cannot be shown."""
    raise MuteError


def recursion(x: int) -> int:
    """Call itself for ever."""
    return recursion(x) + 1


def exits_when_pickled(x: int) -> Any:
    """Return what ends the thread that pickles it."""
    return ExitsWhenPickled()


def exits_when_loaded(x: int) -> Any:
    """Return what ends the thread that loads it."""
    return ExitsWhenLoaded()


def kills_when_pickled(x: int) -> Any:
    """Return what ends the process that pickles it."""
    return KillsWhenPickled()


def closes_stdout(x: int) -> int:
    """Close standard output."""
    sys.stdout.close()
    return x


def changes_directory(x: int) -> int:
    """Go elsewhere, to a folder that is then removed."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
    return x


def starts_a_thread(x: int) -> int:
    """Leave a thread running that is not a daemon."""
    threading.Thread(target=time.sleep, args=(100,)).start()
    return x


def prints_much(x: int) -> int:
    """Print ten megabytes, the last line unfinished."""
    print("a line of a hundred characters".ljust(99, ".") * 100_000, end="")
    return x


def closes_descriptors(x: int) -> int:
    """Close all files and sockets of the process, ours among them."""
    os.closerange(3, 1024)
    return x


def forgets_us(x: int) -> int:
    """Remove this package from `sys.modules`."""
    for name in list(sys.modules):
        if name.split(".")[0] == "espnet3":
            del sys.modules[name]
    return x


def forks_and_returns(x: int) -> int:
    """Fork, and return the item in parent and child."""
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


def closes_standard_files(x: int) -> int:
    """Close the descriptors of standard input, output and error."""
    for fd in (0, 1, 2):
        try:
            os.close(fd)
        except OSError:
            continue
    return x


def changes_the_umask(x: int) -> int:
    """Take away all rights of new files."""
    os.umask(0o777)
    return x


def empties_the_environment(x: int) -> int:
    """Remove every environment variable and every entry of sys.path."""
    os.environ.clear()
    sys.path.clear()
    return x


def blocks_signals(x: int) -> int:
    """Block all signals that can be blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return x


def lowers_limits(x: int) -> int:
    """Allow no more open files, and little recursion."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    sys.setrecursionlimit(100)
    return x


def warns_with_errors(x: int) -> int:
    """Turn warnings into errors, stop the garbage collector, and let sockets time out at once."""
    warnings.simplefilter("error")
    gc.disable()
    socket.setdefaulttimeout(0.001)
    return x


def hangs_at_exit(x: int) -> int:
    """Leave a function that holds the process up when it ends."""
    atexit.register(time.sleep, 100)
    return x


def uses_multiprocessing(x: int) -> int:
    """Compute in a pool of its own."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-x])[0]


def handles_signals(x: int) -> int:
    """Set a signal handler, which only a main thread may."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return x


def stops_itself(x: int) -> int:
    """Send its own process a SIGTERM, which nobody handles there."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)  # the signal may land late
    return x


def becomes_another(x: int) -> int:
    """Become another program."""
    os.execv(sys.executable, [sys.executable, "-c", "pass"])


HARMLESS: dict[str, Callable[[int], Any]] = {
    f.__name__: f
    for f in (
        closes_stdout,
        changes_directory,
        starts_a_thread,
        prints_much,
        forks_and_returns,
        forgets_us,
        broken_stdout,
        closes_standard_files,
        changes_the_umask,
        empties_the_environment,
        blocks_signals,
        lowers_limits,
        warns_with_errors,
        hangs_at_exit,
        uses_multiprocessing,
    )
}
HARMFUL: dict[str, tuple[Callable[[int], Any], str, str]] = {
    f.__name__: (f, cause, kind)
    for f, cause, kind in [
        (stop_iteration, "error", "StopIteration"),
        (generator_exit, "error", "GeneratorExit"),
        (keyboard_interrupt, "error", "KeyboardInterrupt"),
        (mute_error, "error", f"{__name__}.MuteError"),
        (recursion, "error", "RecursionError"),
        (exits_when_pickled, "result", "TypeError"),
        (exits_when_loaded, "result", "SystemExit"),
        (kills_when_pickled, "poison", "WorkerDied"),
        (handles_signals, "error", "ValueError"),
        (closes_descriptors, "poison", "WorkerDied"),
        (daemon_and_death, "poison", "WorkerDied"),
        (stops_itself, "poison", "WorkerDied"),
        (becomes_another, "poison", "WorkerDied"),
    ]
}


class Mischief(BaseRunner):
    """Squares; one item does more."""

    @staticmethod
    def forward(idx: int, act: str, at: int) -> Any:
        """Return the square, after some mischief."""
        if idx == at and act in HARMFUL:
            return HARMFUL[act][0](idx)
        if idx == at:
            HARMLESS[act](idx)
        return idx * idx


class MischiefInBatches(Mischief):
    """The same, with batches."""

    @staticmethod
    def batch_forward(indices: list[int], act: str, at: int) -> list[Any]:
        """Return the squares."""
        return [Mischief.forward(i, act, at) for i in indices]


def fills_memory(x: int, at: int) -> int:
    """Take more and more memory at one item."""
    if x == at:
        held = []
        while True:
            held.append(bytearray(50_000_000))
            time.sleep(0.05)  # slower than the eye that watches it, faster than the machine's end
    time.sleep(0.005)  # long enough to be alone in its step
    return x


def breaks_the_pilot(x: int, at: int, where: str, always: bool, mute: bool = False) -> int:
    """Damage, in its own process, what the package runs its next chunk with; `mute`: and standard error."""
    worker = sys.modules["espnet3.parallel.pilots.worker"]
    if x == at and once(where):
        good = worker.run_items

        def broken(*args: Any, **kwargs: Any) -> Any:
            if not always:
                worker.run_items = good  # type: ignore[attr-defined]  # a module of any kind
            raise ArithmeticError("an item has damaged this process")

        worker.run_items = broken  # type: ignore[attr-defined]  # see above
        if mute:
            sys.stderr = open(os.devnull)  # noqa: SIM115  for reading only: writing raises
    return x


def mends_the_pilot() -> None:
    """Undo `breaks_the_pilot` where no chunk has come since."""
    sys.modules["espnet3.parallel.pilots.worker"].run_items = run_items  # type: ignore[attr-defined]  # see above


def closes_the_channel(x: int, at: int, where: str) -> int:
    """Close every socket of its process that leads to a driver of ours."""
    if x == at and once(where):
        for pilot in [each for each in gc.get_objects() if type(each).__name__ == "Pilot"]:
            if pilot.channel.fileno() >= 0:
                pilot.channel.sock.shutdown(socket.SHUT_RDWR)
    return x
