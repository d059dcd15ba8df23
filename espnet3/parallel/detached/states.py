"""The state of a shard, from the marks that its processes leave, and from its scheduler."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypedDict

from espnet3.parallel.detached.layout import DONE, ENDED, LOSSES, MARK, Done, Ended, InFlight, Layout, Plan
from espnet3.parallel.engine.blame import Loss
from espnet3.parallel.ledger.errors import FolderInUseError
from espnet3.parallel.ledger.files import open_to_write, read_or_none, write_json
from espnet3.parallel.ledger.lease import Lease, holder_lives, holder_of, is_alive
from espnet3.parallel.records import ProcessEnd

_WIDTH = 320  # bytes: each mark covers the one before in one write
_LOOK = 0.1  # seconds between two attempts at a lease
BEAT = 5.0  # seconds between two signs of life of a worker: a thousand of them share one disk
GRACE = 10.0  # seconds from the request to end to the kill


class Marks:
    """The marks of one shard, whose lease is held.

    If the mark of an earlier worker says that it died over items, that is added to the shard's losses.
    """

    def __init__(self, folder: Path, losses: LossFile) -> None:
        earlier = read_mark(folder)
        if _died_over_items(earlier):
            begin, end = earlier["in_flight"]
            losses.add(Loss(begin, end - begin, ProcessEnd(**earlier.get("end", {}))))
        self._mark: dict[str, Any] = {
            "in_flight": None,
            "ok": earlier.get("ok", 0),
            "failed": earlier.get("failed", 0),
            "job": job_name(os.getsid(0)),
            "pid": os.getpid(),
        }
        self._lock = threading.Lock()
        self._fd = open_to_write(folder / MARK, 0)
        self.note()  # a death is counted once
        os.ftruncate(self._fd, _WIDTH + 1)

    def note(self, **facts: Any) -> None:
        """Note fields of `InFlight`, in place of their earlier values."""
        with self._lock:
            self._mark.update(facts)
            if self._fd >= 0:
                os.pwrite(self._fd, json.dumps(self._mark).encode().ljust(_WIDTH) + b"\n", 0)

    def sync(self) -> None:
        """Have other hosts see the notes, by NFS too."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Note that nothing is in flight, and close the file."""
        self.note(in_flight=None, hook="")
        fd, self._fd = self._fd, -1
        os.close(fd)


def job_name(session: int) -> str:
    """Return a name for the processes of a session on this host: a job's own, and the child that does its work."""
    return f"{os.uname().nodename}/{session}"


def note_end(folder: Path, job: str, end: ProcessEnd) -> bool:
    """Add to a dead worker's mark how it ended; only the process that waited for it knows."""
    mark = read_mark(folder)
    if mark.get("job") != job or not (_died_over_items(mark) or mark.get("hook")):
        return False
    if "end" not in mark:  # a process closer to it has noted that already
        write_json(folder / MARK, {**mark, "end": asdict(end)})
    return True


def excuse_dead(folder: Path) -> None:
    """Note that a dead worker was killed on purpose, and that its mark blames no item."""
    mark = read_mark(folder)
    if _died_over_items(mark) or mark.get("hook"):
        write_json(folder / MARK, {**mark, "stopping": True})


def _died_over_items(mark: dict[str, Any]) -> bool:
    return bool(mark.get("in_flight")) and not mark.get("stopping")


def read_mark(folder: Path) -> dict[str, Any]:
    """Return a shard's mark; empty where there is none, or the host went down while it was written."""
    mark = read_or_none(folder / MARK, InFlight) or {}
    return mark if len(mark.get("in_flight") or (0, 0)) == 2 else {}


class _Held(TypedDict, total=False):
    losses: list[Loss]


class LossFile:
    """The losses of one shard, on disk: in which items its processes ended, or took too long.

    Written by the next process, or the one that kills; read by every attempt at the shard. What follows from them is
    in `engine.blame`.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / LOSSES
        found = read_or_none(self._file, _Held) or {}  # damaged: the host went down while it was written
        self.losses = [Loss.from_json(values) for values in found.get("losses", [])]

    def add(self, loss: Loss) -> None:
        """Add a loss."""
        self._write([*self.losses, loss])

    def forget(self, positions: Collection[int]) -> None:
        """Drop the losses of single items, which run as if for the first time.

        Items that were in progress with others stay suspects and go one by one.
        """
        kept = [loss for loss in self.losses if loss.items > 1 or loss.begin not in positions]
        if len(kept) < len(self.losses):
            self._write(kept)

    def _write(self, losses: list[Loss]) -> None:
        self.losses = losses
        write_json(self._file, {"losses": list(map(asdict, losses))})


class JobState(str, Enum):
    """The state of a shard's job; `sentence` says what it means."""

    sentence: str

    def __new__(cls, value: str, sentence: str = "") -> JobState:  # noqa: D102
        state = str.__new__(cls, value)
        state._value_, state.sentence = value, sentence
        return state

    NEW = "new", "its spec is written, and no job was submitted yet"
    PENDING = "pending", "no job has begun it: its own is queued, or another one takes it"
    RUNNING = "running", "a worker holds its lease and gives signs of life"
    DONE = "done", "every item has an outcome on disk"
    FAILED = "failed", "it stopped at an error; its log and `status` say which, and retry runs it again"
    UNFINISHED = "unfinished", "it stopped in order, at its walltime or on a signal; retry goes on there"
    NOT_STARTED = "not_started", "the run was stopped before its first item; retry runs it"
    CANCELLED = "cancelled", "it was cancelled; retry goes on where it was"
    PREEMPTED = "preempted", "another job took its place; retry goes on where it was"
    TIMEOUT = "timeout", "the scheduler ended it at its walltime; retry goes on where it was"
    OUT_OF_MEMORY = "out_of_memory", "it was killed because it took more memory than it had asked for"
    NODE_FAIL = "node_fail", "its node went down; retry goes on where it was"
    LOST = "lost", "its job is gone without a word: killed, or its host is down; retry goes on where it was"
    UNKNOWN = "unknown", "it gives no sign of life, and its scheduler does not say what became of it"

    @property
    def alive(self) -> bool:
        """True while its job may still write: waiting, running, or not known to be gone."""
        return self in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)


