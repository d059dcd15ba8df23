"""Starting, querying and ending the supervisor of a local run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espnet3.parallel.backends import Kind, row
from espnet3.parallel.backends.gpus import chosen_gpus
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.job.supervisor import READY
from espnet3.parallel.detached.layout import LOG, SUPERVISOR, Layout, Plan
from espnet3.parallel.detached.states import JobState, disk_now, holder_lives, living_pid
from espnet3.parallel.detached.surroundings import job_environment
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.ledger.files import make_folder

_LOOK = 0.05  # seconds between checks whether a process has ended


def check(config: ParallelConfig) -> None:
    """Raise where this machine has fewer GPUs than jobs at a time; a supervisor it can always start."""
    if row(config.env).kind is Kind.GPU:
        chosen_gpus(config.options, config.n_workers)


def start(
    layout: Layout, plan: Plan, shards: list[int], facts: dict[str, Any], earlier: dict[str, str]
) -> None:
    """Start a supervisor that runs these shards; return when it holds its lease."""
    jobs = {str(shard): f"local.{shard}" for shard in shards}
    layout.write_jobs({**facts, "jobs": jobs, "earlier": {**earlier, **jobs}})
    make_folder(layout.supervisor)
    command = [plan.python, "-m", "espnet3.parallel.detached.job.supervisor", str(layout.run)]
    with open(layout.supervisor / LOG, "ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=layout.folder,
            env=job_environment(),
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as said:
        line = said.readline().decode(errors="replace").strip()
    process.wait()  # the supervisor is a daemon by now, and no child of this process
    if line != READY:
        tail = _tail(layout.supervisor / LOG)
        raise ParallelError(f"the supervisor of {layout.run} did not start: {line or tail}")


def _tail(file: Path) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-15:])


def query(layout: Layout, jobs: dict[str, str]) -> dict[int, tuple[JobState, str]]:
    """Return what is known of jobs that have written no sign of life: without a supervisor nobody starts them."""
    now = disk_now(layout.folder)
    supervised = any(holder_lives(folder, now) for folder in _supervisors(layout))
    return {int(shard): (JobState.PENDING if supervised else JobState.LOST, "") for shard in jobs}


def printed(layout: Layout, shards: Sequence[int]) -> dict[int, list[Path]]:
    """Return no file: all that a job prints is in its log."""
    return {shard: [] for shard in shards}


def cancel(layout: Layout, plan: Plan, grace: float) -> None:
    """End the supervisor and every job that runs on this host, and wait until they are gone.

    Jobs of other hosts find stop.json.
    """
    folders = [*_supervisors(layout), *(layout.shard(shard) for shard in range(plan.n_shards))]

    def living() -> list[int]:
        return [pid for pid in map(living_pid, folders) if pid is not None]

    end = time.monotonic() + grace
    for pid in living():
        _signal(pid, signal.SIGTERM)
    while living():
        if time.monotonic() > end:
            for pid in living():
                _kill(pid)
            end = time.monotonic() + grace
        time.sleep(_LOOK)


def _supervisors(layout: Layout) -> list[Path]:
    """Return the folders of all supervisors: one, or one for each host."""
    return [*layout.folder.glob(f"{SUPERVISOR}*")]


def _kill(pid: int) -> None:
    """Kill a job, or a supervisor with the jobs that it is just starting: these have no lease yet to be known by."""
    import psutil  # 20 ms that the other verbs need not wait for

    _signal(pid, signal.SIGSTOP)  # it starts no more
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            _signal(child.pid, signal.SIGKILL)
    _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    """Signal a job's whole session: what it started goes with it."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
