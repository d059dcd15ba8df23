"""Runs under supervisors: one of a session of its own on this machine, or one on each SSH host.

Supervisors of several hosts share the shards by leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from espnet3.parallel.backends import Kind, row
from espnet3.parallel.backends.backend import require_package
from espnet3.parallel.backends.machine import SshHost, chosen_gpus, ssh_hosts, unreachable, worker_hosts
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.job.supervising import READY, SUPERVISING
from espnet3.parallel.detached.job_spec import in_folder, interpreter, job_environment
from espnet3.parallel.detached.layout import LOG, SUPERVISOR, Layout, Note, Plan, tail
from espnet3.parallel.detached.states import JobState, Queue, holder_lives, living_pid
from espnet3.parallel.errors import NoWorkersError, ParallelError
from espnet3.parallel.jobs.script import export_path, in_sh
from espnet3.parallel.ledger.files import make_folder, open_to_write
from espnet3.parallel.ledger.lease import disk_now

if TYPE_CHECKING:
    import psutil


_ENTRIES = ("espnet3.parallel.worker", SUPERVISING)
_SCRIPT = "espnet3/parallel/base_runner.py"  # the documented entry of a job
_LOOK = 0.05  # seconds between checks whether a process has ended
_SECONDS = 60.0  # a host that has not answered by then is given up


def check(config: ParallelConfig) -> None:
    """Raise where this machine has fewer GPUs than jobs at a time, or asyncssh is missing."""
    if row(config.env).kind is Kind.GPU:
        chosen_gpus(config.options, config.n_workers)
    elif row(config.env).kind is Kind.SSH:
        require_package(row(config.env))


def start(layout: Layout, plan: Plan, shards: list[int], raised: dict[str, float], note: Note) -> None:
    """Start a supervisor that runs these shards; return when it holds its lease."""
    note({str(shard): f"local.{shard}" for shard in shards})
    make_folder(layout.supervisor)
    with open(open_to_write(layout.supervisor / LOG), "ab") as log:
        process = subprocess.Popen(
            _command(layout, interpreter(plan.env, plan.options, layout.template().surroundings.cwd)),
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


def _command(layout: Layout, python: list[str]) -> list[str]:
    return [*python, "-m", SUPERVISING, str(layout.run)]


def query(layout: Layout, jobs: dict[str, str]) -> Queue:
    """Return the state of jobs without a sign of life: pending while a supervisor may start them, else lost."""
    now = disk_now(layout.folder)
    supervised = any(holder_lives(folder, now) for folder in layout.folder.glob(f"{SUPERVISOR}*"))
    return {int(shard): (JobState.PENDING if supervised else JobState.LOST, "") for shard in jobs}


def cancel(layout: Layout, plan: Plan, grace: float) -> None:
    """End the supervisor and every job that runs on this host, and wait until they are gone.

    Jobs of other hosts find stop.json.
    """
    folders = [*layout.folder.glob(f"{SUPERVISOR}*"), *map(layout.shard, range(plan.n_shards))]

    def living() -> list[psutil.Process]:
        pids = [pid for pid in map(living_pid, folders) if pid is not None]
        return [process for process in (_of_run(layout, pid) for pid in pids) if process is not None]

    end = time.monotonic() + grace
    for process in living():
        _signal(process, signal.SIGTERM)
    while left := living():
        if time.monotonic() > end:
            for process in left:
                _kill(process)
            end = time.monotonic() + grace
        time.sleep(_LOOK)


def _of_run(layout: Layout, pid: int) -> psutil.Process | None:
    # a lease may name any process
    import psutil  # 20 ms that the other verbs need not wait for

    try:
        process = psutil.Process(pid)
        words, at, owner = process.cmdline(), process.cwd(), process.uids().effective
    except psutil.Error:  # it has ended, or is none of this user's
        return None
    paths = {os.path.realpath(os.path.join(at, word)) for word in words}
    run = os.path.realpath(layout.run)
    ours = any(word in _ENTRIES or word.endswith(_SCRIPT) for word in words)
    ours = ours and owner == os.geteuid() and any(path == run or path.startswith(f"{run}/") for path in paths)
    return process if ours else None


def _kill(process: psutil.Process) -> None:
    # the jobs that a supervisor is just starting have no lease yet to be known by
    import psutil

    _signal(process, signal.SIGSTOP)  # it starts no more
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in process.children():
            _signal(child, signal.SIGKILL)
    _signal(process, signal.SIGKILL)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    # its whole session, and not one that has its number by now
    import psutil

    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        if os.getpgid(process.pid) != process.pid:
            process.send_signal(number)
        elif process.is_running():
            os.killpg(process.pid, number)


def start_hosts(layout: Layout, plan: Plan, shards: list[int], raised: dict[str, float], note: Note) -> None:
    """Start a supervisor on each host."""
    require_package(row(plan.env))
    hosts = worker_hosts(ssh_hosts(plan.options))
    each, more = divmod(plan.n_workers, len(hosts))
    slots = [each + (number < more) for number in range(len(hosts))]
    used = [host for host, jobs in zip(hosts, slots, strict=True) if jobs]
    note({str(shard): f"ssh.{shard}" for shard in shards})
    lines = [
        _line(layout, plan, host, ("--slots", str(slots[number]), "--part", f"{number}/{len(used)}"))
        for number, host in enumerate(used)
    ]

    async def start_all() -> list[str]:
        return await asyncio.gather(*map(_start_one, used, lines))

    answers = asyncio.run(start_all())
    failed = [f"{host.name}: {said}" for host, said in zip(used, answers, strict=True) if said != READY]
    if len(failed) == len(used):
        raise NoWorkersError("no supervisor could be started:\n" + "\n".join(failed))
    for line in failed:
        print(f"the run goes on without a host: {line}", flush=True)


def _line(layout: Layout, plan: Plan, host: SshHost, place: tuple[str, ...]) -> str:
    cwd = layout.template().surroundings.cwd
    python = [in_folder(host.python, cwd)] if host.python else interpreter(plan.env, plan.options, cwd)
    command = shlex.join([*_command(layout, python), *place])
    lines = [f"cd {shlex.quote(str(layout.folder))} || exit 1", *export_path(), f"exec {command} < /dev/null"]
    return in_sh(lines)  # the login shell there may be any


async def _start_one(host: SshHost, line: str) -> str:
    import asyncssh

    options = {"connect_timeout": _SECONDS, **host.connect_options}
    try:
        async with asyncssh.connect(host.name, **options) as connection:
            done = await asyncio.wait_for(connection.run(line, check=False), _SECONDS)
    except (OSError, asyncssh.Error, asyncio.TimeoutError) as error:
        return f"cannot be reached: {unreachable(error, options)}"
    said = str(done.stdout or "").strip()
    if said.splitlines()[-1:] == [READY]:
        return READY
    return f"its supervisor did not start: {said} {str(done.stderr or '').strip()}".strip()
