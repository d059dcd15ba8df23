"""A job's output file: what its script printed before the worker began, and what the scheduler adds."""

from __future__ import annotations

import os
import re
from pathlib import Path

from espnet3.parallel.backends import Scheduler
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.ledger.files import open_plain

_TAIL = 1 << 16  # bytes that are looked at


def outputs(scheduler: Scheduler, folder: Path, element: str) -> list[Path]:
    """Return the output files of an element that are there and not empty; some schedulers deliver them late."""
    job, index = scheduler.parts_of(element)
    found = [
        file for pattern in scheduler.printed for file in folder.glob(pattern.format(job=job, index=index))
    ]
    return sorted({file for file in found if file.stat().st_size})


def tail(file: Path) -> str:
    """Return the end of a file."""
    with open_plain(file) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
        return stream.read().decode(errors="replace")


def report(scheduler: Scheduler, folder: Path, element: str) -> tuple[JobState, str] | None:
    """Return how the scheduler says in an element's output that it ended it, which its listing may have forgotten."""
    reports = ((scheduler.starved, JobState.OUT_OF_MEMORY), (scheduler.expired, JobState.TIMEOUT))
    for file in outputs(scheduler, folder, element):
        text = tail(file)
        for pattern, state in reports:
            said = re.search(f".*(?:{pattern}).*", text) if pattern else None
            if said is not None:
                return state, said[0].strip()
    return None


def last_line(scheduler: Scheduler, folder: Path, element: str) -> str:
    """Return the last line that an element's script or the scheduler printed; empty: none."""
    lines = [line for file in outputs(scheduler, folder, element) for line in tail(file).splitlines()]
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
