"""The files of a detached run beside its outcomes, and the plan they belong to.

<run>/detached/
  plan.json        the shards, the backend and where the specs are; written once
  indices.json     the index list, for the merge
  template.json    the specs, but for what differs from shard to shard
  runner.json      the runner's plain attributes, for its `merge` or `write_outputs`
  jobs.json        job ids, by shard, and the shards of the last submission
  specs/           shard.7.json: what the job of a shard reads
  stop.json        an order to all jobs to end: the run was cancelled, or an item failed
  shard.7/         lease.*.json  mark.json  losses.json  ended.json  done  log.txt
  supervisor/      of local and ssh runs: lease.*.json  log.txt
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from espnet3.parallel.backends.scheduler import check_ids
from espnet3.parallel.detached.job_spec import JobSpec, items_from_json, items_to_json, same_file
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger import files
from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.ledger.lines import DAMAGED, checked
from espnet3.parallel.ledger.split import SESSION, SPLIT
from espnet3.parallel.records import ProcessEnd

FOLDER = "detached"
PLAN = "plan.json"
INDICES = "indices.json"
TEMPLATE = "template.json"
RUNNER = "runner.json"
JOBS = "jobs.json"
SUPERVISOR = "supervisor"
DONE = "done"
ENDED = "ended.json"
MARK = "mark.json"
LOSSES = "losses.json"
LOG = "log.txt"
_TAIL = 1 << 16  # bytes of a log


class Jobs(TypedDict, total=False):
    """The contents of jobs.json: each shard's last job, those of the last submission, the factor for its memory."""

    jobs: dict[str, str]
    last: list[int]
    raised: dict[str, float]


class Stop(TypedDict, total=False):
    """The contents of stop.json."""

    state: Literal["cancelled", "unfinished"]
    why: str
    grace: float
    at_item: bool


@dataclass(frozen=True, slots=True)
class Tasks:
    """The shards of a run that one job after the other works through, and the index of the first."""

    run: str
    shards: list[int]
    first: int = 0


class Done(TypedDict, total=False):
    """The contents of a shard's done: the number of items with a result, and with a failure."""

    ok: int
    failed: int


class Ended(TypedDict, total=False):
    """The contents of a shard's ended.json; another end may follow one that came `early`."""

    state: str
    why: str
    early: bool
    requeue: bool


class InFlight(Done, total=False):
    """The contents of a shard's mark.json: the items that its worker is at, and how it ended."""

    in_flight: list[int] | None  # positions [begin, end)
    hook: str  # the writer hook that the worker is in; its death there blames no item
    job: str
    pid: int
    # when the step of these items began, by the worker's clock; None: no limit watches it
    since: float | None
    stopping: bool  # the worker was told to stop: its death blames no item
    end: ProcessEnd


@dataclass(frozen=True, slots=True)
class Plan:
    """The shards of a detached run, and where they run."""

    indices_sha256: str
    bounds: list[int]  # positions at which shards begin, and the number of all positions
    specs: str  # where `async_specs_dir` shows them: a link to their folder, which no job follows
    env: str
    n_workers: int  # jobs at a time
    options: dict[str, Any]
    settings: dict[str, Any]  # the `detached` block of the configuration
    code: dict[str, dict[str, Any]] = field(default_factory=dict)  # the user's own, as `code_of` returns it
    hooks: bool = False  # the runner writes files of its own
    first: int = 0  # the number of the first shard's folder of outcomes; those of the others follow
    finishes: bool = False  # its `merge` or `write_outputs` makes something of the whole

    @property
    def n_shards(self) -> int:
        """The number of shards."""
        return len(self.bounds) - 1

    @property
    def kind(self) -> str:
        """The first part of the names of the folders of outcomes."""
        return SESSION if self.hooks else SPLIT

    def outcomes(self, shard: int) -> str:
        """Return the name of the folder of a shard's outcomes."""
        return f"{self.kind}.{self.first + shard}"

    def size(self, shard: int) -> int:
        """Return how many items a shard has."""
        return self.bounds[shard + 1] - self.bounds[shard]


def tail(file: Path) -> str:
    """Return the end of a file."""
    with files.open_plain(file) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
        return stream.read().decode(errors="replace")


def positions(file: Path) -> Iterator[int]:
    """Yield the positions of a file's whole lines; the merge reports the others."""
    with suppress(FileNotFoundError):
        found = (checked(line) for *_, line in files.lines_of(file))
        yield from (position for position in found if position != DAMAGED)


def stretches(part: bytes | bytearray, begin: int, wanted: int) -> list[list[int]]:
    """Return the stretches [begin, end) of positions that are in a state."""
    found = re.finditer(b"[%c]+" % wanted, part)
    return [[begin + each.start(), begin + each.end()] for each in found]


