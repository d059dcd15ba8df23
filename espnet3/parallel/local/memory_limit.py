"""The `memory_limit` of workers on this machine, read as `LocalCluster` does, and watched."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from espnet3.parallel.backends.check import size_in_bytes
from espnet3.parallel.backends.machine import all_memory, processors
from espnet3.parallel.local.forking import kill_group
from espnet3.parallel.records import MEMORY_LIMIT, ProcessEnd

logger = logging.getLogger(__name__)

_SHARE = 0.95  # of memory_limit, as Dask's nanny has it
_EVERY = 0.5  # seconds between looks at a worker's memory


class MemoryWatch:
    """Kills a worker's process where it uses more than its limit; looks again at `next_look` (monotonic)."""

    def __init__(self, limit: Any, threads: int) -> None:
        self._limit = limit_in_bytes(limit, threads)
        self._over: dict[int, int] = {}  # bytes that processes used when they were killed for it
        self.next_look = float("inf") if self._limit is None else _next_look()

    def look(self, name: str, pid: int) -> None:
        """Look at the process of the worker of this name, if it is time to."""
        if self._limit is None or time.monotonic() < self.next_look:
            return
        self.next_look, most = _next_look(), _SHARE * self._limit
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:  # psutil would be half a megabyte of each driver
                used = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            if used > most:  # without what workers share, such as a table loaded before the fork
                with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                    used = 1024 * sum(int(line.split()[1]) for line in file if line.startswith(b"Private_"))
        except OSError as error:  # no descriptor is free, or it has just ended
            logger.debug("the memory of worker %s is not known just now: %s", name, error)
            return
        if used > most:
            sizes = used / 2**30, self._limit / 2**30
            logger.warning("worker %s uses %.1f GiB of its memory_limit of %.1f GiB: killed", name, *sizes)
            self._over[pid] = used
            kill_group(pid)

    def end_of(self, pid: int, status: int) -> ProcessEnd:
        """Return how a process ended, from its wait status."""
        used = self._over.pop(pid, 0)
        code, reason = os.waitstatus_to_exitcode(status), MEMORY_LIMIT if used else ""
        return ProcessEnd.from_returncode(code, reason, used, self._limit or 0)


def _next_look() -> float:
    return (time.monotonic() // _EVERY + 1) * _EVERY


def limit_in_bytes(value: Any, threads: int) -> int | None:
    """Return the limit of one worker."""
    if value is None or value in {0, "0"}:
        return None
    if value == "auto":
        return int(all_memory() * min(1.0, threads / processors()))
    if isinstance(value, float) and value <= 1.0:
        return int(value * all_memory())
    asked = size_in_bytes(value) if isinstance(value, str) else int(value)
    return min(asked, all_memory())
