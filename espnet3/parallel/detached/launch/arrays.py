"""Every job array that a run has ever submitted: a file for each, written as soon as the scheduler has taken it."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from espnet3.parallel.backends import BACKENDS, load_cluster_class, row
from espnet3.parallel.backends.scheduler import check_ids
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.files import read_record, write_json

FOLDER = "scheduler"  # scripts, task lists, the arrays that were submitted, and what the scheduler prints


@dataclass(frozen=True, slots=True)
class Submitted:
    """One submitted array, or one job that stands alone.

    Attributes:
        env: The backend that took it.
        jobs: The id of each element, by its shard.
        names: What the queue may call it; none: not known.
    """

    env: str
    jobs: dict[str, str]
    names: list[str] = field(default_factory=list)

    @property
    def whole(self) -> list[str]:
        """What the cancel command takes for all of it."""
        scheduler = row(self.env).scheduler
        assert scheduler is not None
        parts = [scheduler.parts_of(element) for element in self.jobs.values()]
        if not scheduler.element or not any(index for _, index in parts):
            return list(self.jobs.values())
        return list(dict.fromkeys(scheduler.cancel.format(job=job) for job, _ in parts))

    @property
    def cancel(self) -> list[str]:
        """The command that ends all of it: the scheduler's, not one that a file says."""
        import dask

        cluster: Any = load_cluster_class(row(self.env))  # importing it reads the site's settings
        words = dask.config.get(f"jobqueue.{self.env}.cancel-command-extra", None) or []
        return [*shlex.split(cluster.job_cls.cancel_command), *map(str, words), *self.whole]


def folder_of(layout: Layout) -> Path:
    """Return the folder of a run's scripts and arrays."""
    return layout.folder / FOLDER


def note(layout: Layout, number: int, array: Submitted) -> None:
    """Write down that an array was submitted; nothing ever removes that."""
    write_json(folder_of(layout) / f"array.{number}.json", asdict(array))


def submitted(layout: Layout, env: str | None = None) -> list[Submitted]:
    """Return all arrays of a run in the order of their submission, or those of one backend."""
    found = []
    for file in sorted(folder_of(layout).glob("array.*.json"), key=lambda file: int(file.suffixes[-2][1:])):
        array = read_record(file, Submitted, own=layout.own)
        if array.env not in BACKENDS or BACKENDS[array.env].scheduler is None:
            raise ConfigError(f"{file} is damaged: {array.env!r} is no batch scheduler")
        check_ids(array.jobs)
        found.append(array)
    return [array for array in found if env in (None, array.env)]


def ids_of(arrays: list[Submitted]) -> dict[str, list[str]]:
    """Return all ids that a shard ever had, by the shard: the newest one last."""
    found: dict[str, list[str]] = {}
    for array in arrays:
        for shard, element in array.jobs.items():
            found.setdefault(shard, []).append(element)
    return found
