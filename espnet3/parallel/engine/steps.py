"""Run a step: call its items one by one, or batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from espnet3.parallel.engine.watch import Feed, Watch
from espnet3.parallel.errors import BatchLengthError
from espnet3.parallel.messages import brief, counted
from espnet3.parallel.records import Policy

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
