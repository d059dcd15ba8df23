"""The driver of runs with writers of their own: plans shards, settles poison, puts results together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.launchers.execute import Task, outcomes
from espnet3.parallel.plan import Work
from espnet3.parallel.raising import item_error, load_error
from espnet3.parallel.records import ItemFailure, Policy, RunSummary, Tally
from espnet3.parallel.shards import Shard, ShardResult, died_in_items, poisoned


def run_shards(
    shards: Sequence[Shard],
    task: Task,
    client: Any,
    config: ParallelConfig,
    policy: Policy,
    report: Callable[[ShardResult], None],
) -> tuple[list[ShardResult], RunSummary]:
    """Run every shard to its end.

    Args:
        shards: What to run.
        task: Its `one` runs a `Shard`.
        client: As for `outcomes`.
        config: As for `outcomes`.
        policy: What the items inside are run with.
        report: Told of each finished shard; may raise to stop the run.

    Returns:
        The shards' results in their order, and the run's figures.

    Raises:
        ItemError: An item failed, or killed its worker, and `policy.on_error` is "raise".
    """
    begin = time.perf_counter()
    results: dict[int, ShardResult] = {}
    todo = list(shards)
    total = Tally()
    while todo:
        work = Work(todo, [shard.cost for shard in todo])
        assert work.order is not None
        again: list[Shard] = []
        with outcomes(task, work, client, config) as (pairs, tally):
            for run, block in pairs:
                if block.error is not None:
                    raise item_error(block.error, block.stop)
                for place, value in enumerate(block.values, run.start):
                    shard = todo[work.order[place]]
                    if isinstance(value, ItemFailure):
                        again.append(_without_poison(shard, value, policy))
                        continue
                    if value.stop is not None:
                        raise _stopped(value)
                    results[shard.number] = value
                    report(value)
        total = Tally(total.deaths + tally.deaths, total.busy + tally.busy, max(total.slots, tally.slots))
        todo = again
    ordered = [results[shard.number] for shard in shards]
    summary = RunSummary(
        items=sum(len(r.values) for r in ordered),
        failed=sum(len(r.failed) for r in ordered),
        retries=sum(r.retries for r in ordered),
        deaths=total.deaths,
        seconds=time.perf_counter() - begin,
        busy_seconds=total.busy,
        slots=total.slots,
    )
    return ordered, summary


def _stopped(result: ShardResult) -> BaseException:
    assert result.stop is not None
    error = load_error(result.error)
    if result.stop.cause == "runner" and error is not None:
        return error
    return item_error(error or RuntimeError(result.stop.message), result.stop)


def _without_poison(shard: Shard, death: ItemFailure, policy: Policy) -> Shard:
    """Return the shard to run in place of one that killed its workers.

    Raises:
        PoisonItemError: If the guilty item is known and failures are not recorded.
    """
    if death.cause != "poison":  # the shard's result could not travel, though its values are checked
        raise item_error(RuntimeError(death.message), death)
    guilty, in_batch = poisoned(shard)
    if guilty:
        failures = {k: replace(death, index=shard.items[k]) for k in guilty}
        if policy.on_error == "raise":
            first = failures[guilty[0]]
            raise item_error(RuntimeError(first.message), first)
        return replace(shard, skip={**shard.skip, **failures})
    if in_batch and not shard.alone:
        return replace(shard, alone=True)
    if died_in_items(shard):  # in different items, each once
        return shard
    outside = replace(
        death, index=f"shard {shard.number}", message=f"{death.message}; outside its items, in a hook"
    )
    raise item_error(RuntimeError(outside.message), outside)
