"""Runners and functions whose items fail in every way; importable by workers."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from espnet3.parallel import BaseRunner, EnvironmentProvider
from tests.parallel.faults.signs import once, tell

# --- what an item may do --------------------------------------------------------------------------


def segfault() -> None:
    """Die as after a wild pointer; the signal may land late."""
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


def null_pointer() -> None:
    """Read address 0, in C."""
    ctypes.string_at(0)


def leave() -> None:
    """End the process without a word."""
    os._exit(3)


def oom() -> None:
    """Die as if killed by the kernel's OOM killer."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def bad_value() -> None:
    """Raise an ordinary error, with a cause."""
    try:
        raise KeyError("the reason")
    except KeyError as error:
        raise ValueError("bad item") from error


class HoldsLockError(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


class TwoArgumentsError(Exception):
    """Can be pickled, and not unpickled: `__init__` wants more than `args` has."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def unpicklable_error() -> None:
    """Raise what cannot be pickled."""
    raise HoldsLockError


def unloadable_error() -> None:
    """Raise what cannot be unpickled."""
    raise TwoArgumentsError("one", "two")


def system_exit() -> None:
    """Call `sys.exit`."""
    sys.exit("the item wants to leave")


def unpicklable_result() -> Any:
    """Return what cannot be pickled."""
    return threading.Lock()


def explode() -> None:
    """Fail to be unpickled."""
    raise LookupError("cannot be loaded")


class Unloadable:
    """Can be pickled, and not unpickled."""

    def __reduce__(self) -> Any:
        return explode, ()


def unloadable_result() -> Any:
    """Return what cannot be unpickled."""
    return Unloadable()


CRASHES: dict[str, Callable[[], Any]] = {f.__name__: f for f in (segfault, null_pointer, leave, oom)}
ERRORS: dict[str, Callable[[], Any]] = {
    f.__name__: f for f in (bad_value, unpicklable_error, unloadable_error, system_exit)
}
RESULTS: dict[str, Callable[[], Any]] = {f.__name__: f for f in (unpicklable_result, unloadable_result)}
FAULTS = {**CRASHES, **ERRORS, **RESULTS}

# --- providers and runners ----------------------------------------------------------------------------


class Provider(EnvironmentProvider):
    """Its env is its config."""

    def build_env_local(self) -> dict[str, Any]:
        """Return the config."""
        return dict(self.config)


def faulty(fault: str, *at: Any) -> Provider:
    """Return the provider of a runner whose items `at` have a fault."""
    return Provider({"fault": fault, "at": at})


class Square(BaseRunner):
    """Squares, where no fault is asked for."""

    @staticmethod
    def forward(idx: int, fault: str, at: tuple[int, ...]) -> Any:
        """Return the square, or fail."""
        return FAULTS[fault]() if idx in at else idx * idx


class SquareBatches(Square):
    """The same, with batches."""

    @staticmethod
    def batch_forward(indices: list[int], fault: str, at: tuple[int, ...]) -> list[Any]:
        """Return the squares, or fail as a whole."""
        return [FAULTS[fault]() if i in at else i * i for i in indices]


class SquareByCost(Square):
    """The same, the largest first."""

    @staticmethod
    def item_cost(idx: int) -> float:
        """Return what the item costs."""
        return float(idx)


class SquareFiles(Square):
    """The same, with files."""

    @staticmethod
    def open_writers(shard_dir: Path, **_: Any) -> Any:
        """Open a text file."""
        return (shard_dir / "squares.txt").open("w")

    @staticmethod
    def write_record(writers: Any, result: Any, state: dict[str, Any], **_: Any) -> None:
        """Write a line."""
        writers.write(f"{state['index']} {result}\n")

    @staticmethod
    def close_writers(writers: Any, state: dict[str, Any], **_: Any) -> None:
        """Close the file."""
        writers.close()


class SlowSquare(Square):
    """The same, a hundredth of a second each, so that neighbours are in flight when one crashes."""

    @staticmethod
    def forward(idx: int, fault: str, at: tuple[int, ...]) -> Any:
        """Return the square, or fail."""
        time.sleep(0.01)
        return Square.forward(idx, fault, at)


class CrashOnce(BaseRunner):
    """Some items kill their worker the first time they are run."""

    @staticmethod
    def forward(idx: int, root: str, at: tuple[int, ...]) -> int:
        """Return the square, or leave."""
        if idx in at and once(f"{root}/{idx}"):
            FAULTS["leave"]()
        return idx * idx


class CrashOnceFiles(CrashOnce):
    """The same, with files."""

    open_writers = staticmethod(SquareFiles.open_writers)
    write_record = staticmethod(SquareFiles.write_record)
    close_writers = staticmethod(SquareFiles.close_writers)


def fail_at_7(x: int, fault: str) -> int:
    """Return the square, but for item 7."""
    return FAULTS[fault]() if x == 7 else x * x


class Gated(BaseRunner):
    """Squares; the item at the gate says where it runs and waits, the first time (it is killed there)."""

    @staticmethod
    def forward(idx: int, gates: tuple[int, ...], root: str) -> int:
        """Return the square."""
        if idx in gates and once(f"{root}/gate-{idx}"):
            tell(f"{root}/mail")
            time.sleep(100)
        return idx * idx


class SlowGated(Gated):
    """The same, a millisecond each."""

    @staticmethod
    def forward(idx: int, gates: tuple[int, ...], root: str) -> int:
        """Return the square."""
        time.sleep(0.001)
        return Gated.forward(idx, gates, root)


class TwoGates(BaseRunner):
    """Squares; each of two items waits, the first time, until both are there and killed."""

    forward = staticmethod(Gated.forward)

    @staticmethod
    def item_cost(idx: int) -> float:
        """Put the gates first, so that both workers stand at one."""
        return 1000.0 if idx in (300, 600) else 1.0


class DyingProvider(EnvironmentProvider):
    """Kills the process that builds its env."""

    def build_env_local(self) -> dict[str, Any]:
        """Leave, and count how often."""
        tell(self.config["mail"], "died")
        os._exit(3)


def pid_of(_: Any) -> int:
    """Return the worker's pid."""
    return os.getpid()


def announce_50(x: int, root: str) -> int:
    """Return the item; the 50th says that it runs, and takes a second."""
    if x == 50 and once(f"{root}/50"):
        tell(f"{root}/mail")
        time.sleep(1.0)
    return x


# --- envs that cannot be built ------------------------------------------------------------------------


def raising_env() -> dict[str, Any]:
    """Raise."""
    raise ValueError("no such model: large-v9")


def exiting_env() -> dict[str, Any]:
    """Call `sys.exit`."""
    sys.exit("no GPU here")


def listing_env() -> Any:
    """Return a list."""
    return ["model", "dataset"]


def missing_module_env() -> dict[str, Any]:
    """Import what is not installed."""
    import no_such_module_anywhere

    return {"module": no_such_module_anywhere}


def hanging_env() -> dict[str, Any]:
    """Take for ever."""
    time.sleep(100)
    return {}


ENVS: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        raising_env,
        exiting_env,
        listing_env,
        missing_module_env,
        hanging_env,
    )
}


