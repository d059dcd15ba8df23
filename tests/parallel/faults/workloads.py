"""Runners and functions whose items fail in every way; importable by workers."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from espnet3.parallel import BaseRunner, EnvironmentProvider
from tests.parallel.faults.watching import once

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
    """Die as the kernel's OOM killer has it."""
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


CRASHES: dict[str, Callable[[], Any]] = {
    f.__name__: f for f in (segfault, null_pointer, leave, oom)
}
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
