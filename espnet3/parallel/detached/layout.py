"""Where a detached run keeps what: the files beside the outcomes, and the plan they belong to.

<run>/detached/
  plan.json        the shards, the backend and where the specs are; written once
  indices.json     the index list, for the merge
  template.json    the specs, but for what differs from shard to shard
  runner.json      the runner's plain attributes, for its `merge` or `write_outputs`
  jobs.json        the last submission: job ids, by shard
  specs/           shard.7.json: what the job of a shard reads
  failed/7         one byte for each failed item of the shard, if `max_failures` limits them
  stop.json        an order to all jobs to end: the run was cancelled, or an item failed
  shard.7/         lease.*.json  mark.json  losses.json  ended.json  done  log.txt
  supervisor/      of local and ssh runs: lease.*.json  log.txt
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from espnet3.parallel.backends.scheduler import check_ids
from espnet3.parallel.detached.spec import items_from_json, items_to_json
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.atomic import write_plainly
from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.ledger.files import make_folder, read_json, refuse_others, write_json, write_whole
from espnet3.parallel.ledger.split import SESSION, SPLIT

FOLDER = "detached"
SPECS = "specs"
PLAN = "plan.json"
INDICES = "indices.json"
TEMPLATE = "template.json"
RUNNER = "runner.json"
JOBS = "jobs.json"
STOP = "stop.json"
FAILURES = "failed"
SUPERVISOR = "supervisor"
DONE = "done"
ENDED = "ended.json"
MARK = "mark.json"
LOSSES = "losses.json"
LOG = "log.txt"
_OUTCOMES = re.compile(rf"({SPLIT}|{SESSION})\.\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a detached run is cut and where it runs.

    Attributes:
        indices_sha256: The hash of the index list.
        bounds: Positions at which shards begin, and the number of all positions.
        specs: Where `async_specs_dir` shows them: a link to their folder, which no job follows.
        outcomes: Names of the folders of the shards' outcomes.
        env: The backend.
        n_workers: Jobs at a time.
        options: Options of the backend.
        settings: The `detached` block of the configuration.
        code: The user's own code, as `provenance.code.code_of` returns it.
        hooks: The runner writes files of its own.
        keep_values: Its results are wanted beside them.
        outputs: Its runner writes files from the whole results when they are merged.
    """

    indices_sha256: str
    bounds: list[int]
    specs: str
    outcomes: list[str]
    env: str
    n_workers: int
    options: dict[str, Any]
    settings: dict[str, Any]
    code: dict[str, Any] = field(default_factory=dict)
    hooks: bool = False
    keep_values: bool = True
    outputs: bool = False

    @property
    def n_shards(self) -> int:
        """How many shards there are."""
        return len(self.bounds) - 1

    @property
    def kind(self) -> str:
        """What the folders of outcomes are called."""
        return SESSION if self.hooks else SPLIT

    def size(self, shard: int) -> int:
        """Return how many items a shard has."""
        return self.bounds[shard + 1] - self.bounds[shard]


def write_quickly(path: Path, value: dict[str, Any]) -> None:
    """Write one of a thousand JSON files: whole or not at all, a key a line, and not synced one by one."""
    write_whole(path, _lines({key: json.dumps(item) for key, item in value.items()}), durable=False)


def write_lines(path: Path, texts: dict[str, str]) -> None:
    """Write one of a thousand JSON files that nobody reads before all are written: a key a line, not synced."""
    write_plainly(path, _lines(texts))


def _lines(texts: dict[str, str]) -> bytes:
    lines = ",\n".join([f'"{key}": {text}' for key, text in texts.items()])
    return f"{{\n{lines}\n}}\n".encode()


