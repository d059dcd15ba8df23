"""All that a run's folder says about the run: the outcomes of its items, and one record of everything for a report.

Outcomes are read from the run's splits; a second look goes on where the first one ended.
"""

from __future__ import annotations

import datetime
import heapq
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.layout import DONE, FOLDER, PLAN, Layout
from espnet3.parallel.detached.looking.status import UNFINISHED, FolderStatus, driver_of, run_status
from espnet3.parallel.detached.states import JobState, LossFile, RunStatus
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.ledger.files import NewLines, lines_of, read_or_none
from espnet3.parallel.ledger.folder import EVENTS, kind_of, read_run
from espnet3.parallel.ledger.lease import disk_now, holder_lives, leases
from espnet3.parallel.ledger.lines import checked, failure_of
from espnet3.parallel.ledger.merge import is_finished, read_receipt
from espnet3.parallel.ledger.split import ERRORS, FAILED, OK, RESULTS, SPEC, Counted, split_folders
from espnet3.parallel.messages import masked
from espnet3.parallel.records import ItemFailure
from espnet3.parallel.timing.reading import RunTimes, TimesReader

MOST_FAILURES = 200_000  # failed items that are told apart: a report is for people
SHOWN = 100  # failed items that are named
SLOWEST = 10
_MESSAGE = 200  # characters of a message that group failures
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?|'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed items that have the same cause, type and, but for numbers and quoted texts, message."""

    cause: str  # "error", "poison", "timeout" or "result"
    error_type: str
    message: str  # of the first one, like the fields below
    count: int
    indices: tuple[str, ...]  # of the first ones,
    messages: tuple[str, ...]  # with the beginning of what each said
    traceback: str
    worker: str
    attempts: int  # the most that one of them had

    @property
    def text(self) -> str:
        """The type and the first message, in one line: one of several, where the others said something else."""
        said = ", such as" if len(set(self.messages)) > 1 else ":"
        return f"{self.error_type}{said} {' '.join(self.message.split())}"


class Failures:
    """Failed items, grouped as they are read."""

    def __init__(self, state: bytearray | None = None) -> None:
        self.unread = 0
        self._state = state  # of all items: one that has a result by now has not failed
        self._slowest: list[tuple[float, str]] = []  # seconds and index
        self._first: dict[tuple[str, str, str], ItemFailure] = {}
        self._of: dict[int, tuple[tuple[str, str, str], str, int, str]] = {}

    def add(self, position: int, failure: ItemFailure) -> None:
        """Take in one; a later failure of the same position replaces it."""
        if len(self._of) >= MOST_FAILURES and position not in self._of:
            self.unread += 1
            return
        message = _VARYING.sub("…", " ".join(failure.message.split())[: 2 * _MESSAGE])[:_MESSAGE]
        key = failure.cause, failure.error_type, message
        self._first.setdefault(key, failure)
        shown = f"{failure.index!r:.80}"
        # those that come later are not named, unless many of the first ones were computed after all
        said = f"{' '.join(failure.message.split()):.{_MESSAGE}}" if len(self._of) < 10 * SHOWN else message
        self._of[position] = key, shown, failure.attempts, said
        if failure.seconds is not None:
            heapq.heappush(self._slowest, (failure.seconds, shown))
            if len(self._slowest) > SLOWEST:
                heapq.heappop(self._slowest)

    def slowest_with(self, times: RunTimes) -> list[tuple[float, str]]:
        """Return the slowest items: timed ones, and failed ones, whose worker may have died with them."""
        both = sorted([*((seconds, name) for seconds, _, name in times.slow), *self._slowest])
        longest = {name: seconds for seconds, name in both}  # its longest time comes last, and stays
        return sorted(((seconds, name) for name, seconds in longest.items()), reverse=True)[:SLOWEST]

    def groups(self) -> list[FailureGroup]:
        """Return the groups, the largest first."""
        members: dict[tuple[str, str, str], list[tuple[str, int, str]]] = {}
        for position, (key, index, attempts, said) in self._of.items():
            if self._state is None or self._state[position] == FAILED:
                members.setdefault(key, []).append((index, attempts, said))
        found = []
        for key, items in members.items():
            first, most = self._first[key], max(attempts for _, attempts, _ in items)
            indices, _, messages = zip(*items[:SHOWN], strict=True)
            facts = (first.message, len(items), indices, messages, first.traceback, first.worker, most)
            found.append(FailureGroup(first.cause, first.error_type, *facts))
        return sorted(found, key=lambda group: -group.count)


