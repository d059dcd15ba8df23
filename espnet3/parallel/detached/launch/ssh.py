"""`env: ssh` without a driver: a supervisor on each host, which share the shards by leases."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import replace
from typing import Any

from espnet3.parallel.backends import row
from espnet3.parallel.backends.loading import require_package
from espnet3.parallel.backends.ssh_hosts import SshHost, ssh_hosts, worker_hosts
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.job.supervisor import READY
from espnet3.parallel.detached.layout import Layout, Plan
from espnet3.parallel.detached.surroundings import import_path, in_folder, interpreter
from espnet3.parallel.errors import NoWorkersError

_SECONDS = 60.0  # a host that has not answered by then is given up


def slots_of(n_workers: int, n_hosts: int) -> list[int]:
    """Return the jobs at a time on each host: n_workers spread over them."""
    each, more = divmod(n_workers, n_hosts)
    return [each + (number < more) for number in range(n_hosts)]


def check(config: ParallelConfig) -> None:
    """Raise if asyncssh is missing, or the hosts are wrong."""
    require_package(row(config.env))
    ssh_hosts(config.options)


def start(
    layout: Layout, plan: Plan, shards: list[int], facts: dict[str, Any], earlier: dict[str, str]
) -> None:
    """Start a supervisor on each host."""
    require_package(row(plan.env))
    hosts = worker_hosts(ssh_hosts(plan.options))
    used = [
        (host, slots)
        for host, slots in zip(hosts, slots_of(plan.n_workers, len(hosts)), strict=True)
        if slots
    ]
    jobs = {str(shard): f"ssh.{shard}" for shard in shards}
    layout.write_jobs({**facts, "jobs": jobs, "earlier": {**earlier, **jobs}})
    answers = asyncio.run(_start_all(layout, plan, used))
    failed = [f"{host.name}: {said}" for (host, _), said in zip(used, answers, strict=True) if said != READY]
    if len(failed) == len(used):
        raise NoWorkersError("no supervisor could be started:\n" + "\n".join(failed))
    for line in failed:
        print(f"the run goes on without a host: {line}", flush=True)


async def _start_all(layout: Layout, plan: Plan, used: list[tuple[SshHost, int]]) -> list[str]:
    tasks = [
        _start_one(host, command(layout, replace(plan, n_workers=slots), host, number, len(used)))
        for number, (host, slots) in enumerate(used)
    ]
    return list(await asyncio.gather(*tasks))


def command(layout: Layout, plan: Plan, host: SshHost, number: int, n_hosts: int) -> str:
    """Return the command line that starts a host's supervisor."""
    cwd = layout.template().surroundings.cwd
    python = in_folder(host.python or interpreter(plan.env, plan.options, cwd), cwd)
    place = ("--slots", str(plan.n_workers), "--part", f"{number}/{n_hosts}")
    words = [python, "-m", "espnet3.parallel.detached.job.supervisor", str(layout.run), *place]
    root = import_path()
    path = "" if root is None else f"export PYTHONPATH={shlex.quote(root)}${{PYTHONPATH:+:$PYTHONPATH}}; "
    return f"cd {shlex.quote(str(layout.folder))} && {path}exec {shlex.join(words)} < /dev/null"


async def _start_one(host: SshHost, line: str) -> str:
    """Start the supervisor of a host; return what it said: `READY`, or why it does not run."""
    import asyncssh

    try:
        async with asyncssh.connect(host.name, **host.connect_options) as connection:
            done = await asyncio.wait_for(connection.run(line, check=False), _SECONDS)
    except (OSError, asyncssh.Error, asyncio.TimeoutError) as error:
        return f"cannot be reached: {type(error).__name__}: {error}"
    said = str(done.stdout or "").strip()
    if said.splitlines()[-1:] == [READY]:
        return READY
    return f"its supervisor did not start: {said} {str(done.stderr or '').strip()}".strip()