def parts(
    shards: Sequence[int], raised: Mapping[str, float], n_workers: int, most: int
) -> list[tuple[float, list[int], int]]:
    """Cut shards into parts of at most `most`: how many times the memory each asks for, and how many run at a time.

    All parts together have `n_workers` jobs at a time, and each part one at least.
    """
    groups: dict[float, list[int]] = {}
    for shard in shards:
        groups.setdefault(raised.get(str(shard), 1.0), []).append(shard)
    found, end = list[tuple[float, list[int], int]](), 0
    for factor, group in sorted(groups.items()):
        for at in range(0, len(group), most):
            begin, part = end, group[at : at + most]
            end += len(part)
            at_once = n_workers * end // len(shards) - n_workers * begin // len(shards)
            found.append((factor, part, max(1, at_once)))
    return found


class Layout:
    """The paths of a detached run."""

    def __init__(self, run: Path, *, own: bool = False) -> None:
        self.run = run
        self.folder = run / FOLDER
        self.own = own  # its files decide what is run: each must be this user's when it is read
        self.supervisor = self.folder / SUPERVISOR  # a folder with a lease and a log
        self.stop = self.folder / "stop.json"  # the file that tells all jobs to end

    def read(self, name: str, like: type | None = None) -> dict[str, Any]:
        """Read one of the files that are written at submission."""
        return files.read_json(self.folder / name, like, own=self.own)

    @property
    def retrying(self) -> str:
        """The command that goes on with the run."""
        return shlex.join(["espnet3-parallel", "retry", str(self.run)])

    def spec(self, shard: int) -> Path:
        """Return the file of a shard's spec."""
        return self.folder / "specs" / f"shard.{shard}.json"

    def shard(self, number: int) -> Path:
        """Return the folder with a shard's lease, marks and log."""
        return self.folder / f"shard.{number}"

    def plan(self) -> Plan:
        """Read the plan."""
        try:
            plan = files.read_record(self.folder / PLAN, Plan, own=self.own)
        except FileNotFoundError:
            what = f"is not the folder of a detached run (it has no {FOLDER}/{PLAN})"
            raise ConfigError(
                f"{self.run} {what if self.run.exists() else 'does not exist'}: give the folder that was printed at "
                "submission, the runner's output_dir; a run without jobs goes on when its runner is called again"
            ) from None
        if [0, *sorted(plan.bounds)] != [0, *plan.bounds] or plan.first < 0:
            raise DamagedFolderError(f"{self.folder / PLAN} is damaged: its numbers do not fit together")
        return plan

    def write_plan(self, plan: Plan, items: Sequence[Any] | None = None) -> None:
        """Write the plan, and the index list if it is new; the first process to write in a shard's folder makes it."""
        files.make_folder(self.folder)
        if items is not None:
            files.write_whole(self.folder / INDICES, json.dumps(items_to_json(items)).encode())
        files.write_json(self.folder / PLAN, asdict(plan))

    def is_there(self) -> bool:
        """Return whether the run is in its folder; an error of the disk does not prove that it is gone."""
        try:
            return bool(os.stat(self.folder / PLAN))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def template(self) -> JobSpec:
        """Read the part of the specs that all shards share."""
        return JobSpec.from_json(self.read(TEMPLATE, JobSpec), self.folder / TEMPLATE).moved_to(self.run)

    def home(self) -> Path | None:
        """Return the folder that the last jobs were submitted for, if this one is a copy of it or was moved."""
        try:
            home = Path(self.template().run)
        except FileNotFoundError:  # its submission has not come that far
            return None
        return None if same_file(home, self.run) else home

    def items(self) -> Sequence[Any]:
        """Read the index list."""
        try:
            return items_from_json(self.read(INDICES))
        except (KeyError, TypeError) as error:
            raise DamagedFolderError(f"{self.folder / INDICES} is damaged: it holds no index list") from error

    def jobs(self) -> dict[str, Any]:
        """Read the jobs that were submitted; none where there was no submission."""
        jobs: dict[str, Any] = {"jobs": {}, "last": [], "raised": {}}
        with suppress(FileNotFoundError):
            jobs |= self.read(JOBS, Jobs)
        check_ids(jobs["jobs"], parts=2)
        return jobs

    def note_jobs(self, jobs: dict[str, str], raised: dict[str, float]) -> None:
        """Note the jobs of a submission, by shard, and the factors for their memory."""
        every = {**self.jobs()["jobs"], **jobs}
        files.write_json(self.folder / JOBS, {"raised": raised, "last": list(map(int, jobs)), "jobs": every})

    def write_tasks(self, folder: Path, shards: list[int], first: int = 0) -> tuple[int, Path]:
        """Write the shards of some jobs to a new file, for `--tasks` of a worker; return its number and the file."""
        number = len(list(folder.glob("tasks.*.json")))
        file = folder / f"tasks.{number}.json"
        files.write_json(file, asdict(Tasks(str(self.run), shards, first)))
        return number, file

    def order_stop(self, why: dict[str, Any]) -> None:
        """Tell all jobs to end; the first reason stays."""
        if not self.stop.exists():
            files.write_json(self.stop, why)

    def stopped(self) -> dict[str, Any] | None:
        """Return why all jobs are to end; None if they are not."""
        try:
            return files.read_json(self.stop, Stop)
        except FileNotFoundError:
            return None
        except DamagedFolderError as error:  # an order was given, even if it cannot be read
            return {"why": str(error)}
