"""A scheduler's commands, from a process that sees the run folder."""

from __future__ import annotations

import os
from pathlib import Path

from espnet3.parallel.backends import Scheduler
from espnet3.parallel.clusters.commands import SECONDS, Said, run
from espnet3.parallel.detached.surroundings import job_environment
from espnet3.parallel.ledger.files import read_json, write_json

_PLACE = "place.json"


def note_place(scheduler: Scheduler, folder: Path) -> None:
    """Write down which cluster or server the scheduler's commands are for, by the variables that say so.

    A process that looks at the run later, or goes on with it, may have others.
    """
    place = {name: os.environ.get(name) for name in scheduler.place}
    write_json(folder / _PLACE, {**_place(folder), **place})


def _place(folder: Path) -> dict[str, str | None]:
    try:
        return read_json(folder / _PLACE)
    except FileNotFoundError:
        return {}


def ask(command: list[str], folder: Path, stdin: str | None = None, start: Path | None = None) -> Said:
    """Run a command and return what it printed."""
    environment = {
        **job_environment(),
        "PWD": str(start or folder),
    }  # OAR reads the folder from this variable
    place = _place(folder)
    environment = {name: value for name, value in environment.items() if name not in place}
    environment.update((name, value) for name, value in place.items() if value is not None)
    return run(command, folder=start or folder, environment=environment, stdin=stdin or "", seconds=SECONDS)


__all__ = ["SECONDS", "Said", "ask", "note_place"]
