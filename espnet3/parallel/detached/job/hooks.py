"""A job whose runner writes files of its own: the whole shard, or none of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.job.blame import ShardBlame
from espnet3.parallel.detached.job.outcomes import ShardOutcomes
from espnet3.parallel.detached.job.stopping import Stopping
from espnet3.parallel.detached.spec import JobSpec
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.engine.loop import on_a_worker
from espnet3.parallel.engine.settling import Block
from espnet3.parallel.ledger.files import write_json
from espnet3.parallel.ledger.split import DONE
from espnet3.parallel.records import ItemFailure
from espnet3.parallel.runner.shards import InProgress, Shard, ShardResult, run_shard
from espnet3.parallel.runner.writers.hooks import Hooks

BuildEnv = Callable[[], tuple[Any, dict[str, Any]]]


def run_hooks(
    spec: JobSpec, outcomes: ShardOutcomes, build: BuildEnv, stopping: Stopping, blame: ShardBlame
) -> tuple[JobState, str]:
    """Run a shard from `open_writers` to `close_writers`, in an emptied folder."""
    folder = Path(spec.run) / f"split.{spec.shard}"
    runner, env = build()
    hooks = Hooks.of(runner, spec.batched)
    hooks.check(env)
    skip = {at - spec.begin: failure for at, failure in blame.failures().items()}
    if skip and spec.policy.on_error == "raise":
        first = min(skip)
        outcomes.append_failure(spec.begin + first, skip[first])
        return JobState.FAILED, sentence_of(skip[first], spec.begin + first in outcomes.failed_before)
    shard = Shard(spec.shard, str(folder), spec.items, spec.begin, skip=skip, one_by_one=blame.one_by_one)

    def mark(in_progress: InProgress | None) -> None:
        if isinstance(in_progress, tuple):
            begin, end = in_progress
            blame.marks.set((spec.begin + begin, spec.begin + end))
        else:  # a hook's end is no item's
            blame.marks.set(None, in_progress or "")

    with on_a_worker(blame.too_late if spec.policy.item_timeout is not None else None):
        result = run_shard(shard, env, hooks, spec.policy, spec.keep_values, mark)
    stopping.building = False  # what follows is quick, and belongs together
    if result.stop is not None:
        return JobState.FAILED, _stopped(spec, outcomes, result, result.stop)
    write_json(folder / DONE, {"indices": spec.indices_sha256, "begin": spec.begin, "end": spec.end})
    outcomes.append(spec.begin, Block(values=result.values, failed=result.failed))
    positions = range(spec.begin, spec.end)
    n, retries = len(result.values), result.retries
    outcomes.times.took(blame.worker, result.seconds, n, result.times, positions, retries=retries)
    return JobState.DONE, ""


def _stopped(spec: JobSpec, outcomes: ShardOutcomes, result: ShardResult, stop: ItemFailure) -> str:
    """Note the failure that has stopped a shard, and return it in a sentence."""
    at = len(result.values)
    if at < len(spec.items) and stop.index == spec.items[at]:  # else a hook failed that has no item
        outcomes.append_failure(spec.begin + at, stop)
    print(stop.traceback, flush=True)
    return (
        sentence_of(stop, spec.begin + at in outcomes.failed_before)
        if stop.cause != "runner"
        else f"the runner failed: {stop.error_type}: {stop.message}"
    )


def sentence_of(failure: ItemFailure, again: bool) -> str:
    """Return an item's failure in a sentence, for the states of a run."""
    return f"{failure.name} failed{' again' if again else ''}: {failure.error_type}: {failure.message}"
