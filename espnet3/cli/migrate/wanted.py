"""What a job asks its scheduler for, gathered flag by flag, each with where it came from."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from espnet3.cli.migrate.calls import Given
from espnet3.parallel.backends.amounts import clock, walltime_seconds
from espnet3.parallel.errors import ConfigError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_ENDLESS = ("0", "unlimited", "infinite", "infinity")


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of the block, and why it has it."""

    value: Any
    why: str


@dataclass(slots=True)
class Wanted:
    """What a job asks for.

    Attributes:
        options: Options of dask-jobqueue, by name.
        cores: How many; None: nothing was said.
        memory: Bytes; None: nothing was said.
        memory_per_core: Whether the memory is for each core.
        at_once: Jobs that may run at a time; None: all.
        resources: What `-l` of qsub asks for, by the resource's name, as `name=value`.
        directives: Other lines of the job script, by the flag's name.
        notes: What has no equivalent, in a sentence each.
    """

    options: dict[str, Entry] = field(default_factory=dict)
    cores: Entry | None = None
    memory: Entry | None = None
    memory_per_core: bool = False
    at_once: Entry | None = None
    resources: dict[str, Entry] = field(default_factory=dict)
    directives: dict[str, Entry] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def left_out(self, flag: str, given: Given, why: str) -> None:
        """Note that a flag has no equivalent."""
        self.notes.append(f"{flag} ({given.why}): {why}")

    def take_option(self, name: str, value: str, given: Given) -> None:
        """Take an option of which the last one counts, and note one that is lost by it."""
        before = self.options.get(name)
        if before is not None and before.value != value:
            self.notes.append(f"{name} {before.value} ({before.why}): {value} replaces it ({given.why})")
        self.options[name] = Entry(value, given.why)

    def take_time(self, value: str, given: Given, *, unit: int) -> None:
        """Take a limit of time."""
        seconds = int(value) * unit if value.isdigit() else walltime_seconds(value)
        if value.lower() in _ENDLESS:
            self.left_out(
                f"time {value}", given, "a worker has a time limit here, and is replaced when it ends"
            )
        elif seconds is None or seconds <= 0:
            raise ConfigError(f"{given.why}: {value!r} is no time; write it as 4:00:00")
        else:
            self.take_option("walltime", clock(seconds), given)

    def take_memory(self, value: str, given: Given, *, unit: int = 1, per_core: bool) -> None:
        """Take a size of memory."""
        found = _SIZE.fullmatch(value)
        if found is None:
            raise ConfigError(f"{given.why}: {value!r} is no size of memory; write it as 4G or 500M")
        power = _POWERS.get(found[2].lower())
        size = float(found[1]) * (unit if power is None else 1024**power)
        if self.memory is not None and self.memory.value != math.ceil(size):
            said = f"memory of {size_text(self.memory.value)}"
            self.notes.append(f"{said} ({self.memory.why}): {value} replaces it ({given.why})")
        if size <= 0:
            self.left_out(f"memory {value}", given, "set memory to what a worker needs")
            return
        self.memory = Entry(math.ceil(size), given.why)
        self.memory_per_core = per_core

    def take_cores(self, value: str, given: Given) -> None:
        """Take a number of cores; of several the largest counts, since Kaldi hands flags over in no fixed order."""
        if not value.isdigit() or not int(value):
            raise ConfigError(f"{given.why}: {value!r} is no number of cores; write 1 or more")
        if self.cores is None or int(value) > self.cores.value:
            self.cores = Entry(int(value), given.why)


def size_text(size: int) -> str:
    """Write a number of bytes as `parallel` reads it: 4294967296 is "4GiB"."""
    for unit, power in (("GiB", 3), ("MiB", 2)):
        if size >= 1024**power and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return f"{max(1, math.ceil(size / 1024**2))}MiB"
