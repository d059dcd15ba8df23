"""The state of a run at this moment: the facts of `status`, and the changes between looks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.layout import FOLDER, INDICES, MARK, PLAN, Layout
from espnet3.parallel.detached.looking.detached_run import DetachedRun
from espnet3.parallel.detached.looking.status import FolderStatus
from espnet3.parallel.detached.states import JobState, RunStatus, living_pid, read_mark
from espnet3.parallel.ledger.folder import RUN, read_run
from espnet3.parallel.ledger.lease import holder_of
from espnet3.parallel.timing.reading import RunTimes, TimesReader, shard_of, worker_name
from espnet3.parallel.views.facts import FailureGroup, Outcomes, failures_of, folder_status, seconds_of

_SPAN = 60.0  # seconds of the rate
_SLOW = 5
_MOST_INDICES = 32 << 20  # bytes of the list of them: about a second
_FINISHED = (JobState.DONE, JobState.NEW, JobState.NOT_STARTED)


@dataclass(frozen=True, slots=True)
class Worker:
    """A shard's job, or the driver of a run without jobs and each of its workers."""

    name: str
    state: str  # a job state, or "running"
    where: str  # host and process; "" where it has not started
    items: int  # of its shard; 0 of a driver's worker: it has none of its own
    done: int
    doing: str = ""
    since: float = 0.0  # when that began, in seconds since the epoch; 0 where nothing says so
    note: str = ""  # how it ended, or the scheduler's word
    memory: int = 0  # bytes that it and its children use; 0 where they are not on this machine
    peak: int = 0  # bytes that one process of it has used at most, as it has recorded


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """The state of a run at one look."""

    status: RunStatus | FolderStatus  # as of `espnet3-parallel status`
    rate: float  # items per second over the last minute of watching
    workers: tuple[Worker, ...]  # those that have something to do or to say come first
    failures: tuple[FailureGroup, ...]
    slow: tuple[tuple[float, str], ...]  # seconds and a name
    memory: int  # bytes that the run uses on this machine

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate; None where there is none."""
        left = self.status.items - self.status.ok - self.status.failed
        return left / self.rate if self.rate and left else None

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain data: those of `status --json` and the others beside them."""
        own = {name: getattr(self, name) for name in ("rate", "seconds_left", "slow", "memory")}
        lists = {name: [asdict(one) for one in getattr(self, name)] for name in ("workers", "failures")}
        return {**self.status.to_json(), **own, **lists}


