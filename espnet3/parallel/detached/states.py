"""The state of a shard, from its files and its scheduler, and how far it is."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.layout import DONE, ENDED, Done, Ended, Layout, Plan
from espnet3.parallel.detached.marks import read_mark
from espnet3.parallel.ledger.errors import FolderInUseError
from espnet3.parallel.ledger.files import read_or_none
from espnet3.parallel.ledger.lease import Lease, is_alive, is_copied

BEAT = 5.0  # seconds between two signs of life of a worker: a thousand of them share one disk
GRACE = 10.0  # seconds from the request to end to the kill
STALE = 30.0  # seconds of silence after which a worker of another host counts as gone


class JobState(str, Enum):
    """The state of a shard's job; `sentence` says what it means."""

    NEW = "new"
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    UNFINISHED = "unfinished"
    NOT_STARTED = "not_started"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_FAIL = "node_fail"
    LOST = "lost"
    UNKNOWN = "unknown"

    @property
    def sentence(self) -> str:
        """The meaning of the state, in a sentence."""
        return _SENTENCES[self]

    @property
    def alive(self) -> bool:
        """True while its job may still write: waiting, running, or not known to be gone."""
        return self in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)


_SENTENCES = {
    JobState.NEW: "its spec is written, and no job was submitted yet",
    JobState.PENDING: "its job is queued and has not started",
    JobState.RUNNING: "a worker holds its lease and gives signs of life",
    JobState.DONE: "every item has an outcome on disk",
    JobState.FAILED: "it stopped at an error; its log and `status` say which, and retry runs it again",
    JobState.UNFINISHED: "it ended in order before its last item, at its walltime or on a signal; retry goes on there",
    JobState.NOT_STARTED: "the run was stopped before its first item; retry runs it",
    JobState.CANCELLED: "it was cancelled; retry goes on where it was",
    JobState.PREEMPTED: "another job took its place; retry goes on where it was",
    JobState.TIMEOUT: "the scheduler ended it at its walltime; retry goes on where it was",
    JobState.OUT_OF_MEMORY: "it was killed because it took more memory than it had asked for",
    JobState.NODE_FAIL: "its node went down; retry goes on where it was",
    JobState.LOST: "its job is gone without a word: killed, or its host is down; retry goes on where it was",
    JobState.UNKNOWN: "it gives no sign of life, and its scheduler does not say what became of it",
}


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard, as it is now."""

    shard: int
    state: JobState
    items: int
    ok: int  # items with a result
    failed: int  # items with a failure
    job_id: str  # its job, as the scheduler calls it
    note: str = ""  # its end in words, or the scheduler's comment

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data, the state with its sentence."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "state": self.state.value, "sentence": self.state.sentence}


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A detached run, as it is now."""

    run: str  # its folder
    env: str
    shards: tuple[ShardStatus, ...]
    merged: bool  # the merged files are there
    notes: tuple[
        str, ...
    ] = ()  # other remarks: the scheduler does not answer, a source file has changed, ...

    @property
    def counts(self) -> dict[JobState, int]:
        """The number of shards in each state."""
        return dict(Counter(shard.state for shard in self.shards))

    @property
    def items(self) -> int:
        """Items of the run."""
        return sum(shard.items for shard in self.shards)

    @property
    def ok(self) -> int:
        """Items with a result."""
        return sum(shard.ok for shard in self.shards)

    @property
    def failed(self) -> int:
        """Items with a failure."""
        return sum(shard.failed for shard in self.shards)

    @property
    def done(self) -> bool:
        """True once every shard is done."""
        return all(shard.state is JobState.DONE for shard in self.shards)

    @property
    def alive(self) -> bool:
        """True while a job may still write."""
        return any(shard.state.alive for shard in self.shards)

    def ended_early(self) -> dict[str, list[int]]:
        """Return the shards whose jobs have ended before their last item, by their state."""
        found: dict[str, list[int]] = {}
        for shard in self.shards:
            if not shard.state.alive and shard.state not in (JobState.NEW, JobState.DONE):
                found.setdefault(shard.state.value, []).append(shard.shard)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain JSON data."""
        plain = {
            name: getattr(self, name)
            for name in ("run", "env", "done", "alive", "merged", "items", "ok", "failed")
        }
        states = {state.value: count for state, count in self.counts.items()}
        return {
            **plain,
            "states": states,
            "notes": list(self.notes),
            "shards": [one.to_json() for one in self.shards],
        }


def shard_status(
    layout: Layout,
    plan: Plan,
    number: int,
    job_id: str,
    now_ns: int,
    queue: Mapping[int, tuple[JobState, str]] | None,
) -> ShardStatus:
    """Return the state of one shard: files first, what the scheduler says second."""
    folder = layout.shard(number)
    ok, failed = progress(folder)
    items = plan.size(number)

    def status(state: JobState, note: str = "") -> ShardStatus:
        return ShardStatus(number, state, items, ok, failed, job_id, note)

    done = read_or_none(folder / DONE, Done)
    if done is not None:
        return ShardStatus(number, JobState.DONE, items, done.get("ok", 0), done.get("failed", 0), job_id)
    if holder_lives(folder, now_ns):
        return status(JobState.RUNNING)
    ended = _end(folder)
    found = (queue or {}).get(number, (JobState.UNKNOWN, ""))
    known = found[0] not in (JobState.LOST, JobState.UNKNOWN)
    if ended is not None and ended.get("early") and known:
        return status(*found)  # the scheduler knows better than a job that was killed while it said this
    if ended is not None and (queue is None or not found[0].alive):
        return status(JobState(ended["state"]), ended.get("why", ""))
    if not job_id:
        return status(JobState.NEW)
    state, note = found
    hook = "" if state.alive else read_mark(folder).get("hook", "")
    return status(state, "; ".join(part for part in (note, f"it was in {hook}" if hook else "") if part))


def _end(folder: Path) -> dict[str, Any] | None:
    """Return the end that a shard's job wrote down; None without one, or for a damaged one."""
    ended = read_or_none(folder / ENDED, Ended)
    return ended if ended is not None and ended.get("state") in {state.value for state in JobState} else None


