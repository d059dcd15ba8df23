"""All that a run's folder says about the run, as one record for a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.looking.status import driver_of, no_run
from espnet3.parallel.detached.states import disk_now, holder_lives
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.files import open_plain
from espnet3.parallel.ledger.folder import read_run
from espnet3.parallel.ledger.merge import RECEIPT, read_receipt
from espnet3.parallel.ledger.split import ERRORS, RESULTS, split_folders
from espnet3.parallel.messages import masked
from espnet3.parallel.timing.reading import RunTimes, TimesReader
from espnet3.parallel.views.outcomes import FailureGroup, Failures, Outcomes, merged_failures, slowest_of
from espnet3.parallel.views.sessions import (
    JobEnds,
    Session,
    Span,
    losses_of,
    read_ends,
    read_sessions,
    shard_spans,
    spans,
)

_MOST_BYTES = 512 << 20  # of outcomes that are read line by line: some seconds
_SAMPLE = 1 << 18  # bytes that are read of a larger file at a time, at so many places
_PLACES = 64


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run, as its folder shows it. Times are in seconds since the epoch."""

    run: str
    runner: str  # import path of its class
    provider: str
    read: float
    items: int
    ok: int
    failed: int
    state: str  # "complete", "at work" or "unfinished"
    driver: str  # at work; "" for none
    sampled: str  # a sentence on estimated or unread parts; "" for none
    sessions: tuple[Session, ...]
    drivers: tuple[Span, ...]
    shards: tuple[Span, ...]
    failures: tuple[FailureGroup, ...]
    slowest: tuple[tuple[float, str], ...]  # seconds and index
    losses: int  # processes of detached jobs that ended with items in progress
    ends: tuple[JobEnds, ...]
    recorded: dict[str, Any]  # the rest of run.json, secrets masked
    times: RunTimes = field(default_factory=RunTimes)
    notes: tuple[str, ...] = field(default=())
    exact: bool = True  # `ok` and `failed` are counted, and not estimated

    @property
    def left(self) -> int:
        """Items without an outcome."""
        return max(0, self.items - self.ok - self.failed)

    @property
    def computed(self) -> list[Session]:
        """The sessions that ended in order and computed something."""
        return [session for session in self.sessions if session.figure("items")]

    def total(self, figure: str) -> float:
        """Return the sum of a figure over the sessions."""
        return sum(session.figure(figure) for session in self.sessions)

    @property
    def retries(self) -> int:
        """Times an item was tried again, also in sessions that were killed and in detached jobs."""
        return max(int(self.total("retries")), self.times.retries)

    @property
    def deaths(self) -> int:
        """Processes that ended with items in progress, of drivers' workers and of detached jobs."""
        return max(int(self.total("deaths")), len(self.times.losses)) + self.losses


def read_facts(run: Path, *, ends: bool = True) -> RunFacts:
    """Read a run's folder."""
    try:
        said = read_run(run)
    except FileNotFoundError:
        raise ConfigError(no_run(run)) from None
    items = said.get("indices", {}).get("count", 0)
    sessions, drivers, shards = read_sessions(run), spans(run, "driver"), shard_spans(run)
    counts, times = _counts(run, said, items), TimesReader(run).look()
    found, unknown = read_ends(run) if ends else ([], [])
    # the driver lives, or one of the jobs
    alive = holder_lives(run, disk_now(run)) or any(span.ended == "alive" for span in shards)
    complete = counts.merged or (not alive and not counts.estimated and counts.ok + counts.failed == items)
    unread = ""
    if counts.failures.unread:
        first = counts.failed - counts.failures.unread
        unread = f"{counts.failed:,} items failed: the causes are counted over the first {first:,} of them"
    notes = [*counts.notes, *unknown]
    if complete and not counts.merged:
        notes.append("every item has an outcome; they are not merged yet")
    return RunFacts(
        run=str(run),
        runner=str((said.get("runner") or {}).get("path", "?")),
        provider=str((said.get("provider") or {}).get("path", "?")),
        read=time.time(),
        items=items,
        ok=counts.ok,
        failed=counts.failed,
        state="at work" if alive else "complete" if complete else "unfinished",
        driver=driver_of(run),
        sampled=counts.estimated or unread,
        sessions=tuple(sessions),
        drivers=tuple(drivers),
        shards=tuple(shards),
        failures=tuple(counts.failures.groups(counts.state)),
        slowest=tuple(slowest_of(counts.failures, times)),
        times=times,
        losses=losses_of(run),
        ends=tuple(found),
        recorded={
            name: masked(said.get(name))
            for name in ("config", "seed", "policy", "origin", "packages", "history", "indices")
        },
        notes=tuple(notes),
        exact=not counts.estimated,
    )


@dataclass(slots=True)
class _Counts:
    ok: int
    failed: int
    failures: Failures
    merged: bool = False
    state: bytearray | None = None  # by position; None: all failures count
    estimated: str = ""  # why `ok` and `failed` are estimates; "" where they are counted
    notes: Sequence[str] = ()


def _counts(run: Path, said: dict[str, Any], items: int) -> _Counts:
    """Count the outcomes: from the receipt, line by line, or by samples where that would take too long."""
    if (run / RECEIPT).exists():
        receipt = read_receipt(run)
        failed = sum(receipt.failed.values())
        return _Counts(receipt.ok, failed, merged_failures(run, failed), merged=True)
    outcomes = Outcomes(run, said)
    splits = split_folders(run, outcomes.kind)
    n_bytes = sum(_size(split / name) for split in splits for name in (RESULTS, ERRORS))
    if n_bytes > _MOST_BYTES:
        ok = min(items, sum(lines_estimated(split / RESULTS) for split in splits))
        failed = min(items - ok, sum(lines_estimated(split / ERRORS) for split in splits))
        outcomes.look_at_failures()
        why = (
            f"the outcomes are {n_bytes >> 20:,} MB and not merged yet: how many there are is estimated from "
            f"{_PLACES} samples of each file"
        )
        return _Counts(ok, failed, outcomes.failures, estimated=why)
    outcomes.look()
    notes = [f"{name} is of another index list and is not counted" for name in outcomes.foreign]
    return _Counts(outcomes.ok, outcomes.failed, outcomes.failures, state=outcomes.state, notes=notes)


def lines_estimated(file: Path) -> int:
    """Return about how many lines a file has, from samples spread over it."""
    size, seen, lines = _size(file), 0, 0
    if not size:
        return 0
    step = max(_SAMPLE, size // _PLACES)
    with open_plain(file) as stream:
        for at in range(0, size, step):
            stream.seek(at)
            part = stream.read(_SAMPLE)
            seen += len(part)
            lines += part.count(b"\n")
    return round(lines * size / seen) if seen else 0


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
