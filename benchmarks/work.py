"""What a system is asked to do: one function, `n` indices, an env built once per worker process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

PAYLOAD_BYTES = 100_000


# ---------------------------------------------------------------- the items: item(idx, **env)
def burn(seconds: float) -> None:
    """Spend CPU seconds of this thread: on a busy machine an item takes longer, never less work."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def empty(idx: int) -> None:
    """Do nothing: what is left is what the system costs per item."""


def spin_1ms(idx: int) -> None:
    """Spend 1 ms of CPU."""
    burn(0.001)


def spin_for(idx: int, durations: list[float]) -> None:
    """Spend the CPU seconds the env lists for this index."""
    burn(durations[idx])


def payload(idx: int) -> bytes:
    """Return 100 KB that no other index returns."""
    return idx.to_bytes(8, "little") * (PAYLOAD_BYTES // 8)


def where(idx: int) -> tuple[int, int]:
    """Return the index and the process that ran it."""
    return idx, os.getpid()


def where_scaled(idx: int, scale: int) -> tuple[int, int]:
    """Return a value that needs the env, and the process that ran it."""
    return idx * scale, os.getpid()


def killed_once(idx: int, index: int, mark: str) -> int:
    """Return the index; the first process that comes to `index` is killed there, once."""
    burn(0.002)
    if idx == index:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return idx
        _die(signal.SIGKILL)
    return idx


def poison(idx: int, index: int, mark: str) -> int:
    """Return the index; every process that comes to `index` ends with a segmentation fault."""
    burn(0.002)
    if idx == index:
        _die(signal.SIGSEGV)
    return idx


def _die(signum: int) -> None:
    os.kill(os.getpid(), signum)
    time.sleep(5)  # sent by a thread to its own process, a signal may land late: the item must not succeed


# ---------------------------------------------------------------- the envs
def _slow(seconds: float, scale: int) -> dict[str, Any]:
    time.sleep(seconds)
    return {"scale": scale}


def durations(n: int, n_long: int, long: float, mean: float, where_long: str) -> list[float]:
    """Return the seconds of each item: `n_long` long ones first or last, the others share what is left."""
    short = (n * mean - n_long * long) / (n - n_long)
    longs, shorts = [long] * n_long, [short] * (n - n_long)
    return longs + shorts if where_long == "first" else shorts + longs


_ENVS: dict[str, Callable[..., dict[str, Any]]] = {
    "slow": _slow,
    "durations": lambda **kwargs: {"durations": durations(**kwargs)},
    "plain": lambda **kwargs: kwargs,
}


@dataclass(frozen=True, slots=True)
class Env:
    """How a worker builds its env: a name in the table above and keyword arguments, as plain data."""

    name: str
    args: tuple[tuple[str, Any], ...] = ()

    def build(self) -> dict[str, Any]:
        """Build the env in this process."""
        return _ENVS[self.name](**dict(self.args))


def env(name: str, **kwargs: Any) -> Env:
    """Write an `Env` with keywords."""
    return Env(name, tuple(kwargs.items()))


_built = lru_cache(maxsize=None)(Env.build)


@dataclass(frozen=True, slots=True)
class WithEnv:
    """An item as a function of the index alone; the env is built once per process, on first use."""

    item: Callable[..., Any]
    env: Env

    def __call__(self, idx: int) -> Any:
        """Run one item."""
        return self.item(idx, **_built(self.env))


@dataclass(frozen=True, slots=True)
class Work:
    """One run: `item(idx, **env)` for idx in range(n)."""

    item: Callable[..., Any]  # A module-level function of this file
    n: int  # how many indices
    env: Env | None = None  # what each worker builds first; None for nothing
    costs: tuple[float, ...] | None = None  # A hint for each index, for the systems that take one
    pieces: int = 32  # into how many chunks a system that is tuned by hand cuts the indices

    @property
    def call(self) -> Callable[[int], Any]:
        """The item as a picklable function of the index alone."""
        return self.item if self.env is None else WithEnv(self.item, self.env)

    @property
    def chunk(self) -> int:
        """The chunk size set by hand."""
        return max(1, self.n // self.pieces)

    def warm_up(self) -> Work:
        """Return a tiny run that leaves processes started, modules imported and the env built."""
        return replace(self, item=empty if self.env is None else ignore_env, n=16, costs=None)

    def at_most(self, n: int | None) -> Work:
        """Return the same work over no more than `n` indices."""
        return self if n is None or n >= self.n else replace(self, n=n)


def ignore_env(idx: int, **env: Any) -> None:
    """Do nothing with any env."""