class BadProvider(EnvironmentProvider):
    """Its env cannot be built."""

    def build_env_local(self) -> dict[str, Any]:
        """Do what the config says."""
        return ENVS[self.config]()


class TouchFile(BaseRunner):
    """Its items leave a file, to show that they were run."""

    @staticmethod
    def forward(idx: int, path: str) -> int:
        """Touch it."""
        Path(path).touch()
        return idx


# --- items that draw -------------------------------------------------------------------------------------


class Draws(BaseRunner):
    """Each item draws from `random` and numpy, and from torch where the config says so."""

    @staticmethod
    def forward(idx: Any, torch: bool = False, root: str = "") -> Any:
        """Draw; numpy is imported by the first item that a process runs."""
        import random

        import numpy as np

        if root and idx == 50 and once(f"{root}/half"):
            tell(f"{root}/mail")
            time.sleep(100)
        drawn: list[Any] = [idx, random.random(), float(np.random.random()), random.gauss(0, 1)]
        if torch:
            import torch as library

            drawn.append(float(library.rand(1)))
        return drawn


class DrawsInBatches(Draws):
    """The same, with batches."""

    @staticmethod
    def batch_forward(indices: list[Any], torch: bool = False, root: str = "") -> list[Any]:
        """Draw for each."""
        return [Draws.forward(i, torch, root) for i in indices]


class Named:
    """An index without a repr of its own."""

    def __init__(self, name: str) -> None:
        self.name = name


def indices_alike() -> list[Any]:
    """Return indices whose repr, or order, is another one in another process."""
    import numpy as np

    return [{"a", "b", "c"}, {"k": {"x", "y"}}, Named("u"), ("a", frozenset("bcd")), np.arange(2000)]


class DrawsSlowly(BaseRunner):
    """Each item draws, sleeps, and draws again, so that threads of a process get in between."""

    @staticmethod
    def forward(idx: int) -> tuple[float, float, float]:
        """Draw."""
        import random

        first = random.random()
        time.sleep(0.002)
        second = random.random()
        time.sleep(0.002)
        return first, second, random.random()


