"""Starting, querying and ending the supervisor of a local run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.parallel.backends import Kind, row
from espnet3.parallel.backends.gpus import chosen_gpus
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.job.supervisor import READY
from espnet3.parallel.detached.launch.printed import tail
from espnet3.parallel.detached.layout import LOG, SUPERVISOR, Layout, Plan
from espnet3.parallel.detached.states import JobState, disk_now, holder_lives, living_pid
from espnet3.parallel.detached.surroundings import interpreter, job_environment
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.ledger.files import make_folder, open_to_write

if TYPE_CHECKING:
    import psutil

_ENTRIES = ("espnet3.parallel.worker", "espnet3.parallel.detached.job.supervisor")
_SCRIPT = "espnet3/parallel/base_runner.py"  # the documented entry of a job
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
    command = [
        interpreter(plan.env, plan.options, layout.template().surroundings.cwd),
        "-m",
        "espnet3.parallel.detached.job.supervisor",
        str(layout.run),
    ]
    with open(open_to_write(layout.supervisor / LOG), "ab") as log:
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
    with process.stdout as stdout:
        line = stdout.readline().decode(errors="replace").strip()
    process.wait()  # the supervisor is a daemon by now, and no child of this process
    if line != READY:
        said = "\n".join(tail(layout.supervisor / LOG).splitlines()[-15:])
        raise ParallelError(f"the supervisor of {layout.run} did not start: {line or said}")


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

    def living() -> list[psutil.Process]:
        pids = [pid for pid in map(living_pid, folders) if pid is not None]
        return [process for process in map(psutil.Process, pids) if _is_of(layout, process)]

    import psutil  # 20 ms that the other verbs need not wait for

    end = time.monotonic() + grace
    for process in living():
        _signal(process, signal.SIGTERM)
    while left := living():
        if time.monotonic() > end:
            for process in left:
                _kill(process)
            end = time.monotonic() + grace
        time.sleep(_LOOK)


def _supervisors(layout: Layout) -> list[Path]:
    """Return the folders of all supervisors: one, or one for each host."""
    return [*layout.folder.glob(f"{SUPERVISOR}*")]


def _is_of(layout: Layout, process: psutil.Process) -> bool:
    """Whether a process is this user's, and a supervisor or worker of this run: a lease may name any."""
    import psutil

    try:
        words, at, owner = process.cmdline(), process.cwd(), process.uids().effective
    except psutil.Error:  # it has ended, or is none of this user's
        return False
    paths = {os.path.realpath(os.path.join(at, word)) for word in words}
    run = os.path.realpath(layout.run)
    ours = any(word in _ENTRIES or word.endswith(_SCRIPT) for word in words)
    return ours and owner == os.geteuid() and any(path == run or path.startswith(f"{run}/") for path in paths)


def _kill(process: psutil.Process) -> None:
    """Kill a job, or a supervisor with the jobs that it is just starting: these have no lease yet to be known by."""
    import psutil

    _signal(process, signal.SIGSTOP)  # it starts no more
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in process.children():
            _signal(child, signal.SIGKILL)
    _signal(process, signal.SIGKILL)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    """Signal a job's whole session, what it started with it; not one that has its number by now."""
    import psutil

    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        if os.getpgid(process.pid) != process.pid:
            process.send_signal(number)
        elif process.is_running():
            os.killpg(process.pid, number)