class Rate:
    """Items per second, over the last minute of looks."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def __call__(self, now: float, done: int) -> float:
        """Take in how many items are done at a moment, and return the rate."""
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _SPAN:
            self._seen.popleft()
        begin, before = self._seen[0]
        return (done - before) / (now - begin) if done > before and now > begin else 0.0


class Watcher:
    """Looks at one run again and again; each look reads what is new."""

    def __init__(self, run: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self._clock = clock
        self._rate = Rate()
        self._detached = DetachedRun.open(run) if is_detached(run) else None
        self._outcomes = Outcomes(run, read_run(run) if (run / RUN).exists() else {})
        self._times = TimesReader(run)
        self._items: Sequence[Any] | None = None  # of a detached run, where there are few enough to be named
        if self._detached is not None and (run / FOLDER / INDICES).stat().st_size <= _MOST_INDICES:
            self._items = Layout(run).items()

    def look(self) -> LiveFacts:
        """Return how the run is now."""
        detached, outcomes = self._detached, self._outcomes
        status = folder_status(self.run, outcomes) if detached is None else detached.status()
        if not status.merged:
            outcomes.look()
        now = time.time()
        times = self._times.look()
        workers = self._jobs(status, times) if isinstance(status, RunStatus) else self._driver(status, times)
        failures = failures_of(outcomes, status)
        timed = {f"item {index}": seconds for seconds, index in failures.slowest_with(times)}
        seen = {  # in progress, each a single item and no step of several
            f"{one.doing} of {one.name}": now - one.since
            for one in workers
            if one.since and one.doing.startswith("item ") and one.doing not in timed
        }
        longest = ((seconds, name) for name, seconds in {**timed, **seen}.items())
        slow = sorted(longest, reverse=True)[:_SLOW]
        return LiveFacts(
            status,
            self._rate(self._clock(), status.ok + status.failed),
            tuple(workers),
            tuple(failures.groups()),
            tuple((round(seconds, 3), name) for seconds, name in slow),
            sum(worker.memory for worker in workers),
        )

    def _jobs(self, status: RunStatus, times: RunTimes) -> list[Worker]:
        layout, found = Layout(self.run), []
        by_memory = sorted(times.stints, key=lambda one: one.memory)
        peaks = {shard_of(one.worker): one.memory for one in by_memory}  # the largest comes last, and stays
        for shard in status.shards:
            folder = layout.shard(shard.shard)
            running = shard.state is JobState.RUNNING
            doing, since = in_progress(folder, self._items) if running else ("", 0.0)
            held = holder_of(folder) if running else {}
            name, done = f"shard {shard.shard}", shard.ok + shard.failed
            where = f"{held.get('host')}, process {held.get('pid')}" if held else shard.job_id
            memory = memory_of(living_pid(folder)) if running else 0, peaks.get(name, 0)
            state = shard.state.value
            found.append(Worker(name, state, where, shard.items, done, doing, since, shard.note, *memory))
        order = {JobState.RUNNING.value: 0, **{state.value: 2 for state in _FINISHED}}
        return sorted(found, key=lambda worker: order.get(worker.state, 1))

    def _driver(self, status: FolderStatus, times: RunTimes) -> list[Worker]:
        if not status.alive:
            return []
        held = holder_of(self.run)
        where = f"{held.get('host')}, process {held.get('pid')}"
        since = seconds_of(held.get("since")) or 0.0
        done, memory = status.ok + status.failed, memory_of(living_pid(self.run))
        driver = Worker("driver", "running", where, status.items, done, "this session", since, "", memory)
        return [driver, *workers_of(times, since)]


def in_progress(folder: Path, items: Sequence[Any] | None) -> tuple[str, float]:
    """Return the item or hook that a shard's worker marked, and its begin in seconds since the epoch; "" for none."""
    mark = read_mark(folder)
    try:
        since = (folder / MARK).stat().st_mtime
    except OSError:
        return "", 0.0
    if mark.get("hook"):
        return str(mark["hook"]), since
    if mark.get("in_flight"):
        begin, end = mark["in_flight"]
        first, last = (
            f"at position {at}" if items is None or at >= len(items) else f"{items[at]!r:.60}"
            for at in (begin, end - 1)
        )
        return (f"item {first}" if end - begin == 1 else f"items {first} to {last}"), since
    return "", since


def workers_of(times: RunTimes, since: float) -> list[Worker]:
    """Return the workers of a session that began at `since`, with how many items each has done by its last record."""
    done: dict[str, int] = {one.worker: 0 for one in times.arrivals if one.when >= since}
    peaks: dict[str, int] = {}
    for stint in times.stints:
        if stint.begin >= since:
            done[stint.worker] = done.get(stint.worker, 0) + stint.items
            peaks[stint.worker] = max(peaks.get(stint.worker, 0), stint.memory)
    lost = {worker: when for worker, when in times.losses if when >= since}
    came = {one.worker: one.when for one in times.arrivals}
    found = []
    for worker, items in sorted(done.items(), key=lambda one: (len(one[0]), one[0])):
        died = lost.get(worker, 0.0) > came.get(worker, 0.0)
        name = worker_name(worker)
        found.append(Worker(name, "died" if died else "running", "", 0, items, peak=peaks.get(worker, 0)))
    return found


def is_detached(run: Path) -> bool:
    """Return whether a run has jobs of its own."""
    return (run / FOLDER / PLAN).exists()


def memory_of(pid: int | None) -> int:
    """Return the memory that a process of this machine and its children use, in bytes; 0 where it is not here."""
    if pid is None:
        return 0
    import psutil  # here: nothing else needs it

    total = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):  # it has ended since: the others count
                total += one.memory_info().rss
    return total
