"""Run a step, item by item or batch by batch; settle items whose step has raised.

A batch that was too large goes in halves, others one by one, with retries.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from espnet3.parallel.engine.blame import Loss
from espnet3.parallel.engine.exceptions import describe_error, failure_of, may_be_cudas, spoilt_cuda
from espnet3.parallel.engine.watch import Feed, Watch
from espnet3.parallel.errors import BatchLengthError, add_note
from espnet3.parallel.messages import brief, counted
from espnet3.parallel.records import ItemFailure, Policy
from espnet3.parallel.timing.recorder import ItemTimes

# torch.OutOfMemoryError and cupy's, tensorflow's
_NO_MEMORY = {"OutOfMemoryError", "ResourceExhaustedError"}
# older torch, and its allocator of host memory; XLA; numba
_WORDS = ("out of memory", "can't allocate memory", "RESOURCE_EXHAUSTED", "CUDA_ERROR_OUT_OF_MEMORY")


Step = Callable[[Sequence[Any], list[Any]], None]


@dataclass(slots=True)
class Fit:
    """The size of the batches that fit into this process's memory; None: no batch has been too large."""

    size: int | None = None

    def of(self, wanted: int) -> int:
        """Return the size that batches have."""
        return wanted if self.size is None else min(wanted, self.size)


@dataclass(frozen=True, slots=True)
class Call:
    """The function called per item, bound to its env."""

    one: Callable[[Any], Any]
    many: Callable[[list[Any]], Any] | None = None  # takes a list of items and returns as many results
    fit: Fit = field(default_factory=Fit)  # the same for all chunks of a run in one process


def stepper(call: Call, policy: Policy, seed_for: Any, feed: Feed, watch: Watch | None) -> Step:
    """Make the function that runs a step: it appends one result per item, and ends early where its feed is ended."""
    size = policy.batch_size if call.many is not None else None

    def plain(part: Sequence[Any], out: list[Any]) -> None:
        one, append, had = call.one, out.append, len(out)
        # not `extend(map(...))`, which is no faster and takes an item's StopIteration for its own end
        for item in feed.of(part):
            append(one(item))
        if feed.ended and len(out) == had:  # before its first item: a step runs one at least
            append(one(part[0]))

    def batches(part: Sequence[Any], out: list[Any]) -> None:
        assert size is not None
        fitting = call.fit.of(size)
        for at in feed.of(range(0, len(part), fitting)):
            items = list(part[at : at + fitting])
            if watch is not None:
                watch.batch(len(items))
            out.extend(_batch(call, items))

    def seeded_items(part: Sequence[Any], out: list[Any]) -> None:
        # a batch of one where the runner has batches: what an item draws must not depend on
        # its neighbours, or on how many of them there are
        for item in feed.of(part):
            seed_for(item)
            out.extend(_batch(call, [item]) if size else [call.one(item)])

    if seed_for is not None:
        return seeded_items
    return batches if size else plain


class WrongBatch(Exception):  # noqa: N818  never seen outside: it marks the error in it
    """Carries the error of a `batch_forward` that returned another number of results, which is no item's fault."""

    def __init__(self, mistake: BatchLengthError) -> None:
        super().__init__(mistake)
        self.mistake = mistake


def _batch(call: Call, items: list[Any]) -> list[Any]:
    assert call.many is not None
    results = call.many(items)
    if isinstance(results, Iterable) and not isinstance(results, (list, tuple, str, bytes, dict)):
        results = list(results)
    if not isinstance(results, (list, tuple)):
        got = type(results).__name__
    elif len(results) != len(items):
        got = counted(len(results), "result")
    else:
        return list(results)
    given = f"index ({brief(items[0])})" if len(items) == 1 else f"indices ({brief(items[0])}, ...)"
    wrong = f"batch_forward was given {len(items)} {given} and returned {got}"
    raise WrongBatch(BatchLengthError(f"{wrong}; it must return one result per index, in their order"))


