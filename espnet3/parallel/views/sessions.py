"""The past of a run as its folder tells it: sessions, leases, when items came in, and how jobs ended."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.layout import DONE, FOLDER, PLAN, Layout, Plan
from espnet3.parallel.detached.looking.status import run_status
from espnet3.parallel.detached.marks import LossFile
from espnet3.parallel.detached.states import JobState, disk_now, holder_lives, progress
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.ledger.files import open_plain, read_or_none
from espnet3.parallel.ledger.merge import RECEIPT
from espnet3.parallel.ledger.session import EVENTS

_MOST_REPAIRS = 20  # sentences that are kept of a session: a disk that fails writes thousands


@dataclass(frozen=True, slots=True)
class Session:
    """One call that opened the run's folder. Times are in seconds since the epoch."""

    begin: float
    end: float | None = None  # when its last event was noted; None where it noted none after it had begun
    resumed: bool = False
    ok_before: int = 0  # items that had a result when it began
    failed_before: int = 0
    ended: str = ""  # "computed", "submitted" to detached jobs, "stopped", "merged" where it did no more; "": not noted
    error: str = ""  # type and message of the error that stopped it
    figures: dict[str, Any] | None = None  # its `RunSummary`, of one that "computed"
    submitted: dict[str, Any] | None = None  # backend, shards and workers of the jobs it handed over
    repaired: tuple[str, ...] = ()  # damage that it found, and the repair
    missed_beats: int = 0  # signs of life that it could not write

    def figure(self, name: str) -> float:
        """Return one of the figures; 0 where it is not recorded."""
        return float((self.figures or {}).get(name, 0.0))


def read_sessions(run: Path) -> list[Session]:
    """Return the sessions of a run's folder in their order; a damaged line of its events is passed over."""
    sessions: list[Session] = []
    repairs: list[str] = []  # of a folder that is being opened: they are noted before the session itself
    for event in events_of(run):
        when, kind = seconds_of(event.get("time")), event.get("event")
        if when is None:
            continue
        if kind == "repaired":
            repairs.append(str(event.get("what")))
            continue
        if kind in ("started", "resumed") or not sessions:
            sessions.append(
                Session(
                    when,
                    resumed=kind == "resumed",
                    ok_before=_number(event, "ok"),
                    failed_before=_number(event, "failed"),
                )
            )
        last = sessions[-1]
        if repairs:
            last = replace(last, repaired=(*last.repaired, *repairs)[:_MOST_REPAIRS])
            repairs = []
        sessions[-1] = _told(last, str(kind), event, when)
    return sessions


def seconds_of(text: Any) -> float | None:
    """Return a time in ISO form as seconds since the epoch; None for anything else."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None


def _told(session: Session, kind: str, event: dict[str, Any], when: float) -> Session:
    """Return a session with one more event."""
    facts = {name: value for name, value in event.items() if name not in ("time", "event")}
    if kind in ("started", "resumed"):
        return session
    session = replace(session, end=when)
    if kind == "computed":
        return replace(session, ended=kind, figures=facts)
    if kind == "submitted":
        return replace(session, ended=kind, submitted=facts)
    if kind == "stopped":
        return replace(session, ended=kind, error=f"{facts.get('error')}: {facts.get('message')}")
    if kind == "missed_beats":
        return replace(session, missed_beats=_number(facts, "count"))
    return replace(session, ended=session.ended or kind)


def _number(facts: dict[str, Any], name: str) -> int:
    value = facts.get(name, 0)
    return value if isinstance(value, int) else 0


def events_of(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a run's folder in their order; a damaged line is passed over."""
    try:
        stream = open_plain(run / EVENTS)
    except OSError:  # not written yet, or not for this user
        return
    with stream:
        for line in stream:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):  # torn: its writer is at it, or was killed there
                continue
            if isinstance(event, dict):
                yield event


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which one process held a lease."""

    name: str  # "shard 3", or "driver"
    host: str
    pid: int
    begin: float  # in seconds since the epoch
    end: float  # the return of the lease, or the last sign of life; now for a living process
    ended: str  # "released" (it left in order), "died" (it gave no more sign of life) or "alive"
    items: int = 0  # with an outcome by it and those before it; 0 where that is not recorded

    @property
    def seconds(self) -> float:
        """Its length."""
        return max(0.0, self.end - self.begin)


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
    """Shards whose jobs ended in one way."""

    state: str  # as `espnet3 status` calls it
    shards: tuple[int, ...]
    noticed: float | None  # when a retry found them so, in seconds since the epoch; None: they are so now
    sentence: str  # the meaning of the state


def read_ends(run: Path) -> tuple[list[JobEnds], list[str]]:
    """Return how jobs of a run ended, the earliest first, and a note if their present state is not known.

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
    """Return the ends noticed at one moment, without those of a newer version."""
    states = {state.value: state for state in JobState}
    return [
        JobEnds(name, tuple(shards), noticed, states[name].sentence)
        for name, shards in (found.items() if isinstance(found, dict) else ())
        if name in states and isinstance(shards, list)
    ]
