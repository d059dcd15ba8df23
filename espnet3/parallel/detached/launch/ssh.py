"""`env: ssh` without a driver: a supervisor on each host, which share the shards by their leases."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.job.supervisor import READY
from espnet3.parallel.detached.layout import Layout, Plan
from espnet3.parallel.detached.surroundings import import_path
from espnet3.parallel.errors import ConfigError, NoWorkersError

_SECONDS = 60.0  # a host that does not answer by then is away


def hosts_of(options: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the hosts that work, with how each is reached.

    The first of several runs the scheduler of a cluster; a detached run has none, so it does not work
    here either: what a configuration means stays the same.

    Raises:
        ConfigError: The connect options do not fit the hosts.
    """
    hosts = list(options.get("hosts") or [])
    connect = options.get("connect_options") or {}
    if isinstance(connect, list) and len(connect) not in (1, len(hosts)):
        raise ConfigError(f"options.connect_options has {len(connect)} entries for {len(hosts)} hosts")
    each = connect if isinstance(connect, list) and len(connect) > 1 else [connect] * len(hosts)
    pairs = [
        (host, dict(one[0] if isinstance(one, list) else one)) for host, one in zip(hosts, each, strict=True)
    ]
    return pairs[1:] or pairs


def slots_of(n_workers: int, n_hosts: int) -> list[int]:
    """Return the jobs at a time on each host: n_workers spread over them."""
    each, more = divmod(n_workers, n_hosts)
    return [each + (number < more) for number in range(n_hosts)]


def check(config: ParallelConfig) -> None:
    """Raise if asyncssh is missing, or the hosts are wrong."""
    import asyncssh  # noqa: F401  the extra [ssh]

    hosts_of(config.options)


def start(
    layout: Layout, plan: Plan, shards: list[int], facts: dict[str, Any], earlier: dict[str, str]
) -> None:
    """Start a supervisor on each host.

    Raises:
        NoWorkersError: None could be started; the message says what each host said.
    """
    hosts = hosts_of(plan.options)
    used = [
        (*pair, slots)
        for pair, slots in zip(hosts, slots_of(plan.n_workers, len(hosts)), strict=True)
        if slots
    ]
    jobs = {str(shard): f"ssh.{shard}" for shard in shards}
    layout.write_jobs({**facts, "jobs": jobs, "earlier": {**earlier, **jobs}})
    answers = asyncio.run(_start_all(layout, plan, used))
    failed = [f"{host}: {said}" for (host, _, _), said in zip(used, answers, strict=True) if said != READY]
    if len(failed) == len(used):
        raise NoWorkersError("no supervisor could be started:\n" + "\n".join(failed))
    for line in failed:
        print(f"goes on without a host: {line}", flush=True)


async def _start_all(layout: Layout, plan: Plan, used: list[tuple[str, dict[str, Any], int]]) -> list[str]:
    tasks = [
        _start_one(host, connect, command(layout, replace(plan, n_workers=slots), number, len(used)))
        for number, (host, connect, slots) in enumerate(used)
    ]
    return list(await asyncio.gather(*tasks))


def command(layout: Layout, plan: Plan, number: int, n_hosts: int) -> str:
    """Return the command line that starts a host's supervisor.

    Args:
        layout: The run's paths.
        plan: Its plan, with the host's own number of workers.
        number: Which of the hosts it is.
        n_hosts: How many there are.
    """
    python = str(plan.options.get("remote_python") or plan.python)
    place = ("--slots", str(plan.n_workers), "--part", f"{number}/{n_hosts}")
    words = [python, "-m", "espnet3.parallel.detached.job.supervisor", str(layout.run), *place]
    root = import_path()
    path = "" if root is None else f"export PYTHONPATH={shlex.quote(root)}${{PYTHONPATH:+:$PYTHONPATH}}; "
    return f"cd {shlex.quote(str(layout.folder))} && {path}exec {shlex.join(words)} < /dev/null"


async def _start_one(host: str, connect: dict[str, Any], line: str) -> str:
    """Start one supervisor; return what it said: `READY`, or why it is not."""
    import asyncssh

    try:
        async with asyncssh.connect(host, **connect) as connection:
            done = await asyncio.wait_for(connection.run(line, check=False), _SECONDS)
    except (OSError, asyncssh.Error, asyncio.TimeoutError) as error:
        return f"cannot be reached: {type(error).__name__}: {error}"
    said = str(done.stdout or "").strip()
    if said.splitlines()[-1:] == [READY]:
        return READY
    return f"its supervisor did not start: {said} {str(done.stderr or '').strip()}".strip()
