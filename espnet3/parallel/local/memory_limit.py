"""Limits of workers on this machine: processors, and `memory_limit`, read as `LocalCluster` does, and watched."""

from __future__ import annotations

import logging
import math
import os
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from espnet3.parallel.local.forking import kill_group
from espnet3.parallel.records import MEMORY_LIMIT, ProcessEnd

logger = logging.getLogger(__name__)

_SHARE = 0.95  # of memory_limit, as Dask's nanny has it
_EVERY = 0.5  # seconds between looks at a worker's memory

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "pi": 2**50}
_SIZE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgtp]i?)?b?", re.IGNORECASE)
# control groups: of version 2, and in a folder for each controller those of version 1
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


class MemoryWatch:
    """Kills a worker's process where it uses more than its limit; looks again at `next_look` (monotonic)."""

    def __init__(self, limit: Any, threads: int) -> None:
        self._given = limit
        self._threads = threads
        self._limit: int | None = None
        self._over: dict[int, int] = {}  # bytes that processes used when they were killed for it
        self.next_look = float("inf") if limit is None else _next_look()

    def look(self, name: str, pid: int) -> None:
        """Look at the process of the worker of this name, if it is time to."""
        if time.monotonic() < self.next_look:
            return
        self.next_look = _next_look()
        try:
            self._look(name, pid)
        except OSError as error:
            # no descriptor is free
            logger.debug("the memory of worker %s is not known just now: %s", name, error)

    def _look(self, name: str, pid: int) -> None:
        import psutil  # 30 ms that a first result need not wait for

        if self._limit is None:
            self._limit = limit_in_bytes(self._given, self._threads)
        if self._limit is None:
            self.next_look = float("inf")
            return
        try:
            used = psutil.Process(pid).memory_info().rss
        except psutil.Error:  # it has just ended
            return
        if used > _SHARE * self._limit:
            sizes = used / 2**30, self._limit / 2**30
            logger.warning("worker %s uses %.1f GiB of its memory_limit of %.1f GiB: killed", name, *sizes)
            self._over[pid] = used
            kill_group(pid)

    def end_of(self, pid: int, status: int) -> ProcessEnd:
        """Return how a process ended, from its wait status."""
        used = self._over.pop(pid, 0)
        if not used:
            return ProcessEnd.from_wait_status(status)
        return ProcessEnd.from_wait_status(status, MEMORY_LIMIT, used, self._limit or 0)


def _next_look() -> float:
    """Return the next moment at which all workers are looked at, in one wake-up."""
    return (time.monotonic() // _EVERY + 1) * _EVERY


def limit_in_bytes(value: Any, threads: int) -> int | None:
    """Return the limit of one worker."""
    if value is None or value in {0, "0"}:
        return None
    if value == "auto":
        return int(all_memory() * min(1.0, threads / processors()))
    if isinstance(value, float) and value <= 1.0:
        return int(value * all_memory())
    asked = _size(value) if isinstance(value, str) else int(value)
    return min(asked, all_memory())


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        # the config was checked before, so this is never a user's own mistake
        raise ValueError(f"memory_limit: {text!r} is not a size such as 4GB")
    number, unit = found.groups()
    return int(float(number) * {**_UNITS, **_BINARY}[(unit or "").lower()])


def processors() -> int:
    """Return how many processors this process may use: of the machine, by its affinity and its control groups."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups("cpu"):
        quota = _numbers(group / "cpu.max")
        quota = quota or _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us")
        if len(quota) == 2:  # microseconds of processors in so many; without a limit there is one number
            here = min(here, math.ceil(quota[0] / quota[1]))
    return here


def all_memory() -> int:
    """Return the bytes that processes here may use: of the machine, or of the container or the job around them."""
    import psutil  # only where a limit is watched

    limits = [psutil.virtual_memory().total]
    for group in _groups("memory"):
        limits += _numbers(group / "memory.max") or _numbers(group / "memory.limit_in_bytes")
    limits.append(resource.getrlimit(resource.RLIMIT_RSS)[0])
    return min(limit for limit in limits if limit > 0)  # RLIM_INFINITY is -1


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that this process is in, and of those around them."""
    # a container may see its own group at the root, while the process is said to be in one of the host
    own = ["0::/", f"0:{controller}:/"]
    try:
        own += _OWN_GROUPS.read_text().splitlines()
    except OSError:
        pass
    for line in own:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            group = PurePosixPath(path.lstrip("/"))
            root = _GROUPS / controller if controllers else _GROUPS
            yield from (root / each for each in (group, *group.parents))


def _numbers(path: Path) -> list[int]:
    try:
        return [int(word) for word in path.read_text().split() if word.isdigit() and int(word)]
    except OSError:
        return []