def said_its_end(folder: Path) -> bool:
    """Return whether a shard's job has written its end; an early end does not count, as another one may follow."""
    ended = _end(folder)
    return ended is not None and not ended.get("early")


def progress(folder: Path) -> tuple[int, int]:
    """Return how many items of a shard have a result and a failure, by its worker's last mark."""
    mark = read_mark(folder)
    return mark.get("ok", 0), mark.get("failed", 0)


def acquire(
    lease: Lease, who: str, seconds: float, look: float, stop: Callable[[], bool] = lambda: False
) -> None:
    """Take a lease, waiting so long for its holder to end, which sends no event."""
    end = time.monotonic() + seconds
    while True:
        try:
            return lease.acquire(who)
        except FolderInUseError:
            if time.monotonic() > end or stop():
                raise
        time.sleep(look)


def holder_lives(folder: Path, now_ns: int, stale: float = STALE) -> bool:
    """Return whether a folder's lease is held by a process that gives signs of life, without waiting."""
    newest, held = _newest_lease(folder)
    if newest is None or held is None or held.get("released") or is_copied(folder, held):
        return False
    alive = is_alive(held)
    if alive is not None:
        return alive
    try:
        return abs(now_ns - newest.stat().st_mtime_ns) < stale * 1e9
    except FileNotFoundError:
        return False


def living_pid(folder: Path) -> int | None:
    """Return the process that holds a folder's lease, if it runs on this host."""
    held = holder_of(folder)
    if held is None or held.get("released") or is_copied(folder, held):
        return None
    return held["pid"] if is_alive(held) else None


def holder_of(folder: Path) -> dict[str, Any] | None:
    """Return the facts in a folder's newest lease about its holder, living or not; None without a lease."""
    return _newest_lease(folder)[1]


def _newest_lease(folder: Path) -> tuple[Path | None, dict[str, Any] | None]:
    newest, number = None, 0
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return None, None
    for name in names:
        parts = name.split(".")
        if len(parts) == 3 and parts[0] == "lease" and parts[1].isdigit() and int(parts[1]) > number:
            newest, number = folder / name, int(parts[1])
    return newest, None if newest is None else read_or_none(newest)


def disk_now(folder: Path) -> int:
    """Return the time in nanoseconds by the clock of a folder's disk, or this host's where it is read-only."""
    probe = folder / f".now.{uuid.uuid4().hex}.tmp"
    try:
        probe.touch(0o600)
    except OSError:
        return time.time_ns()
    try:
        return probe.stat().st_mtime_ns
    finally:
        probe.unlink(missing_ok=True)