class Layout:
    """The paths of a detached run.

    Args:
        run: The run's folder.
        trust: Act on it, whoever wrote it.
        own: Its files decide what is run: each must be this user's when it is read.
    """

    def __init__(self, run: Path, *, trust: bool = False, own: bool = False) -> None:
        self.run = run
        self.folder = run / FOLDER
        self.trust = trust
        self.own = own

    def to_act_on(self) -> Layout:
        """Return the layout for a verb that acts on the run."""
        if not self.trust:
            refuse_others(self.run)
        return Layout(self.run, trust=self.trust, own=not self.trust)

    def read(self, name: str) -> dict[str, Any]:
        """Read one of the files that are written at submission."""
        return read_json(self.folder / name, own=self.own)

    def spec(self, shard: int) -> Path:
        """Return the file of a shard's spec."""
        return self.folder / SPECS / f"shard.{shard}.json"

    def shard(self, number: int) -> Path:
        """Return the folder with a shard's lease, marks and log."""
        return self.folder / f"shard.{number}"

    def log(self, number: int) -> Path:
        """Return what a shard's job prints."""
        return self.shard(number) / LOG

    @property
    def supervisor(self) -> Path:
        """The folder of the supervisor's lease and log."""
        return self.folder / SUPERVISOR

    @property
    def failures(self) -> Path:
        """The folder that counts failed items, by shard."""
        return self.folder / FAILURES

    @property
    def stop(self) -> Path:
        """The file that tells all jobs to end."""
        return self.folder / STOP

    def plan(self) -> Plan:
        """Read the plan."""
        try:
            plain = self.read(PLAN)
            plan = Plan(**{name: plain[name] for name in Plan.__slots__ if name in plain})
            if plan.n_shards >= 0 and all(map(_OUTCOMES.fullmatch, plan.outcomes)):
                return plan
            raise DamagedFolderError(f"{self.folder / PLAN} is damaged: it names other folders than a plan's")
        except (AttributeError, TypeError) as error:
            raise DamagedFolderError(f"{self.folder / PLAN} is damaged: {error}") from error
        except FileNotFoundError:
            from espnet3.parallel.ledger.folder import (
                RUN,  # jobs, which read the plan too, do not open run folders
            )

            if (self.run / RUN).exists():
                raise ConfigError(
                    f"the run in {self.run} was not submitted as detached jobs: `espnet3 status` and `wait` work on "
                    "it; to go on with it, call its runner again"
                ) from None
            if not self.run.exists():
                raise ConfigError(
                    f"{self.run} does not exist: give the folder that was printed at submission, "
                    "the runner's output_dir"
                ) from None
            raise ConfigError(
                f"{self.run} is not the folder of a detached run (it has no {FOLDER}/{PLAN}): give the folder "
                "that was printed at submission, the runner's output_dir"
            ) from None

    def write_plan(self, plan: Plan, items: Sequence[Any]) -> None:
        """Write the plan and the index list; a shard's folder is made by whoever first writes in it."""
        make_folder(self.folder)
        write_whole(self.folder / INDICES, json.dumps(items_to_json(items)).encode())
        write_json(self.folder / PLAN, asdict(plan))

    def items(self) -> Sequence[Any]:
        """Read the index list."""
        return items_from_json(self.read(INDICES))

    def jobs(self) -> dict[str, Any]:
        """Read the last submission; empty where there was none."""
        try:
            jobs = self.read(JOBS)
            for ids in (jobs.get("jobs", {}), jobs.get("earlier", {})):
                check_ids(ids, parts=2)
        except FileNotFoundError:
            return {}
        except AttributeError as error:
            raise DamagedFolderError(f"{self.folder / JOBS} is damaged: {error}") from error
        return jobs

    def write_jobs(self, jobs: dict[str, Any]) -> None:
        """Note a submission."""
        write_json(self.folder / JOBS, jobs)

    def order_stop(self, why: dict[str, Any]) -> None:
        """Tell all jobs to end; the first reason stays."""
        if not self.stop.exists():
            write_json(self.stop, why)

    def stopped(self) -> dict[str, Any] | None:
        """Return why all jobs are to end; None if they are not."""
        try:
            return read_json(self.stop)
        except FileNotFoundError:
            return None
