"""Who worked on a run and when, by its leases and marks: one span for each process that held one.

And how jobs ended that did not finish their shards: at a walltime, with their node, out of memory. Only a scheduler
knows some of it, and it forgets: what it said at a retry stands in the run's events; of later attempts it is asked now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.layout import DONE, FOLDER, MARK, PLAN, Layout, Plan
from espnet3.parallel.detached.looking.status import run_status
from espnet3.parallel.detached.marks import LossFile, read_mark
from espnet3.parallel.detached.states import JobState, disk_now, holder_lives, progress
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.ledger.files import read_or_none
from espnet3.parallel.ledger.merge import RECEIPT
from espnet3.parallel.ledger.split import DONE as SHARD_DONE
from espnet3.parallel.ledger.split import split_folders
from espnet3.parallel.views.sessions import events_of, seconds_of


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which one process held a lease.

    Attributes:
        name: What it worked on: "shard 3", or "driver".
        host: Where.
        pid: Its process there.
        begin: In seconds since the epoch.
        end: When it gave the lease back, or its last sign of life; of one that is alive, now.
        ended: "released" (it left in order), "died" (it gave no more sign of life) or "alive".
        items: Items that have an outcome by it and those before it; 0 where that is not recorded.
    """

    name: str
    host: str
    pid: int
    begin: float
    end: float
    ended: str
    items: int = 0

    @property
    def seconds(self) -> float:
        """How long it was."""
        return max(0.0, self.end - self.begin)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def driver_spans(run: Path) -> list[Span]:
    """Return the spans of the drivers of a run; a folder keeps the leases of the last ones."""
    return list(_spans(run, "driver", 0))


def shard_spans(run: Path) -> list[Span]:
    """Return the spans of the jobs of a detached run, by shard and then by time; empty where it has none."""
    plan = read_or_none(run / FOLDER / PLAN, Plan)
    if plan is None:
        return []
    layout = Layout(run)
    found: list[Span] = []
    for number in range(len(plan.get("bounds", [0])) - 1):
        folder = layout.shard(number)
        if folder.is_dir():
            found += _spans(folder, f"shard {number}", sum(progress(folder)), folder / DONE)
    return found


def losses_of(run: Path) -> int:
    """Return how many processes of detached jobs ended while they had items in progress."""
    if not (run / FOLDER).is_dir():
        return 0
    return sum(len(LossFile(folder).losses) for folder in sorted((run / FOLDER).glob("shard.*")))


def in_progress(folder: Path, items: Sequence[Any] | None) -> tuple[str, float]:
    """Return what a shard's worker is in by its mark, and since when in seconds since the epoch; "" for nothing."""
    mark = read_mark(folder)
    try:
        since = (folder / MARK).stat().st_mtime
    except OSError:
        return "", 0.0
    if mark.get("hook"):
        return str(mark["hook"]), since
    if mark.get("in_flight"):
        begin, end = mark["in_flight"]
        first, last = ((_named(k, items)) for k in (begin, end - 1))
        return (f"item {first}" if end - begin == 1 else f"items {first} to {last}"), since
    return "", since


def _named(position: int, items: Sequence[Any] | None) -> str:
    """Return an item's index as text."""
    if items is None or position >= len(items):
        return f"at position {position}"
    return f"{items[position]!r:.60}"


def shard_ends(run: Path) -> list[tuple[float, int]]:
    """Return when shards with files of their own were finished, and how many items each has."""
    found = []
    for split in split_folders(run):
        mark = read_or_none(split / SHARD_DONE) or {}
        if "begin" in mark:
            found.append(((split / SHARD_DONE).stat().st_mtime, int(mark["end"]) - int(mark["begin"])))
    return sorted(found)


def _spans(folder: Path, name: str, items: int, done: Path | None = None) -> Iterator[Span]:
    """Yield the spans of a folder's leases; with its mark `done` a shard is over, though its job may not be yet."""
    numbers = sorted(
        int(file.name.split(".")[1])
        for file in folder.glob("lease.*.json")
        if file.name.split(".")[1].isdigit()
    )
    for number in numbers:
        file = folder / f"lease.{number}.json"
        held = read_or_none(file) or {}
        begin = seconds_of(held.get("since"))
        if begin is None:
            continue
        newest = number == numbers[-1]
        released = seconds_of(held.get("released"))
        now = disk_now(folder) if released is None and newest else 0
        if released is not None:
            end, how = released, "released"
        elif newest and done is not None and done.exists():
            end, how = done.stat().st_mtime, "released"
        elif newest and holder_lives(folder, now):
            end, how = now / 1e9, "alive"
        else:
            end, how = file.stat().st_mtime, "died"
        pid = held.get("pid")
        yield Span(
            name,
            str(held.get("host", "")),
            pid if isinstance(pid, int) else 0,
            begin,
            max(begin, end),
            how,
            items if newest else 0,
        )


@dataclass(frozen=True, slots=True)
class JobEnds:
    """Shards whose jobs ended in one way.

    Attributes:
        state: How, as `espnet3 status` calls it.
        shards: Their numbers.
        noticed: When a retry found them so, in seconds since the epoch; None: they are so now.
        sentence: What the state means.
    """

    state: str
    shards: tuple[int, ...]
    noticed: float | None
    sentence: str


def read_ends(run: Path) -> tuple[list[JobEnds], list[str]]:
    """Return how jobs of a run ended, in the order in which it was noticed, and why it is not known of those of now.

    The scheduler is not asked about a run that is merged, or has no detached jobs.
    """
    ends = [
        ends
        for event in events_of(run)
        if event.get("event") == "retried"
        for ends in _ends(event.get("ended"), seconds_of(event.get("time")))
    ]
    if not (run / FOLDER / PLAN).exists() or (run / RECEIPT).exists():
        return ends, []
    layout = Layout(run)
    try:
        status = run_status(layout, layout.plan())
    except (ParallelError, OSError) as error:  # a damaged list of jobs: the folder still says all the rest
        return ends, [f"how its jobs are now is not known here: {error}"]
    return [*ends, *_ends(status.ended_early(), None)], []


def _ends(found: Any, noticed: float | None) -> list[JobEnds]:
    """Return what was noticed at one moment; what a newer version may have written is passed over."""
    states = {state.value: state for state in JobState}
    return [
        JobEnds(name, tuple(shards), noticed, states[name].sentence)
        for name, shards in (found.items() if isinstance(found, dict) else ())
        if name in states and isinstance(shards, list)
    ]
