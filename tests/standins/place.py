"""Puts the commands of a stand-in on the PATH, and ends its jobs afterwards."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.standins.habits import Habit
from tests.standins.jobs import Element, Store

NAMES = {
    "pbs": ("qsub", "qstat", "qdel"),
    "lsf": ("bsub", "bjobs", "bkill"),
    "moab": ("msub", "showq", "checkjob", "canceljob"),
    "htcondor": ("condor_submit", "condor_q", "condor_history", "condor_rm"),
}


def block(env: str, n_workers: int = 2, **options: Any) -> dict[str, Any]:
    """Return a `parallel` block for the workers of a stand-in."""
    own = {"disk": "1GB"} if env == "htcondor" else {"walltime": "10m"}
    wanted = {"cores": 1, "memory": "1GB", "interface": "lo", **own, **options}
    return {"env": env, "n_workers": n_workers, "start_timeout": 600, "options": wanted}


@dataclass(frozen=True, slots=True)
class StandIn:
    """A stand-in whose commands are on the PATH, in `folder/bin`."""

    folder: Path

    def jobs(self) -> list[Element]:
        """Return every job it has had, an array's elements one by one."""
        return Store(self.folder).elements()

    def unfinished(self) -> list[Element]:
        return [each for each in self.jobs() if each.state != "done"]

    def cancel_all(self) -> None:
        """End every job, and wait for its processes."""
        Store(self.folder).end_all()


@contextmanager
def standin(name: str, slots: int = 8, habits: Iterable[Habit] = ()) -> Iterator[StandIn]:
    """Put the commands of a scheduler in `NAMES` on this process's PATH for a block of code, with so many cores."""
    program = [sys.executable, "-S", "-m", str(__package__)]  # needs no package: starts in half the time
    commands = {command: [*program, command] for command in NAMES[name]}
    with commands_on_path(name, commands, slots, habits) as placed:
        yield placed


@contextmanager
def commands_on_path(
    name: str, commands: Mapping[str, Sequence[str]], slots: int = 8, habits: Iterable[Habit] = ()
) -> Iterator[StandIn]:
    """Put commands on this process's PATH, each with the words that start it; afterwards end their jobs."""
    folder = Path(tempfile.mkdtemp(prefix=f"espnet3-{name}-"))
    (folder / "bin").mkdir()
    root = str(Path(__file__).parents[2])
    variables = (
        f"PYTHONPATH={shlex.quote(root)} ESPNET3_STANDIN={shlex.quote(str(folder))} "
        f"ESPNET3_STANDIN_SLOTS={slots} ESPNET3_STANDIN_HABITS={','.join(habit.value for habit in habits)}"
    )
    for command, words in commands.items():
        path = folder / "bin" / command
        path.write_text(f'#!/bin/sh\nexec env {variables} {shlex.join(words)} "$@"\n')
        path.chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{before}"
    try:
        yield StandIn(folder)
    finally:
        os.environ["PATH"] = before
        Store(folder).end_all()
        shutil.rmtree(folder, ignore_errors=True)
