"""The past of a run as its folder tells it: sessions, leases, when items came in, and how jobs ended."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.layout import DONE, FOLDER, PLAN, Layout, Plan
from espnet3.parallel.detached.looking.status import run_status
from espnet3.parallel.detached.marks import LossFile
from espnet3.parallel.detached.states import JobState, disk_now, holder_lives
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.ledger.files import open_plain, read_or_none
from espnet3.parallel.ledger.merge import RECEIPT
from espnet3.parallel.ledger.session import EVENTS

_MOST_REPAIRS = 20  # sentences that are kept of a session: a disk that fails writes thousands


@dataclass(slots=True)
class Session:
    """One call that opened the run's folder, in seconds since the epoch."""

    begin: float
    resumed: bool
    ok_before: int  # items that had a result when it began
    failed_before: int
    ended: str = ""  # "computed", "submitted" to detached jobs, "stopped", "merged" where it did no more; "": not noted
    error: str = ""  # type and message of the error that stopped it
    figures: dict[str, Any] = field(default_factory=dict)  # its `RunSummary`, of one that "computed"
    repaired: list[str] = field(default_factory=list)  # damage that it found, and the repair

    def figure(self, name: str) -> float:
        """Return one of the figures; 0 where it is not recorded."""
        return float(self.figures.get(name, 0.0))


def read_sessions(run: Path) -> list[Session]:
    """Return the sessions of a run's folder in their order; a damaged line of its events is passed over."""
    sessions: list[Session] = []
    repairs: list[str] = []  # of a folder that is being opened: they are noted before the session itself
    for event in events_of(run):
        begin, kind = seconds_of(event.pop("time", None)), str(event.pop("event", ""))
        if begin is None:
            continue
        if kind == "repaired":
            repairs.append(str(event.get("what")))
            continue
        if kind in ("started", "resumed") or not sessions:
            have = (_number(event, "ok"), _number(event, "failed"))
            sessions.append(Session(begin, kind == "resumed", *have))
        last = sessions[-1]
        last.repaired, repairs = [*last.repaired, *repairs][:_MOST_REPAIRS], []
        _take(last, kind, event)
    return sessions


def _take(session: Session, kind: str, facts: dict[str, Any]) -> None:
    if kind == "computed":
        session.figures = facts
    elif kind == "stopped":
        session.error = f"{facts.get('error')}: {facts.get('message')}"
    if kind in ("computed", "submitted", "stopped"):
        session.ended = kind
    elif kind not in ("started", "resumed", "missed_beats"):
        session.ended = session.ended or kind


def seconds_of(text: Any) -> float | None:
    """Return a time in ISO form as seconds since the epoch; None for anything else."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None


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
    pid: str
    begin: float  # in seconds since the epoch
    end: float  # the return of the lease, or the last sign of life; now for a living process
    ended: str  # "released" (it left in order), "died" (it gave no more sign of life) or "alive"

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


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
            found += spans(folder, f"shard {number}", folder / DONE)
    return found


def losses_of(run: Path) -> int:
    """Return how many processes of detached jobs ended while they had items in progress."""
    return sum(len(LossFile(folder).losses) for folder in (run / FOLDER).glob("shard.*"))


def spans(folder: Path, name: str, done: Path | None = None) -> Iterator[Span]:
    """Yield the spans of a folder's last leases; the mark `done` ends a shard, even if its job lives on."""
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
        yield Span(name, str(held.get("host")), str(held.get("pid")), begin, max(begin, end), how)


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
