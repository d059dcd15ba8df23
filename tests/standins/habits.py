"""Bad habits of real schedulers, each a switch of a stand-in. None of them means that a job has ended."""

import random
import sys
import time
from enum import Enum
from pathlib import Path

LATE = 1.5  # seconds by which what is late comes late


class Habit(str, Enum):
    # ended jobs are forgotten at once; PBS refuses to list them, with an exit status of 0
    NO_HISTORY = "no_history"
    # a job is listed, and known to any command, only `LATE` after its submission
    LATE_LISTING = "late_listing"
    PARTIAL_LISTING = "partial_listing"  # about every other listing silently leaves out every other job
    SILENT_ERROR = "silent_error"  # about every other look is an error, with an exit status of 0 and no job
    LATE_LOGS = "late_logs"  # a job's output is delivered `LATE` after its end


class Habits:
    """The habits of one stand-in, given by name with commas between; looks are counted in its folder."""

    def __init__(self, folder: Path, names: str) -> None:
        self._folder = folder
        self._habits = frozenset(Habit(name) for name in names.split(",") if name)

    def __contains__(self, habit: Habit) -> bool:
        return habit in self._habits

    def fails(self, command: str) -> bool:
        """Return whether this look is one that fails without an exit status; if so, say it."""
        if Habit.SILENT_ERROR not in self or self._goes_well("errors"):
            return False
        print(f"{command}: cannot connect to the server (errno=15010)", file=sys.stderr)
        return True

    def listed(self, count: int) -> set[int]:
        """Return which of so many jobs a listing shows, by their place."""
        if Habit.PARTIAL_LISTING not in self or self._goes_well("listings"):
            return set(range(count))
        return set(range(0, count, 2))

    def knows(self, submitted: float, ended: bool, *, history: bool) -> bool:
        """Return whether a command knows a job; with `history` it also shows jobs that have ended."""
        if Habit.LATE_LISTING in self and time.time() < submitted + LATE:
            return False
        return not ended or (history and Habit.NO_HISTORY not in self)

    def _goes_well(self, name: str) -> bool:
        """Count a look; about every other goes well, but in no fixed order, as looks come in rounds."""
        file = self._folder / f"count.{name}"
        with open(file, "ab") as stream:
            stream.write(b".")
        draw = random.Random(f"{name} {file.stat().st_size}")  # no secret
        return draw.random() < 0.5
