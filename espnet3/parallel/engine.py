"""THE loop: every item of every run, wherever it runs, is called from `run_items`.

    items ──> [ step of items ] ──> call ──> values ──┐
                  ^        an exception: retry, then  │
                  │        an ItemFailure, or stop    │
                  └── clock: longer or shorter steps  │
                                                      v
    deadline passed, or told to stop ────────────>  Block (values so far; the tail is the caller's)

The clock is read between steps, not between items, and steps grow until one takes about a
thirty-second of the time budget: an empty function costs 0.2 µs an item, a clock 0.05 µs.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from espnet3.parallel.errors import BatchLengthError
from espnet3.parallel.records import ItemFailure, Policy
from espnet3.parallel.seeding import seeded

# random, numpy.random and torch are one state per process: seeded runs of its threads take turns
_SEED_LOCK = threading.RLock()  # re-entrant: an item may run a seeded run of its own
_INSIDE = threading.local()


@dataclass(slots=True)
class Block:
    """The outcomes of the first `len(values)` items of a run.

    Attributes:
        values: One result per item done, in order; a failed item's place holds its `ItemFailure`.
        failed: Positions in `values` that hold an `ItemFailure`.
        retries: Times an item was tried again.
        seconds: Time spent.
        error: The exception of the item after the last value, where the run must stop at it.
        stop: Its `ItemFailure`; None where `error` is not an item's but the runner's own mistake.
    """

    values: list[Any] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    retries: int = 0
    seconds: float = 0.0
    error: BaseException | None = None
    stop: ItemFailure | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """What is called per item, already bound to its env.

    Attributes:
        one: Takes one item and returns its result.
        many: Takes a list of items and returns as many results; None without `batch_forward`.
    """

    one: Callable[[Any], Any]
    many: Callable[[list[Any]], Any] | None = None


def describe_error(error: BaseException) -> tuple[str, str, str]:
    """Return an exception's type name, message and traceback text."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name, str(error), "".join(traceback.format_exception(kind, error, error.__traceback__))


def failure_of(
    error: BaseException,
    index: Any,
    attempts: int,
    worker: str,
    cause: str = "error",
    seconds: float | None = None,
) -> ItemFailure:
    """Make the record of a failed item from its exception."""
    name, message, text = describe_error(error)
    return ItemFailure(index, name, message, text, attempts, worker, cause, seconds)


def inside_item() -> bool:
    """Whether this thread is running items for a driver: what they call in turn runs right here."""
    return getattr(_INSIDE, "depth", 0) > 0


@contextmanager
def on_a_worker() -> Iterator[None]:
    """Mark this thread as one that runs items for a driver."""
    _INSIDE.depth = getattr(_INSIDE, "depth", 0) + 1
    try:
        yield
    finally:
        _INSIDE.depth -= 1


def never() -> bool:
    """The `interrupted` of a run that nothing interrupts."""
    return False


def run_items(
    items: Sequence[Any],
    call: Call,
    policy: Policy,
    worker: str,
    budget: float = float("inf"),
    interrupted: Callable[[], bool] = never,
) -> Block:
    """Run items in order until they are done, the budget is spent, or one stops the run.

    Args:
        items: The indices (or values) to run; sliced, never copied as a whole.
        call: What to call.
        policy: Errors, retries, seed and batch size.
        worker: Name for failure records.
        budget: Seconds after which to stop at the next step; the tail stays with the caller.
        interrupted: Asked between steps; True ends the run as the budget does.

    Returns:
        A `Block` with at least one outcome, unless `items` is empty or the first one stops the run.
    """
    block = Block()
    clock = time.perf_counter
    begin = last = clock()
    unit = policy.batch_size if call.many is not None and policy.batch_size else 1
    with _SEED_LOCK if policy.seed is not None else nullcontext(), seeded(policy.seed) as seed_for:
        do = _stepper(call, policy, seed_for)
        n, step, values = len(items), unit, block.values
        while (at := len(values)) < n:
            try:
                do(items[at : at + step], values)
            except KeyboardInterrupt:
                raise
            except BatchLengthError as error:
                block.error = error
                break
            except BaseException as error:  # SystemExit too: an item must not end its worker quietly
                # a batch that raised goes again one by one, so that only the guilty item pays
                end = min(len(values) + unit, n)
                # a batch of one, at a run's end or where there is a seed: it has been the item's own attempt
                alone = end - len(values) == 1 or seed_for is not None
                first = _Attempt(error, (clock() - last) / (len(values) - at + 1)) if alone else None
                if not _one_by_one(items[len(values) : end], first, block, do, policy, worker):
                    break
            now = clock()
            if now - begin > budget or (now - last > 1e-3 and interrupted()):
                break
            if now - last < budget / 32:
                step *= 2
            elif now - last > budget / 8:
                step = max(unit, step // 4 // unit * unit)
            last = now
    block.seconds = clock() - begin
    return block


Step = Callable[[Sequence[Any], list[Any]], None]


def _stepper(call: Call, policy: Policy, seed_for: Any) -> Step:
    """Return what runs a step: appends one result per item, and keeps them if one raises."""
    size = policy.batch_size if call.many is not None else None

    def plain(part: Sequence[Any], out: list[Any]) -> None:
        out.extend(map(call.one, part))

    def batches(part: Sequence[Any], out: list[Any]) -> None:
        assert size is not None
        for at in range(0, len(part), size):
            out.extend(_batch(call, list(part[at : at + size])))

    def seeded_items(part: Sequence[Any], out: list[Any]) -> None:
        # a batch of one where the runner has batches: what an item draws must not depend on
        # its neighbours, or on how many of them there are
        for item in part:
            seed_for(item)
            out.extend(_batch(call, [item]) if size else [call.one(item)])

    if seed_for is not None:
        return seeded_items
    return batches if size else plain


def _batch(call: Call, items: list[Any]) -> list[Any]:
    assert call.many is not None
    results = call.many(items)
    if isinstance(results, Iterable) and not isinstance(results, (list, tuple, str, bytes, dict)):
        results = list(results)
    if not isinstance(results, (list, tuple)) or len(results) != len(items):
        got = f"{len(results)} results" if isinstance(results, (list, tuple)) else type(results).__name__
        raise BatchLengthError(
            f"batch_forward was given {len(items)} indices ({items[0]!r} ...) and returned {got}; "
            "it must return one result per index, in their order"
        )
    return list(results)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An attempt that failed: what it raised, and after how many seconds (an item's share of its step)."""

    error: BaseException
    seconds: float


def _one_by_one(
    items: Sequence[Any], failed: _Attempt | None, block: Block, do: Step, policy: Policy, worker: str
) -> bool:
    """Settle items one at a time, with retries; False if one of them stops the run.

    `failed` is the first item's attempt just now; None if it was tried only within its batch.
    """
    for item in items:
        tried = 1 if failed is not None else 0
        while failed is not None or tried == 0:
            if tried > policy.max_retries:
                assert failed is not None
                failure = failure_of(failed.error, item, tried, worker, seconds=failed.seconds)
                if policy.on_error == "raise":
                    block.error, block.stop = failed.error, failure
                    return False
                block.failed.append(len(block.values))
                block.values.append(failure)
                break
            block.retries += bool(tried)
            tried += 1
            begin = time.perf_counter()
            try:
                do([item], block.values)
                break
            except KeyboardInterrupt:
                raise
            except BatchLengthError as wrong:
                block.error = wrong
                return False
            except BaseException as again:  # as in run_items
                failed = _Attempt(again, time.perf_counter() - begin)
        failed = None
    return True