class Outcomes(Counted):
    """The outcomes that the splits of a run hold so far."""

    def __init__(self, run: Path, said: dict[str, Any]) -> None:
        self.run = run
        self.kind = kind_of(said.get("plan") or {})
        indices = said.get("indices") or {}
        self.state = bytearray(indices.get("count", 0))
        self.failures = Failures(self.state)
        self._sha256 = indices.get("sha256")
        self._lines = NewLines()
        self.own: dict[Path, bool] = {}  # whether a split is of this index list; others are not counted

    def look(self) -> None:
        """Read the lines since the last look."""
        for split in split_folders(self.run, self.kind):
            # a folder that was just made has no file yet: its spec is the first one
            if split not in self.own and any((split / name).exists() for name in (SPEC, RESULTS, ERRORS)):
                self.own[split] = (read_or_none(split / SPEC) or {}).get("indices") == self._sha256
            for name, state in ((ERRORS, FAILED), (RESULTS, OK)) if self.own.get(split) else ():
                for number, line in self._lines.of(split / name):
                    position = checked(line)
                    if 0 <= position < len(self.state) and self.state[position] != OK:
                        self.state[position] = state
                        if state == FAILED:
                            self.failures.add(position, failure_of(line, split / name, number))


def folder_status(path: Path, outcomes: Outcomes | None = None) -> FolderStatus:
    """Return how the run of a folder is; `outcomes` are those of an earlier look."""
    driver = driver_of(path)
    if merged := is_finished(path):
        receipt = read_receipt(path)
        failed = sum(receipt.failed.values())
        return FolderStatus(str(path), receipt.planned, receipt.ok, failed, bool(driver), True, driver)
    seen = outcomes or Outcomes(path, read_run(path))
    seen.look()
    counts = len(seen.state), seen.ok, seen.failed
    foreign = [split.name for split, own in seen.own.items() if not own]
    notes = [f"{name} is of another index list and is not counted" for name in foreign]
    if merged is False and not driver:
        notes.append(UNFINISHED)
    return FolderStatus(str(path), *counts, bool(driver), False, driver, tuple(notes))


def failures_of(outcomes: Outcomes, status: RunStatus | FolderStatus) -> Failures:
    """Return the failed items of a run; of a merged one those beyond `MOST_FAILURES` are only counted."""
    if not status.merged:
        return outcomes.failures
    found, file = Failures(), outcomes.run / ERRORS
    for number, _, line in islice(lines_of(file), MOST_FAILURES):
        found.add(number, failure_of(line, file, number))
    found.unread = max(0, status.failed - MOST_FAILURES)
    return found


# --- the record for a report ---


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
            have = event.get("ok", 0), event.get("failed", 0)
            sessions.append(Session(begin, kind != "started", *have))
        last = sessions[-1]
        last.repaired, repairs = [*last.repaired, *repairs], []
        if kind == "computed":
            last.figures, last.ran = event, event.get("items", 0)
        elif kind == "stopped":
            last.error = f"{event.get('error')}: {event.get('message')}"
        if kind in ("computed", "submitted", "stopped", "retried"):
            last.ended = "submitted" if kind == "retried" else kind
        elif kind not in ("started", "resumed"):
            last.ended = last.ended or kind
    return sessions


