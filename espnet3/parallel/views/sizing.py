"""The size of a job, from the times and the memory that an earlier run of the same runner has measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.backends.backend import Backend
from espnet3.parallel.backends.machine import processors
from espnet3.parallel.base_runner import call_runner
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import counted, duration
from espnet3.parallel.timing.reading import shard_of
from espnet3.parallel.views.facts import read_facts

_MARGIN = 1.5  # on the walltime, and on memory: the next items are not the last ones
_ROUND = 600  # seconds to which a walltime is rounded up
_MEGABYTE = 10**6
_STEP = 500  # megabytes to which memory is rounded up
_MOST = 4096  # workers
# Seconds that a job's start is taken to last at least, where no job has been measured: to be started by its scheduler,
# and to load Python and the package from a shared disk
JOB_START = 30.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost of one item and of one worker, in seconds and bytes."""

    seconds: float  # per item, without start-up
    start: float  # until a worker begins with its first item
    env: float  # the part of it that builds the env
    items: int  # over how many this was measured
    memory: int = 0  # that a process took at most; 0 where it was not measured


@dataclass(frozen=True, slots=True)
class Size:
    """A job of so many workers."""

    workers: int
    wall: float  # seconds from its start to its end, without waiting in a queue
    worker_hours: float
    start_share: float  # of the worker hours


def measured_by(run: Path) -> Measured:
    """Return the cost of an item by a run's folder."""
    facts = read_facts(run, ends=False)
    items, times = int(facts.total("items")), facts.times
    if items:
        seconds = facts.total("busy_seconds") / items
        start = max(session.figure("start_seconds") for session in facts.computed)
        env = max(session.figure("env_seconds") for session in facts.computed)
    elif times.items:  # of jobs, or of a driver that was killed
        items, seconds = times.items, times.busy / times.items
        env = max((one.env for one in times.arrivals), default=0.0)
        begun = (  # from a job's lease to its first item, which is shorter than from its start
            one.when - span.begin
            for span in facts.shards
            for one in times.arrivals
            if shard_of(one.worker) == span.name and span.begin <= one.when <= span.end
        )
        start = max([*(one.imports + one.env for one in times.arrivals), env, *begun])
    else:
        raise ConfigError(
            f"no item of the run in {run} has been timed yet: let it go on, or have some of its items run here with "
            "--runner and --provider"
        )
    return Measured(seconds, max(start, env), env, items, times.memory)


def measured_here(runner: Any, provider: Any, sample: int) -> Measured:
    """Run the items 0 to `sample - 1` in one worker process of this machine and return their cost."""
    config = ParallelConfig(options={"processes": True}, idle_timeout=0)
    with TemporaryDirectory(prefix="espnet3-size-") as folder:
        call_runner(runner(provider, output_dir=folder, progress=False), range(sample), config)
        return measured_by(Path(folder))


def placed(measured: Measured, backend: Backend) -> Measured:
    """Return the cost on a backend: a job starts later than a process of this machine."""
    return measured if backend.is_local else replace(measured, start=max(measured.start, JOB_START))


def most_workers(backend: Backend) -> int:
    """Return the largest sensible number of workers: on this machine one for each processor."""
    return processors() if backend.is_local else _MOST


def size_for(measured: Measured, items: int, workers: int) -> Size:
    """Return the size of so many items on so many workers."""
    work = measured.seconds * items
    total = work + measured.start * workers
    # the last item of one worker is waited for by all others
    wall = measured.start + math.ceil(items / workers) * measured.seconds
    return Size(workers, wall, total / 3600, measured.start * workers / total if total else 0.0)


def recommended(measured: Measured, items: int, within: float, most: int = _MOST) -> Size:
    """Return the smallest size that is done within so many seconds."""
    least = measured.start + measured.seconds
    if within <= least:
        raise ConfigError(
            f"no number of workers is done within {duration(within)}: a worker's start and one item take "
            f"{duration(least)}; allow more time"
        )
    each = max(1, int((within - measured.start) / max(1e-9, measured.seconds)))  # items of a worker
    workers = -(-items // each)
    if workers > most:
        where = "" if most == _MOST else ", as many as there are processors here,"
        raise ConfigError(
            f"it would take more than {counted(most, 'worker')}{where} to be done within "
            f"{duration(within)}: allow more time"
        )
    return size_for(measured, items, workers)


def around(measured: Measured, items: int, chosen: Size, most: int = _MOST) -> list[Size]:
    """Return sizes to compare: a quarter, half, the chosen one, double and four times as many workers."""
    found = {max(1, chosen.workers // 4), max(1, chosen.workers // 2), chosen.workers}
    found |= {max(chosen.workers, min(items, most, chosen.workers * k)) for k in (2, 4)}
    return [size_for(measured, items, workers) for workers in sorted(found)]


def block_for(config: ParallelConfig, size: Size, measured: Measured) -> dict[str, Any]:
    """Return the `parallel` block of a size: that of a configuration with other numbers."""
    scheduler = BACKENDS[config.env].scheduler
    options = dict(config.options)
    if scheduler is not None:
        if scheduler.has_walltime:
            options["walltime"] = walltime(size.wall, scheduler.writes_seconds)
        if measured.memory:
            options["memory"] = memory(measured.memory)
    elif measured.memory and config.env == "local":
        options["memory_limit"] = memory(measured.memory)
    block = {"env": config.env, "n_workers": size.workers, "options": options}
    ParallelConfig.parse(block)
    return block


def walltime(seconds: float, with_seconds: bool = True) -> str:
    """Return a walltime with room to spare, as schedulers write it: HH:MM:SS, or HH:MM."""
    whole = max(_ROUND, math.ceil(seconds * _MARGIN / _ROUND) * _ROUND)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}{':00' if with_seconds else ''}"


def memory(n_bytes: int) -> str:
    """Return an amount of memory with room to spare."""
    megabytes = math.ceil(n_bytes * _MARGIN / _MEGABYTE / _STEP) * _STEP
    return f"{megabytes // 1000}GB" if megabytes % 1000 == 0 else f"{megabytes}MB"
