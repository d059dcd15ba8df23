"""Ask a scheduler about jobs: one listing, and questions about those that it leaves out.

    listing ──> listed, or ended with a word                       that is the answer
            └─> left out ──> the record's questions ──> listed, ended, no such job, or not known
                                                                       │
                      "no such job" and a minute without a sign of life: lost

    ended, without a word that it failed, and its files do not say so ──> a minute more: they may be late

A listing may be cut short, stale or empty, and proves the end of no job that it leaves out.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet3.parallel.backends import BACKENDS, load_cluster_class, row
from espnet3.parallel.backends.backend import asked
from espnet3.parallel.backends.scheduler import NO_SUCH_JOB, JobAnswer, Meaning, Scheduler, check_ids
from espnet3.parallel.detached.job_spec import job_environment
from espnet3.parallel.detached.layout import Layout, tail
from espnet3.parallel.detached.states import JobState, Queue, said_its_end
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.jobs.commands import Outputs, Said, answers, reasons, run
from espnet3.parallel.jobs.script import scheduler_of
from espnet3.parallel.ledger.files import read_json, read_record, write_json, writers
from espnet3.parallel.ledger.lease import disk_now

FOLDER = "scheduler"  # scripts, task lists, the arrays that were submitted, and what the scheduler prints
_PLACE = "place.json"
LATE_FILES = 60.0  # seconds for which NFS, as it is mounted by default, may hide what a job wrote at its end
SILENCE = 60.0  # seconds without a sign of life, after which "no such job" is believed: servers start, disks are late


@dataclass(frozen=True, slots=True)
class Submitted:
    """One submitted array, or one job that stands alone."""

    env: str  # the backend that took it
    jobs: dict[str, str]  # the id of each element, by its shard
    names: list[str] = field(default_factory=list)  # its possible names in the queue; none: not known
    output: str = ""  # where the scheduler writes what it prints, beside the run's own folder

    @property
    def whole(self) -> list[str]:
        """The arguments of the cancel command for all of it."""
        scheduler = scheduler_of(self.env)
        parts = [(element, *scheduler.parts_of(element)) for element in self.jobs.values()]
        whole = (scheduler.cancel.format(job=job) if index else element for element, job, index in parts)
        return list(dict.fromkeys(whole))

    @property
    def cancel(self) -> list[str]:
        """The command that cancels jobs, without their ids: the scheduler's, never one from a file."""
        cluster: Any = load_cluster_class(row(self.env))
        words = asked(row(self.env), {}, "cancel_command_extra") or []
        return [*shlex.split(cluster.job_cls.cancel_command), *map(str, words)]


def submitted(layout: Layout, env: str | None = None) -> list[Submitted]:
    """Return all arrays of a run in the order of their submission, or those of one backend."""
    files = sorted(layout.folder.glob(f"{FOLDER}/array.*.json"), key=lambda file: int(file.suffixes[-2][1:]))
    found: list[Submitted] = [read_record(file, Submitted, own=layout.own) for file in files]
    for array in found:
        scheduler_of(array.env)  # raises where the file names no batch scheduler
        check_ids(array.jobs)
    return [array for array in found if env in (None, array.env)]


def ids_of(arrays: list[Submitted]) -> dict[str, list[str]]:
    """Return all ids that a shard ever had, by the shard: the newest one last."""
    found: dict[str, list[str]] = {}
    for array in arrays:
        for shard, element in array.jobs.items():
            found.setdefault(shard, []).append(element)
    return found


def note_place(scheduler: Scheduler, folder: Path) -> None:
    """Note the variables that name the scheduler's cluster or server: a later process may have others."""
    place = {name: os.environ.get(name) for name in scheduler.place}
    write_json(folder / _PLACE, {**_place(folder), **place})