def seconds_of(text: Any) -> float | None:
    """Return a time in ISO form as seconds since the epoch; None for anything else."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which one process held a lease."""

    name: str  # "shard 3", or "driver"
    host: str
    pid: str
    begin: float  # in seconds since the epoch
    end: float  # the return of the lease, or the last sign of life; now for a living process
    ended: str  # "released" (it left in order), "died" (it gave no more sign of life) or "alive"


def spans(folder: Path, name: str, done: Path | None = None) -> Iterator[Span]:
    """Yield the spans of a folder's last leases; the mark `done` ends a shard, even if its job lives on."""
    for file in (found := leases(folder)):
        held = read_or_none(file) or {}
        begin = seconds_of(held.get("since"))
        if begin is None:
            continue
        newest = file == found[-1]
        released = seconds_of(held.get("released"))
        if released is not None:
            end, how = released, "released"
        elif newest and done is not None and done.exists():
            end, how = done.stat().st_mtime, "released"
        elif newest and holder_lives(folder):
            end, how = disk_now(folder) / 1e9, "alive"
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
        for ends in _ends(event.get("ended", {}), seconds_of(event.get("time")))
    ]
    if not (run / FOLDER / PLAN).exists() or is_finished(run):
        return ends, []
    layout = Layout(run)
    try:
        status = run_status(layout, layout.plan())
    except (ParallelError, OSError) as error:  # a damaged list of jobs: the folder still says all the rest
        return ends, [f"how its jobs are now is not known here: {error}"]
    return [*ends, *_ends(status.ended_early(), None)], []


def _ends(found: dict[str, list[int]], noticed: float | None) -> list[JobEnds]:
    return [JobEnds(name, tuple(found[name]), noticed, JobState(name).sentence) for name in found]


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
    said = read_run(run)
    sessions, drivers, jobs = read_sessions(run), spans(run, "driver"), split_folders(run / FOLDER, "shard")
    shards = [one for job in jobs for one in spans(job, job.name.replace(".", " "), job / DONE)]
    outcomes, times = Outcomes(run, said), TimesReader(run).look()
    counts, sampled = folder_status(run, outcomes), ""
    failures = failures_of(outcomes, counts)
    found, unknown = read_ends(run) if ends else ([], [])
    for stint in times.stints:  # of jobs: they count in the session that had submitted them last
        begun = [one for one in sessions if one.begin <= stint.begin]
        if begun and begun[-1].ended == "submitted":
            begun[-1].ran += stint.items
    # the driver lives, or one of the jobs
    alive = counts.alive or any(span.ended == "alive" for span in shards)
    # jobs merge nothing
    complete = counts.merged or (bool(shards) and not alive and counts.ok + counts.failed == counts.items)
    if failures.unread:
        first = counts.failed - failures.unread
        sampled = f"{counts.failed:,} items failed: the causes are counted over the first {first:,} of them"
    notes = [*counts.notes, *unknown]
    if complete and not counts.merged:
        notes.append("every item has an outcome; they are not merged yet")
    return RunFacts(
        **{name: getattr(counts, name) for name in ("run", "items", "ok", "failed", "driver")},
        runner=str((said.get("runner") or {}).get("path", "?")),
        provider=str((said.get("provider") or {}).get("path", "?")),
        read=time.time(),
        state="at work" if alive else "complete" if complete else "unfinished",
        sampled=sampled,
        sessions=tuple(sessions),
        drivers=tuple(drivers),
        shards=tuple(shards),
        failures=tuple(failures.groups()),
        slowest=tuple(failures.slowest_with(times)),
        times=times,
        losses=sum(len(LossFile(folder).losses) for folder in (run / FOLDER).glob("shard.*")),
        ends=tuple(found),
        recorded={
            name: masked(said.get(name))
            for name in ("config", "seed", "policy", "origin", "packages", "history", "indices")
        },
        notes=tuple(notes),
    )
