"""What a step calls and what it leaves: a function bound to its env, a block of outcomes, and results as lines."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from espnet3.parallel.engine.blame import Loss
from espnet3.parallel.engine.exceptions import describe_error, failure_of, may_be_cudas
from espnet3.parallel.errors import BatchLengthError
from espnet3.parallel.messages import brief, counted
from espnet3.parallel.records import ItemFailure, Policy
from espnet3.parallel.timing.recorder import ItemTimes

# torch.OutOfMemoryError and cupy's, tensorflow's
_NO_MEMORY = {"OutOfMemoryError", "ResourceExhaustedError"}
# older torch, and its allocator of host memory; XLA; numba
_WORDS = ("out of memory", "can't allocate memory", "RESOURCE_EXHAUSTED", "CUDA_ERROR_OUT_OF_MEMORY")


class WrongBatch(Exception):  # noqa: N818  never seen outside: it marks the error in it
    """Carries the error of a `batch_forward` that returned another number of results, which is no item's fault."""

    def __init__(self, mistake: BatchLengthError) -> None:
        super().__init__(mistake)
        self.mistake = mistake


@dataclass(slots=True)
class Call:
    """The function called per item, bound to its env; the same for all chunks of a run in one process."""

    one: Callable[[Any], Any]
    many: Callable[[list[Any]], Any] | None = None  # takes a list of items and returns as many results
    most: int = sys.maxsize  # items of a batch that fit into this process's memory, as far as is known

    def batch(self, items: list[Any]) -> list[Any]:
        """Call `many`, and check the number of its results."""
        assert self.many is not None
        results = self.many(items)
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


def is_too_large(error: BaseException, policy: Policy) -> bool:
    """Return whether a batch ran out of memory, and may be halved; with a seed, batches are of one item."""
    if not policy.split_batches or policy.seed is not None:
        return False
    if isinstance(error, MemoryError) or _NO_MEMORY & {kind.__name__ for kind in type(error).__mro__}:
        return True
    return may_be_cudas(error) and any(word in describe_error(error)[1] for word in _WORDS)


def give_memory_back(error: BaseException) -> None:
    """Free what a batch held that was too large."""
    traceback.clear_frames(error.__traceback__)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


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