def _place(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
        return read_json(folder / _PLACE)
    return {}


def ask(command: list[str], folder: Path, start: Path | None = None, **more: Any) -> Said:
    """Run a command in `start`, else in the folder of a run's scripts, and return what it printed."""
    # compared alone: a file that others may have written must not choose what the scheduler's commands read
    noted = _place(folder)
    schedulers = [backend.scheduler for backend in BACKENDS.values() if backend.scheduler is not None]
    for name in [name for one in schedulers for name in one.place if name in noted]:  # not PATH, say
        if noted[name] != os.environ.get(name):
            fix = f"unset {name}" if noted[name] is None else f"set {name}={noted[name]!r}"
            raise ConfigError(
                f"{folder / _PLACE} says that the run was submitted to another cluster or server than what is asked "
                f"here: if that is right, {fix} here"
            )
    environment = {**job_environment(), "PWD": str(start or folder)}  # OAR reads the folder from PWD
    return run(command, cwd=start or folder, env=environment, **more)


def query(layout: Layout, jobs: dict[str, str]) -> Queue:
    """Return what the scheduler knows about silent shards, by shard."""
    env = layout.plan().env
    scheduler = scheduler_of(env)
    folder = layout.folder / FOLDER
    check_ids(jobs)
    arrays = submitted(layout, env)
    ever = ids_of(arrays)
    printed = Outputs(scheduler, [folder, *dict.fromkeys(Path(one.output) for one in arrays if one.output)])
    listing, known = answers(scheduler, lambda command: ask(command, folder), list(jobs.values()))
    if listing.failed and not any(known.values()):
        raise OSError(listing.problem)
    now = disk_now(layout.folder)
    submission = _newest(folder.glob("array.*.json"))
    found: Queue = {}
    waiting: dict[str, str] = {}  # jobs whose listing gives no reason, by shard
    for shard, job in jobs.items():
        own = layout.shard(int(shard))
        last = max(submission, _newest(own.iterdir()) if own.is_dir() else 0)  # by the clock of the disk
        ended = said_its_end(own)
        silent = float("inf") if ended and not ended.get("requeue") else (now - last) / 1e9
        view = known[job]
        state, word = _state(scheduler, printed, job, view, silent, listing.problem)
        if state is not JobState.LOST or not view or view is NO_SUCH_JOB or view.meaning is not Meaning.ENDED:
            with contextlib.suppress(OSError):  # it is queued again, or its end is explained
                _note_of_end(folder, job).unlink()
        elif now - _first_seen(folder, job, last) < LATE_FILES * 1e9 and not ended:
            state = JobState.UNKNOWN
            word = (
                f"job {job} has ended ({word}), and its files are not visible yet; it counts as lost {LATE_FILES:g} s "
                "after its end was first seen"
            )
        found[int(shard)] = state, word
        if view and not view.reason and (state is JobState.PENDING or view.meaning is Meaning.STUCK):
            waiting[shard] = job
        for other in ever.get(shard, []):  # of an earlier submission: what is still queued would run it, too
            view = listing.views.get(other)
            if other != job and view is not None and view.meaning.is_alive and not found[int(shard)][0].alive:
                found[int(shard)] = (JobState(view.meaning.shard), f"{view.note}, as job {other}")
    why = reasons(scheduler, lambda command: ask(command, folder), list(waiting.values()))
    for shard, job in waiting.items():
        state, word = found[int(shard)]
        found[int(shard)] = state, ": ".join(filter(None, (word, why[job])))
    return found


def _state(
    scheduler: Scheduler, printed: Outputs, job: str, answer: JobAnswer, silent: float, problem: str
) -> tuple[JobState, str]:
    if answer is None:
        said = f" ({problem})" if problem else ""
        return JobState.UNKNOWN, f"job {job} is not listed, and nothing says how it ended{said}"
    state, word = JobState.LOST, f"the scheduler no longer has job {job}"
    if answer is not NO_SUCH_JOB:
        state, word = JobState(answer.meaning.shard), answer.note
    elif silent < SILENCE:
        state, soon = JobState.UNKNOWN, f"after {SILENCE:g} s without a sign of life"
        word = f"the scheduler has no job {job}; it counts as ended {soon}"
    if state.alive:
        return state, word
    # the scheduler's word on the end may be in the output, where the listing has forgotten it
    text = "\n".join(tail(file) for file in printed.of(job))
    reports = ((scheduler.starved, JobState.OUT_OF_MEMORY), (scheduler.expired, JobState.TIMEOUT))
    for pattern, end in reports:
        if pattern and (line := re.search(f".*(?:{pattern}).*", text)):
            return end, line[0].strip()
    last = text.strip().rpartition("\n")[2].strip()
    return state, f"{word}; its output ends with: {last}" if last and state is JobState.LOST else word


def _first_seen(folder: Path, job: str, otherwise: int) -> int:
    try:
        file = _note_of_end(folder, job)
        with contextlib.suppress(FileExistsError):  # the first note counts
            file.touch(0o600, exist_ok=False)
        return file.stat().st_mtime_ns
    except OSError:
        return otherwise


def _note_of_end(folder: Path, job: str) -> Path:
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or writers(status):
        raise PermissionError(f"{folder} is another user's, or a link")
    return folder / f"ended.{job}"


def _newest(files: Iterable[Path]) -> int:
    times = [0]
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # a lease that is cleaned up
            times.append(file.stat().st_mtime_ns)
    return max(times)
