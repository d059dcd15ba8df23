"""A scheduler's commands, from a process that sees the run folder."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from espnet3.parallel.detached.surroundings import job_environment
from espnet3.parallel.errors import SubmissionError

SECONDS = 120.0  # a busy scheduler answers late


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, whatever its exit status.

    Attributes:
        command: The command, as a person types it.
        status: Its exit status.
        out: Its standard output.
        error: Its standard error.
    """

    command: str
    status: int
    out: str
    error: str

    @property
    def all(self) -> str:
        """What it printed on both streams."""
        return f"{self.out}\n{self.error}"

    @property
    def problem(self) -> str:
        """What it said that was no answer: its standard error, or its exit status; empty: nothing."""
        failed = f"exit status {self.status}" if self.status else ""
        said = self.error.strip() or failed
        return f"{self.command}: {said}" if said else ""


def ask(command: list[str], folder: Path, stdin: str | None = None) -> Said:
    """Run a command and return what it printed."""
    shown = shlex.join(command)
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**job_environment(), "PWD": str(folder)},  # OAR reads the folder from this variable
            input=stdin or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except OSError as error:
        raise SubmissionError(shown, None, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise SubmissionError(shown, None, f"it did not answer within {SECONDS:g} s") from error
    return Said(shown, done.returncode, done.stdout, done.stderr)


def call(command: list[str], folder: Path, stdin: str | None = None) -> str:
    """Run a command that must succeed; return what it printed."""
    said = ask(command, folder, stdin)
    if said.status != 0:
        raise SubmissionError(said.command, said.status, said.error.strip() or said.out.strip())
    return said.out
