"""A job whose runner writes files of its own: the whole shard, or none of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.job.outcomes import ShardOutcomes
from espnet3.parallel.detached.job.stopping import StopNow, Stopping
from espnet3.parallel.detached.late import LateItems
from espnet3.parallel.detached.spec import JobSpec
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.engine.exceptions import load_error
from espnet3.parallel.engine.loop import Block, on_a_worker
from espnet3.parallel.engine.watch import Late, Report, end_process
from espnet3.parallel.ledger.files import write_json
from espnet3.parallel.ledger.split import DONE
from espnet3.parallel.records import ItemFailure
from espnet3.parallel.runner.shards import (
    Hooks,
    Shard,
    ShardResult,
    forget_flight,
    in_flight,
    make_check,
    make_shard_function,
    poisoned,
)

BuildEnv = Callable[[], tuple[Any, dict[str, Any]]]


def run_hooks(
    spec: JobSpec, outcomes: ShardOutcomes, build: BuildEnv, stopping: Stopping, late: LateItems
) -> tuple[JobState, str]:
    """Run a shard from `open_writers` to `close_writers`, in an emptied folder.

    Args:
        spec: The shard.
        outcomes: Its outcomes.
        build: Returns the runner's class and the env.
        stopping: A signal may end it at any time, as it starts over anyway.
        late: Where items are noted that take too long.

    Returns:
        The state it ended in, and why.
    """
    folder = Path(spec.run) / f"split.{spec.shard}"
    mark = {"indices": spec.indices_sha256, "begin": spec.begin, "end": spec.end}
    runner, env = build()
    hooks = Hooks(
        runner.forward,
        runner.batch_forward if spec.batched else None,
        runner.open_writers,
        runner.write_record,
        runner.close_writers,
    )
    make_check(hooks)(env)
    shard = Shard(spec.shard, str(folder), spec.items, spec.begin)
    guilty, in_batch = poisoned(shard, 2)
    skip = {k: _poison(spec.items[k]) for k in guilty}
    for at, one in late.given_up(spec.policy).items():
        k = at - spec.begin
        skip[k] = late.failure(
            one, spec.items[k], spec.policy, f"shard {spec.shard} on {os.uname().nodename}"
        )
    if skip and spec.policy.on_error == "raise":
        first = min(skip)
        outcomes.append_failure(spec.begin + first, skip[first])
        return JobState.FAILED, f"item {skip[first].index!r} failed: {skip[first].message}"
    shard = replace(shard, skip=skip, alone=in_batch or bool(late.suspects))
    try:
        with on_a_worker(_report(shard, late) if spec.policy.item_timeout is not None else None):
            result: ShardResult = make_shard_function(hooks, spec.policy, spec.keep_values)(shard, **env)
    except StopNow:
        forget_flight(shard)  # it was told to stop: what was in flight is not to blame
        raise
    stopping.building = False  # what follows is quick, and belongs together
    if result.stop is not None:
        at = len(result.values)
        if (
            at < len(spec.items) and result.stop.index == spec.items[at]
        ):  # else a hook failed that has no item
            outcomes.append_failure(spec.begin + at, result.stop)
        error = load_error(result.error)
        with contextlib.suppress(KeyError):
            print(result.stop.traceback, flush=True)
        what = f"item {result.stop.index!r}" if result.stop.cause != "runner" else "the runner"
        return JobState.FAILED, f"{what} failed: {type(error).__name__}: {result.stop.message}"
    write_json(folder / DONE, mark)
    outcomes.append(spec.begin, Block(values=result.values, failed=result.failed))
    return JobState.DONE, ""


def _report(shard: Shard, late: LateItems) -> Report:
    """Return what notes an item that takes too long, and ends this process with it."""

    def report(found: Late) -> None:
        try:
            begin = shard.begin + (in_flight(shard) or (0, 0))[0] + found.position
            late.note(begin, begin + found.items, found.seconds, found.stack)
            forget_flight(shard)
        finally:
            end_process()

    return report


def _poison(index: Any) -> ItemFailure:
    message = "its job died twice while this was the only item there"
    return ItemFailure(index, "WorkerDied", message, "", 2, "a detached job", "poison")
