"""Items that take their time, wait for each other, or die: light to import, as each new worker does."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from espnet3.parallel import BaseRunner
from tests.parallel.faults.signs import once, tell
from tests.waiting import wait_until

# --- items that hang -------------------------------------------------------------------------------------


N, AT = 1000, 417
LIMIT = 1.5  # seconds: long against an item of these tests, also on a busy machine


def hangs(x: int, at: tuple[int, ...] = (AT,)) -> int:
    if x in at:
        time.sleep(1000)
    return x


def hangs_in_batches(xs: list[int], at: tuple[int, ...] = (AT,)) -> list[int]:
    return [hangs(x, at) for x in xs]


def hangs_once(x: int, root: str) -> int:
    if x == AT and once(f"{root}/hung"):
        time.sleep(1000)
    return x


def holds_the_lock(x: int) -> int:
    """Stay in C code, with the interpreter's lock, at one item."""
    if x == AT:
        ctypes.PyDLL(None).sleep(1000)
    return x


def half_the_limit(x: int) -> int:
    """Take half the time limit at a few items in the middle of quick ones."""
    if 500 <= x < 504:
        time.sleep(LIMIT / 2)
    return x


def tenth_or_hang(x: int) -> int:
    """Take a while, so that neighbours are in the middle of something when item 17 is given up."""
    time.sleep(1000 if x == 17 else LIMIT / 10)
    return x


# --- items of streams ------------------------------------------------------------------------------------


MB = 1 << 20


class Alive:
    """An item or a result that is counted while this process holds it."""

    now = 0

    def __init__(self, x: int) -> None:
        Alive.now += 1
        self.x = x

    def __reduce__(self) -> tuple[type[Alive], tuple[int]]:
        return Alive, (self.x,)

    def __del__(self) -> None:
        Alive.now -= 1


def one_ms(x: Alive) -> Alive:
    time.sleep(0.001)
    return Alive(x.x)


def ten_ms(x: int) -> int:
    time.sleep(0.01)
    return x


def megabyte(x: int) -> bytes:
    return bytes([x % 256]) * MB


def wait_to_be_let_go(root: str) -> None:
    tell(f"{root}/mail")
    wait_until(Path(root, "gate").exists)


def waits_from_33(x: int, root: str) -> int:
    """Wait in a few items until the others can do no more, which is far more than a chunk's 50 ms."""
    if 33 <= x < 40:
        wait_to_be_let_go(root)
    return x


def dies_once_at_40(x: int, root: str) -> int:
    """Wait in one item, and take the worker along the first time."""
    if x == 40 and once(f"{root}/40"):
        wait_to_be_let_go(root)
        os._exit(3)
    return x


def first_waits(x: int, root: str) -> int:
    """Wait at the first item until it is let go, and work 5 ms at all others."""
    if x == 0:
        wait_to_be_let_go(root)
    time.sleep(0.005)
    return x


# --- items of runs that are given up ---------------------------------------------------------------------


def waits_after_0(x: int, root: str) -> int:
    """Return item 0 once the other worker is in item 1; all others take long."""
    if x == 0:
        Path(root, "gate").read_text()  # until somebody writes
        return x
    tell(f"{root}/mail")
    if x == 1:
        Path(root, "gate").write_text("go")
    time.sleep(1000)
    return x


class WaitsOrRaises(BaseRunner):
    """One item takes long; the other raises once that one runs."""

    @staticmethod
    def forward(idx: int, root: str) -> int:
        if idx == 0:
            Path(root, "gate").write_text("go")
            time.sleep(1000)
        Path(root, "gate").read_text()
        raise ValueError("no")


def slow_or_broken_env(root: str) -> Callable[[], dict[str, Any]]:
    """Return a setup function that takes long on the first worker and then fails on the other."""

    def build() -> dict[str, Any]:
        if once(f"{root}/first"):
            Path(root, "gate").write_text("go")
            time.sleep(1000)
        Path(root, "gate").read_text()
        raise OSError("no such model")

    return build


def tells_and_sleeps(x: int, root: str) -> int:
    tell(f"{root}/mail")
    time.sleep(1)
    return x


# --- items that crash ------------------------------------------------------------------------------------


def crash_once(x: int, root: str, at: tuple[int, ...]) -> int:
    """Take the worker along at some items, the first time each."""
    if x in at and once(f"{root}/{x}"):
        os._exit(3)
    return x


def crash(x: int, at: tuple[int, ...], pause: float = 0.0) -> int:
    """Take the worker along at some items, each time."""
    if pause:
        time.sleep(pause)
    if x in at:
        os._exit(3)
    return x


def pilot_threads() -> int:
    return sum("pilot" in thread.name for thread in threading.enumerate())
