"""All that a run's folder says about the run, as one record for a report."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.layout import DONE, FOLDER, PLAN, Layout, Plan
from espnet3.parallel.detached.looking.status import no_run, run_status
from espnet3.parallel.detached.states import JobState, LossFile, holder_lives
from espnet3.parallel.errors import ConfigError, ParallelError
from espnet3.parallel.ledger.files import NewLines, read_or_none
from espnet3.parallel.ledger.folder import EVENTS, read_run
from espnet3.parallel.ledger.lease import disk_now, lease_numbers
from espnet3.parallel.ledger.merge import RECEIPT
from espnet3.parallel.messages import masked
from espnet3.parallel.timing.reading import RunTimes, TimesReader
from espnet3.parallel.views.outcomes import FailureGroup, Outcomes, folder_status, merged_failures, slowest_of

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
    ran: int = 0  # items, by itself or by the jobs that it submitted

    def figure(self, name: str) -> float:
        """Return one of the figures; 0 where it is not recorded."""
        return float(self.figures.get(name, 0.0))


def read_sessions(run: Path) -> list[Session]:
    """Return the sessions of a run's folder in their order; a damaged line of its events is passed over."""
    sessions: list[Session] = []
    repairs: list[str] = []  # of a folder that is being opened: they are noted before the session itself
    for event in NewLines().records(run / EVENTS):
        begin, kind = seconds_of(event.pop("time", None)), str(event.pop("event", ""))
        if begin is None:
            continue
        if kind == "repaired":
            repairs.append(str(event.get("what")))
            continue
        if kind in ("started", "resumed", "retried") or not sessions:
            have = (_number(event, "ok"), _number(event, "failed"))
            sessions.append(Session(begin, kind != "started", *have))
        last = sessions[-1]
        last.repaired, repairs = [*last.repaired, *repairs][:_MOST_REPAIRS], []
        if kind == "computed":
            last.figures, last.ran = event, _number(event, "items")
        elif kind == "stopped":
            last.error = f"{event.get('error')}: {event.get('message')}"
        if kind in ("computed", "submitted", "stopped", "retried"):
            last.ended = "submitted" if kind == "retried" else kind
        elif kind not in ("started", "resumed", "missed_beats"):
            last.ended = last.ended or kind
    return sessions


def seconds_of(text: Any) -> float | None:
    """Return a time in ISO form as seconds since the epoch; None for anything else."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None


def _number(facts: dict[str, Any], name: str) -> int:
    value = facts.get(name, 0)
    return value if isinstance(value, int) else 0


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
    folders = enumerate(map(layout.shard, range(len(plan.get("bounds", [0])) - 1)))
    return [span for n, folder in folders for span in spans(folder, f"shard {n}", folder / DONE)]


def spans(folder: Path, name: str, done: Path | None = None) -> Iterator[Span]:
    """Yield the spans of a folder's last leases; the mark `done` ends a shard, even if its job lives on."""
    numbers = sorted(lease_numbers(folder)) if folder.is_dir() else []
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

    state: str  # as `espnet3-parallel status` calls it
    shards: tuple[int, ...]
    noticed: float | None  # when a retry found them so, in seconds since the epoch; None: they are so now
    sentence: str  # the meaning of the state


def read_ends(run: Path) -> tuple[list[JobEnds], list[str]]:
    """Return how jobs of a run ended, the earliest first, and a note if their present state is not known.

    The scheduler is not asked about a run that is merged, or has no detached jobs.
    """
    ends = [
        ends
        for event in NewLines().records(run / EVENTS)
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
    states = {state.value: state for state in JobState}
    return [
        JobEnds(name, tuple(shards), noticed, states[name].sentence)
        for name, shards in (found.items() if isinstance(found, dict) else ())
        if name in states and isinstance(shards, list)
    ]


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
    sampled: str  # a sentence on failures that were not read; "" for none
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
    exact: bool = True  # `ok` and `failed` are counts

    @property
    def left(self) -> int:
        """Items without an outcome."""
        return max(0, self.items - self.ok - self.failed)

    @property
    def computed(self) -> list[Session]:
        """The sessions that ended in order and computed something."""
        return [session for session in self.sessions if session.figure("items")]

    @property
    def stretches(self) -> list[tuple[float, float]]:
        """Begins and ends of work on it, in order; only a run that tells none has those of its drivers."""
        found = [(one.begin, one.end) for one in self.shards]
        found += [(one.begin, one.end) for one in self.times.stints]
        found += [(one.begin, one.begin + one.figure("seconds")) for one in self.computed]
        return sorted(found or [(one.begin, one.end) for one in self.drivers])

    @property
    def began(self) -> float:
        """When its first session or process began."""
        return min(
            [begin for begin, _ in self.stretches] + [one.begin for one in self.sessions] or [self.read]
        )

    @property
    def ended(self) -> float:
        """When the last work on it ended; of a run at work, when it was read."""
        ends = [self.began, *(end for _, end in self.stretches)]
        return self.read if self.state == "at work" else max(ends)

    @property
    def worked(self) -> float:
        """Seconds in which a process was at work on it."""
        total = until = 0.0
        for begin, end in self.stretches:
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total

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
    outcomes, times = Outcomes(run, said), TimesReader(run).look()
    counts, sampled = folder_status(run, outcomes), ""
    failures = merged_failures(run, counts.failed) if counts.merged else outcomes.failures
    found, unknown = read_ends(run) if ends else ([], [])
    for stint in times.stints:  # of jobs: they count in the session that had submitted them last
        begun = [one for one in sessions if one.begin <= stint.begin]
        if begun and begun[-1].ended == "submitted":
            begun[-1].ran += stint.items
    # the driver lives, or one of the jobs
    alive = holder_lives(run, disk_now(run)) or any(span.ended == "alive" for span in shards)
    complete = counts.merged or (not alive and counts.ok + counts.failed == items)
    if failures.unread:
        first = counts.failed - failures.unread
        sampled = f"{counts.failed:,} items failed: the causes are counted over the first {first:,} of them"
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
        driver=counts.driver,
        sampled=sampled,
        sessions=tuple(sessions),
        drivers=tuple(drivers),
        shards=tuple(shards),
        failures=tuple(failures.groups()),
        slowest=tuple(slowest_of(failures, times)),
        times=times,
        losses=sum(len(LossFile(folder).losses) for folder in (run / FOLDER).glob("shard.*")),
        ends=tuple(found),
        recorded={
            name: masked(said.get(name))
            for name in ("config", "seed", "policy", "origin", "packages", "history", "indices")
        },
        notes=tuple(notes),
    )
