"""Every job array that a run has ever submitted: a file for each, written as soon as the scheduler has taken it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.ledger.files import read_json, write_json

FOLDER = "scheduler"  # scripts, task lists, the arrays that were submitted, and what the scheduler prints


@dataclass(frozen=True, slots=True)
class Submitted:
    """One submitted array, or one job that stands alone.

    Attributes:
        env: The backend that took it.
        cancel: The command that ends all of it.
        jobs: The id of each element, by its shard.
        names: What the queue may call it; none: not known.
    """

    env: str
    cancel: list[str]
    jobs: dict[str, str]
    names: list[str] = field(default_factory=list)


def folder_of(layout: Layout) -> Path:
    """Return the folder of a run's scripts and arrays."""
    return layout.folder / FOLDER


def note(layout: Layout, number: int, array: Submitted) -> None:
    """Write down that an array was submitted; nothing ever removes that."""
    write_json(folder_of(layout) / f"array.{number}.json", asdict(array))


def submitted(layout: Layout, env: str | None = None) -> list[Submitted]:
    """Return all arrays of a run in the order of their submission, or those of one backend."""
    files = folder_of(layout).glob("array.*.json")
    found = [
        Submitted(**read_json(file)) for file in sorted(files, key=lambda file: int(file.suffixes[-2][1:]))
    ]
    return [array for array in found if env in (None, array.env)]


def ids_of(arrays: list[Submitted]) -> dict[str, list[str]]:
    """Return all ids that a shard ever had, by the shard: the newest one last."""
    found: dict[str, list[str]] = {}
    for array in arrays:
        for shard, element in array.jobs.items():
            found.setdefault(shard, []).append(element)
    return found
