"""Which backends can run detached jobs, and how each starts, queries and cancels them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from espnet3.parallel.backends import BACKENDS, Kind, row
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.launch import local, scheduler, ssh
from espnet3.parallel.detached.layout import Layout, Plan
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.errors import ConfigError

Queue = dict[int, tuple[JobState, str]]


@dataclass(frozen=True, slots=True)
class Launcher:
    """What a backend does with detached jobs.

    Attributes:
        check: Raises where a configuration cannot run detached jobs.
        start: Queues shards, and notes their jobs in the layout.
        query: Returns what is known of jobs, by shard; raises OSError where nobody answers.
        cancel: Ends all that is queued or runs; the number is the seconds a job has for its item.
    """

    check: Callable[[ParallelConfig], None]
    start: Callable[[Layout, Plan, list[int], dict[str, Any], dict[str, str]], None]
    query: Callable[[Layout, dict[str, str]], Queue]
    cancel: Callable[[Layout, Plan, float], None]


_LOCAL = Launcher(local.check, local.start, local.query, local.cancel)
_SCHEDULER = Launcher(scheduler.check, scheduler.start, scheduler.query, scheduler.cancel)
_SSH = Launcher(ssh.check, ssh.start, local.query, local.cancel)
_LAUNCHERS = {Kind.LOCAL: _LOCAL, Kind.GPU: _LOCAL, Kind.SSH: _SSH, Kind.BATCH: _SCHEDULER}


def launcher(env: str) -> Launcher:
    """Return the launcher of a backend.

    Raises:
        ConfigError: It has none.
    """
    found = _LAUNCHERS.get(row(env).kind)
    if found is None:
        able = sorted(name for name, each in BACKENDS.items() if each.kind in _LAUNCHERS)
        raise ConfigError(f"env: {env} cannot run detached jobs; these can: {', '.join(able)}")
    return found


def check(config: ParallelConfig) -> None:
    """Raise if a configuration cannot run detached jobs."""
    launcher(config.env).check(config)


def walltime(config: ParallelConfig) -> float | None:
    """Return the seconds a job may take by the configuration; None: no limit is known."""
    return scheduler.walltime(config) if row(config.env).scheduler is not None else None


def start(
    layout: Layout, plan: Plan, shards: list[int], facts: dict[str, Any], earlier: dict[str, str]
) -> None:
    """Queue shards."""
    launcher(plan.env).start(layout, plan, shards, facts, earlier)
