"""Which backends can run detached jobs, and how each starts, queries and cancels them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.parallel.backends import Kind, row
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.launch import kube, local, scheduler, ssh
from espnet3.parallel.detached.layout import Layout, Plan
from espnet3.parallel.detached.states import JobState

Queue = dict[int, tuple[JobState, str]]


@dataclass(frozen=True, slots=True)
class Launcher:
    """What a backend does with detached jobs.

    Attributes:
        check: Raises where a configuration cannot run detached jobs.
        start: Queues shards, and notes their jobs in the layout.
        query: Returns what is known of jobs, by shard; one that is left out is not known. Raises OSError where nobody
            answers.
        cancel: Ends all that is queued or runs; the number is the seconds a job has for its item.
        printed: Returns the files with what the jobs of shards printed beside their logs, by shard: before their worker
            began, say.
    """

    check: Callable[[ParallelConfig], None]
    start: Callable[[Layout, Plan, list[int], dict[str, Any], dict[str, str]], None]
    query: Callable[[Layout, dict[str, str]], Queue]
    cancel: Callable[[Layout, Plan, float], None]
    printed: Callable[[Layout, Sequence[int]], dict[int, list[Path]]]


_LOCAL = Launcher(local.check, local.start, local.query, local.cancel, local.printed)
_SCHEDULER = Launcher(scheduler.check, scheduler.start, scheduler.query, scheduler.cancel, scheduler.printed)
_SSH = Launcher(ssh.check, ssh.start, local.query, local.cancel, local.printed)
_KUBE = Launcher(kube.check, kube.start, kube.query, kube.cancel, kube.printed)
_LAUNCHERS = {
    Kind.LOCAL: _LOCAL,
    Kind.GPU: _LOCAL,
    Kind.SSH: _SSH,
    Kind.BATCH: _SCHEDULER,
    Kind.KUBERNETES: _KUBE,
}


def launcher(env: str) -> Launcher:
    """Return the launcher of a backend."""
    return _LAUNCHERS[row(env).kind]


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


def cancel(layout: Layout, plan: Plan, grace: float) -> None:
    """End all jobs of a run, those of an earlier backend too; the grace is in seconds."""
    launcher(plan.env).cancel(layout, plan, grace)
    if row(plan.env).scheduler is None:
        scheduler.cancel(layout, plan, grace)
    if row(plan.env).kind is not Kind.KUBERNETES:
        kube.cancel(layout, plan, grace)
