"""The same random numbers for the same item, whichever worker draws them.

`random`, numpy and torch are seeded before each item from (seed, index). A library that an item
imports later is seeded right after its import.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import ModuleType
from typing import Any

from espnet3.parallel.checks import loaded

# random, numpy.random and torch have one state per process
_TURNS = threading.RLock()  # re-entrant: an item may start a seeded run of its own
_SEEDERS: dict[str, Callable[[Any, int], Any]] = {
    "numpy": lambda numpy, value: numpy.random.seed(value & 0xFFFFFFFF),
    "torch": lambda torch, value: torch.manual_seed(value & 0x7FFFFFFFFFFFFFFF),
}


def item_seed(seed: int, index: Any) -> int:
    """Return a 64-bit seed from (seed, index) that depends on nothing else.

    The index counts by its content: neither by `hash()`, which differs between processes for strings, nor by `repr()`,
    which cuts long arrays, shows addresses, and gives a set in another order in each process.
    """
    if type(index).__module__ == "numpy" and hasattr(index, "item") and getattr(index, "shape", None) == ():
        index = index.item()  # a run folder takes numpy's numbers for Python's, and so does a job
    if type(index) is int:
        known = f"{index}"
    else:
        from espnet3.parallel.provenance.content import content_hash  # 5 ms of a worker's start

        known = content_hash(index, "the index")
    digest = hashlib.blake2b(f"{seed}\0{known}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def turn(seed: int | None) -> AbstractContextManager[Any]:
    """Return a block that one thread of a process at a time may be in; with no seed, any."""
    return nullcontext() if seed is None else _TURNS


def seed_all(value: int) -> None:
    """Seed `random`, and numpy and torch where they are loaded, with one 64-bit value."""
    random.seed(value)
    for name, seed in _SEEDERS.items():
        if sys.modules.get(name) is not None:
            seed(importlib.import_module(name), value)  # waits for another thread that is importing it


class _SeedAfterImport:
    value = 0

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        seed = _SEEDERS.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if seed is not None else None
        if seed is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            seed(module, self.value)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # this loader serves one import
        return spec


@contextmanager
def seeded(seed: int | None) -> Iterator[Any]:
    """Yield a function that seeds for one index; the caller's `random` state is put back after."""
    if seed is None:
        yield None
        return
    late = _SeedAfterImport()

    def seed_for(index: Any) -> None:
        late.value = item_seed(seed, index)
        seed_all(late.value)

    with ExitStack() as after:
        if (torch := loaded("torch")) is not None:
            after.callback(torch.set_rng_state, torch.get_rng_state())
        if (numpy := loaded("numpy")) is not None:
            after.callback(numpy.random.set_state, numpy.random.get_state())
        after.callback(random.setstate, random.getstate())
        sys.meta_path.insert(0, late)
        after.callback(sys.meta_path.remove, late)
        yield seed_for
