"""Blame items when a worker process ends with items in progress: the rules of every kind of run.

    what was in progress: a Loss ──┐
    what is held against it so far ├──> after_loss ──> Fate: goes again, goes one by one, or has failed
    the run's Policy ──────────────┘                            └──> failure_of_item: the record, in words

These are pure functions. Their callers keep the charges: a run with pilots in its chunks, in memory; the driver of
shards with writers in a `History`, next to the mark in the shard's folder; detached jobs in a `History` that is read
from a file of the shard.

The rules:

- Several items in progress at once: all are suspects, and go one by one.
- One item in progress, and nothing else in that process: the death is charged to it. `Policy.poison_after` deaths
  make it poison; where something else may have killed the process, two at least.
- One item, beside the work of another run or thread: it becomes a suspect, without a charge. A suspect that dies with
  its process three times is poison, also in company.
- A call that took longer than `item_timeout`, or that raised what makes CUDA unusable in its process: the item goes
  again `Policy.max_retries` times, then it has failed.

The rules end: a stretch of several items is a suspect after one loss, and single items after the second; then each loss
is charged to an item, and a charge stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from espnet3.parallel.records import ItemFailure, Policy, ProcessEnd

_IF_KILLED = 2  # deaths that make an item poison, at least, where something else may have killed its process
_IN_COMPANY = 3  # the same for a suspect, where another run had an item in that process too
_UNKNOWN = ProcessEnd()
OUTSIDE = -1  # `Loss.begin` where the process was in no item but in a writer hook


@dataclass(frozen=True, slots=True)
class Charges:
    """Charges against an item, or against each item of a stretch."""

    suspect: bool = False  # may have ended a process: goes by itself, in a process that does nothing else
    deaths: int = 0  # processes that it is taken to have ended
    late: int = 0  # times it took longer than `item_timeout`


@dataclass(frozen=True, slots=True)
class Loss:
    """A process that ended while items were in progress, or a thread that was left behind in one."""

    begin: int  # position of the first item in progress; `OUTSIDE` where there was none
    items: int  # in progress
    end: ProcessEnd = _UNKNOWN
    alone: bool = True  # that process had nothing else in progress
    seen: bool = True  # a mark says what was in progress; else it is all that the process had been given
    seconds: float | None = None  # that the call had taken, where its process was killed for it
    stack: str = ""  # where the call was; "" where that is not known
    error: Sequence[str] | None = None  # that it was killed for: type, message and traceback
    hook: str = ""  # the writer hook that the process was in, where it was in no item

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Loss:
        """Return the loss whose fields these are, as `asdict` gives them."""
        return cls(**{**values, "end": ProcessEnd(**values.get("end", {}))})


class Fate(Enum):
    """The next step for the items that were in progress."""

    AGAIN = "goes again, with nothing new held against it"
    ONE_BY_ONE = "goes again one item at a time, in a process that does nothing else"
    APART = "goes again, each item by itself: they end a process also where no single one is in progress"
    FAILED = "has failed: it ended its processes, or was too late also when it was tried again"


def after_loss(charges: Charges, loss: Loss, policy: Policy) -> tuple[Fate, Charges]:
    """Judge a loss of a stretch of items with equal charges: their fate, and the charges from now on."""
    if loss.items == 0:
        return Fate.AGAIN, charges
    if loss.items > 1:
        # unseen, an item may have been the one each time; seen, the next loss will say more
        deaths = charges.deaths + (loss.seconds is None and not loss.seen)
        fate = Fate.APART if charges.suspect or not loss.seen else Fate.ONE_BY_ONE
        return fate, Charges(True, deaths, charges.late)
    if loss.seconds is not None:
        late = charges.late + 1
        fate = Fate.ONE_BY_ONE if late <= policy.max_retries else Fate.FAILED
        return fate, Charges(True, charges.deaths, late)
    if not loss.alone and not charges.suspect:
        return Fate.ONE_BY_ONE, replace(charges, suspect=True)
    deaths = charges.deaths + 1
    by_itself = loss.seen and loss.end.by_itself
    least = max(policy.poison_after, 1 if by_itself else _IF_KILLED, 1 if loss.alone else _IN_COMPANY)
    failed = deaths >= least or policy.poison_after == 0
    return Fate.FAILED if failed else Fate.ONE_BY_ONE, Charges(True, deaths, charges.late)


def failure_of_item(
    index: Any, loss: Loss, charges: Charges, policy: Policy, worker: str, place: str = ""
) -> ItemFailure:
    """Return the record of an item that has failed because of a loss."""
    if loss.error is not None:
        (kind, message, text), cause = loss.error, "error"
    elif loss.seconds is None:
        kind, cause, message, text = "WorkerDied", "poison", _death(loss, charges), ""
    else:
        limit, where = policy.item_timeout, place or f"worker {worker}"
        over = "its item_timeout" if limit is None else f"item_timeout = {limit:g} s"
        end = "process was killed" if loss.end.signal is not None else "thread was left behind"
        message = f"it took longer than {over} on {where}, whose {end} after {loss.seconds:.1f} s"
        kind, cause = "TimeoutError", "timeout"
        text = f"It was here:\n{loss.stack}" if loss.stack else ""
    attempts = charges.deaths + charges.late
    return ItemFailure(index, kind, message, text, attempts, worker, cause, loss.seconds)


def _death(loss: Loss, charges: Charges) -> str:
    n = charges.deaths
    nth = f"{n}{'th' if n % 100 in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"
    count = f"; this is the {nth} worker lost" if n > 1 else ""
    if loss.begin == OUTSIDE:
        hook = loss.hook or "a writer hook"
        where, lost = f" in {hook}, with no item in progress", " in it"
    else:
        where, lost = ", with no other item in progress", " to this item"
    advice = f". What to do: {loss.end.advice}" if loss.end.advice else ""
    return f"its worker process {loss.end}{where}{count and count + lost}{advice}"


class History:
    """The losses of one shard, in order, and their consequences for each position."""

    def __init__(self, policy: Policy, losses: Iterable[Loss] = ()) -> None:
        self.losses: list[Loss] = []
        self.suspects: dict[int, Charges] = {}  # positions that go one by one
        self.failed: dict[int, Loss] = {}  # positions that do not go again
        self._policy = policy
        for loss in losses:
            self.add(loss)

    def add(self, loss: Loss) -> Fate:
        """Note a loss, and return the fate of its items."""
        fate = Fate.AGAIN
        self.losses.append(loss)
        for position in range(loss.begin, loss.begin + loss.items):
            before = self.suspects.get(position, Charges())
            fate, self.suspects[position] = after_loss(before, loss, self._policy)
            if fate is Fate.FAILED:
                self.failed[position] = loss
        return fate

    def failure(self, position: int, index: Any, worker: str, place: str = "") -> ItemFailure:
        """Return the record of a position that does not go again; the arguments are those of `failure_of_item`."""
        charges, loss = self.suspects[position], self.failed[position]
        return failure_of_item(index, loss, charges, self._policy, worker, place)