# the backend may know more: no sign of life, or an end after which it starts the job again
MAY_BE_QUEUED = (JobState.UNKNOWN, JobState.UNFINISHED, JobState.TIMEOUT)
Queue = dict[int, tuple[JobState, str]]  # what a backend says of shards: a state, and a remark on it


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
        return {**asdict(self), "state": self.state.value, "sentence": self.state.sentence}


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A detached run, as it is now."""

    run: str  # its folder
    env: str
    shards: tuple[ShardStatus, ...]
    merged: bool  # the merged files are there, and what the runner makes of the whole
    # other remarks: the scheduler does not answer, a source file has changed, ...
    notes: tuple[str, ...] = ()

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
        names = ("run", "env", "done", "alive", "merged", "items", "ok", "failed")
        return {
            **{name: getattr(self, name) for name in names},
            "states": {state.value: count for state, count in self.counts.items()},
            "notes": list(self.notes),
            "shards": [one.to_json() for one in self.shards],
        }


def shard_status(
    layout: Layout, plan: Plan, number: int, job_id: str, now_ns: int | None, queue: Queue | None
) -> ShardStatus:
    """Return the state of one shard: files first, what the scheduler says second."""
    folder = layout.shard(number)
    done = read_or_none(folder / DONE, Done)
    counts = read_mark(folder) if done is None else done
    ok, failed = counts.get("ok", 0), counts.get("failed", 0)

    def status(state: JobState, note: str = "") -> ShardStatus:
        return ShardStatus(number, state, plan.size(number), ok, failed, job_id, note)

    if done is not None:
        return status(JobState.DONE)
    if holder_lives(folder, now_ns):
        return status(JobState.RUNNING)
    ended = said_its_end(folder, early=True)
    found = (queue or {}).get(number, (JobState.UNKNOWN, ""))
    known = found[0] not in (JobState.LOST, JobState.UNKNOWN)
    if ended is not None and ended.get("early") and known:
        return status(*found)  # the scheduler knows better than a job that was killed while it said this
    if ended is not None and (queue is None or not found[0].alive):
        return status(JobState(ended["state"]), ended.get("why", ""))
    if not job_id:
        return status(JobState.NEW)
    state, note = found
    hook = "" if state.alive else counts.get("hook", "")
    return status(state, "; ".join(part for part in (note, f"it was in {hook}" if hook else "") if part))


def said_its_end(folder: Path, early: bool = False) -> dict[str, Any] | None:
    """Return the end that a shard's job has written; another one may follow an early end, which counts with `early`."""
    ended = read_or_none(folder / ENDED, Ended) or {}
    known = ended.get("state") in {state.value for state in JobState}
    return ended if known and (early or not ended.get("early")) else None


def acquire(lease: Lease, who: str, seconds: float, stop: Callable[[], bool] = lambda: False) -> None:
    """Take a lease, waiting so long for its holder to end, which sends no event."""
    end = time.monotonic() + seconds
    while True:
        try:
            return lease.acquire(who)
        except FolderInUseError:
            if time.monotonic() > end or stop():
                raise
        time.sleep(_LOOK)


def job_of(folder: Path) -> int | None:
    """Return the shard whose job has taken a shard's folder last; None where none has begun it."""
    _, _, number = str(holder_of(folder).get("run_id", "")).rpartition("shard ")
    return int(number) if number.isdecimal() else None


def is_free(folder: Path) -> bool:
    """Return whether a shard waits for any job of its submission: neither done nor ended nor begun by a job."""
    held = holder_of(folder)
    taken = held and not held.get("released")
    return not taken and not (folder / DONE).exists() and said_its_end(folder) is None


def living_pid(folder: Path) -> int | None:
    """Return the process that holds a folder's lease, if it runs on this host."""
    held = holder_of(folder)
    return held["pid"] if is_alive(held) and holder_lives(folder) else None