@dataclass(slots=True)
class Block:
    """The outcomes of the first `len(values)` items of a chunk."""

    values: list[Any] = field(default_factory=list)  # in order; a failed item's place holds its `ItemFailure`
    failed: list[int] = field(default_factory=list)  # positions of those
    retries: int = 0
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of all threads of this process
    error: BaseException | None = None  # of the item after the last value, where the run must stop at it
    stop: ItemFailure | None = None  # its record; None where `error` is the runner's own mistake
    step: int = 1  # items that a step held at the end
    loss: Loss | None = None  # of a worker, that the only item here has failed by
    halved: int = 0  # times a batch did not fit into memory
    steps: list[tuple[int, float]] = field(default_factory=list)  # items and seconds of each
    worker: str = ""
    times: ItemTimes | None = None  # the steps summed up, for a run folder

    def take_error(self) -> BaseException:
        """Return `error` and keep it no longer: it leads to frames that hold this block."""
        error, self.error = self.error, None
        assert error is not None
        return error


def is_the_runners(error: BaseException, block: Block) -> bool:
    """Return whether an exception is the runner's own mistake or the user's Ctrl-C, and not its item's.

    Ctrl-C reaches main threads alone; in any other thread a KeyboardInterrupt is the item's.
    """
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
    # not its BatchLengthError: a run inside an item raises that, or the user
    if isinstance(error, WrongBatch):
        block.error = error.mistake
        return True
    return False


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that failed: what it raised, and after how many seconds (an item's share of its step)."""

    error: BaseException
    seconds: float


def one_by_one(
    items: Sequence[Any], failed: Attempt | None, block: Block, do: Step, policy: Policy, worker: str
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
                    if note := spoilt_cuda(failed.error):  # `parallel_*` raise it as it is
                        add_note(failed.error, note)
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
            except BaseException as again:  # as in run_items
                if is_the_runners(again, block):
                    return False
                failed = Attempt(again, time.perf_counter() - begin)
        failed = None
    return True


def is_too_large(error: BaseException, policy: Policy) -> bool:
    """Return whether a batch ran out of memory, and may be halved; with a seed, batches are of one item."""
    if not policy.split_batches or policy.seed is not None:
        return False
    if isinstance(error, MemoryError) or _NO_MEMORY & {kind.__name__ for kind in type(error).__mro__}:
        return True
    return may_be_cudas(error) and any(word in describe_error(error)[1] for word in _WORDS)


def _give_memory_back(error: BaseException) -> None:
    traceback.clear_frames(error.__traceback__)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def in_halves(
    part: Sequence[Any], error: BaseException, block: Block, do: Step, policy: Policy, worker: str
) -> tuple[bool, int]:
    """Run a batch that did not fit into memory in smaller ones."""
    size, worked = len(part), 0
    too_large: BaseException | None = error
    while part:
        if too_large is not None:
            _give_memory_back(too_large)
            block.halved += 1
            size, too_large = -(-size // 2), None
        now = part[:size]
        begin = time.perf_counter()
        try:
            do(now, block.values)
            worked = max(worked, len(now))
        except BaseException as again:  # as in run_items
            if is_the_runners(again, block):
                return False, worked
            if len(now) > 1 and is_too_large(again, policy):
                too_large, size = again, len(now)
                continue
            first = Attempt(again, time.perf_counter() - begin) if len(now) == 1 else None
            if not one_by_one(now, first, block, do, policy, worker):
                return False, worked
        part = part[len(now) :]
    return True, worked


def to_lines(
    block: Block, positions: Sequence[int], items: Sequence[Any], policy: Policy, worker: str
) -> None:
    """Put a line in the place of each result of a block, and sum up its times; failures stay as they are.

    A result that JSON cannot hold is a failure of its item, with the cause "result"; trying again
    would give another one like it.
    """
    from espnet3.parallel.ledger.lines import encode_line  # 20 ms that a first result need not wait for

    block.times = ItemTimes.of_steps(block.steps)
    failed = set(block.failed)
    for k, value in enumerate(block.values):
        if k in failed:
            continue
        try:
            block.values[k] = encode_line(positions[k], items[k], value)
        except Exception as error:  # a value's class may raise anything while it is looked at
            failure = failure_of(error, items[k], 1, worker, cause="result")
            if policy.on_error == "raise":
                del block.values[k:]
                block.failed = [at for at in block.failed if at < k]
                block.error, block.stop = error, failure
                return
            block.failed.append(k)
            block.values[k] = failure
    block.failed.sort()