class DrawsInHooks(DrawsSlowly):
    """Its hooks draw too, from the generators that the items of other threads draw from."""

    @staticmethod
    def open_writers(shard_dir: Path, **env: Any) -> Any:
        """Draw, and open a file."""
        return random.random() and open(shard_dir / "draws", "w", encoding="utf-8")

    @staticmethod
    def write_record(writers: Any, result: Any, state: dict[str, Any], **env: Any) -> None:
        """Draw, and write the result."""
        random.random()
        writers.write(json.dumps(result) + "\n")

    @staticmethod
    def close_writers(writers: Any, state: Any, **env: Any) -> None:
        """Draw, and close the file."""
        random.random()
        writers.close()


class FailsTwice(BaseRunner):
    """Some items raise the first two times."""

    @staticmethod
    def forward(idx: int, root: str, at: tuple[int, ...]) -> int:
        """Return the square, or raise."""
        if idx in at and (once(f"{root}/{idx}-1") or once(f"{root}/{idx}-2")):
            raise OSError(f"item {idx} has no luck yet")
        return idx * idx


class FailsTwiceInBatches(FailsTwice):
    """The same, with batches."""

    @staticmethod
    def batch_forward(indices: list[int], root: str, at: tuple[int, ...]) -> list[int]:
        """Return the squares, or raise."""
        return [FailsTwice.forward(i, root, at) for i in indices]


class FailsEvery(BaseRunner):
    """Every so many items, one raises."""

    @staticmethod
    def forward(idx: int, every: int) -> int:
        """Return the item, or raise."""
        if idx % every == 0:
            raise ValueError("one of many")
        return idx


# --- runs of other shapes ----------------------------------------------------------------------------


def prints(x: int) -> int:
    """Print much."""
    print("a line\n" * 100)
    return x


class Nested(BaseRunner):
    """Each item runs a runner of its own."""

    @staticmethod
    def forward(idx: int) -> Any:
        """Draw in a run within the run."""
        inner = Draws(Provider({}), seed=1, progress=False)
        return inner(range(idx, idx + 3))


class BadHook(Square):
    """One of its hooks does not do its work."""

    @staticmethod
    def forward(idx: int, hook: str, act: str) -> int:
        """Return the square."""
        return idx * idx

    @staticmethod
    def open_writers(shard_dir: Path, hook: str, act: str) -> str:
        """Fail, or name the shard."""
        if hook == "open_writers" and shard_dir.name == "split.3":
            FAULTS[act]()
        return shard_dir.name

    @staticmethod
    def write_record(writers: str, result: Any, state: dict[str, Any], hook: str, act: str) -> None:
        """Fail, or do nothing."""
        if hook == "write_record" and writers == "split.3":
            FAULTS[act]()

    @staticmethod
    def close_writers(writers: str, state: dict[str, Any], hook: str, act: str) -> None:
        """Fail, or do nothing."""
        if hook == "close_writers" and writers == "split.3":
            FAULTS[act]()


class FailsThenEnds(Square):
    """In one shard the disk seems full to write_record, and close_writers ends the process."""

    @staticmethod
    def forward(idx: int) -> int:
        """Return the square."""
        return idx * idx

    @staticmethod
    def open_writers(shard_dir: Path) -> str:
        """Name the shard."""
        return shard_dir.name

    @staticmethod
    def write_record(writers: str, result: Any, state: dict[str, Any]) -> None:
        """Fail in one shard."""
        if writers == "split.3":
            raise OSError(28, "No space left on device")

    @staticmethod
    def close_writers(writers: str, state: dict[str, Any]) -> None:
        """End the process in that shard."""
        if writers == "split.3":
            leave()


class InTheWay(Provider):
    """Puts a file where a shard's folder is to be made, on the worker."""

    def build_env_local(self) -> dict[str, Any]:
        """Return the config, without the file's path."""
        Path(self.config["path"]).write_text("in the way")
        return {name: value for name, value in self.config.items() if name != "path"}


def sleeps_for_long(x: int, root: str) -> int:
    """Say that the item has begun, and sleep for longer than any test."""
    tell(f"{root}/mail", f"item {os.getpid()}")
    time.sleep(100)
    return x


def freezes(x: int, at: int, mail: str, marker: str = "") -> int:
    """Stop this process at one item, as a debugger or a halted node does: always, or once where a marker is given."""
    if x == at and (not marker or once(marker)):
        tell(mail, str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.5)  # the signal may land late
    return x


def is_quiet(x: int, seconds: float) -> int:
    """Give no sign of life for a while, but that the process lives."""
    if x == 0:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    return x
