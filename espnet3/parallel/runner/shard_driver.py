"""The driver of runs with writers of their own: plans shards, settles poison, notes what is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.parallel.engine.exceptions import item_error, load_error
from espnet3.parallel.engine.work import Work
from espnet3.parallel.ledger.files import writing
from espnet3.parallel.records import ItemFailure, Policy, RunSummary, Tally
from espnet3.parallel.runner.shards import (
    Shard,
    ShardResult,
    died_in_items,
    forget_deaths,
    forget_flight,
    in_flight,
    poisoned,
)

if TYPE_CHECKING:
    from espnet3.parallel.ledger.session import OpenRun
    from espnet3.parallel.runner.items import Launch, Report


def run_shards(
    folder: OpenRun,
    shards: Sequence[Shard],
    launch: Launch,
    policy: Policy,
    report: Report,
    retry_failed: bool,
) -> RunSummary:
    """Run every shard that is not done yet to its end.

    Args:
        folder: The run's folder.
        shards: All shards of the run.
        launch: Runs the work, whose items are shards.
        policy: What the items inside are run with.
        report: Is told of each finished shard; may raise to stop the run.
        retry_failed: Run shards again that hold failed items.

    Returns:
        The run's figures.

    Raises:
        ItemError: An item failed, or killed its worker, and `policy.on_error` is "raise".
        LedgerError: The folder cannot take more, or was taken over.
    """
    begin = time.perf_counter()
    total = Tally()
    items = failed = retries = 0
    left = todo = [shard for shard in shards if not folder.has_shard(_marked(shard), retry_failed)]
    with writing(folder.path):
        for shard in left:
            forget_deaths(shard)
    while todo:
        work = Work(todo, [shard.cost for shard in todo])
        assert work.order is not None
        again: list[Shard] = []
        with launch(work) as (pairs, tally):
            for chunk, block in pairs:
                if block.error is not None:
                    raise item_error(block.error, block.stop)
                for place, value in enumerate(block.values, chunk.start):
                    shard = todo[work.order[place]]
                    if isinstance(value, ItemFailure):
                        again.append(_without_poison(shard, value, policy))
                        continue
                    if value.stop is not None:
                        raise _stopped(folder, shard, value)
                    _note_done(folder, shard, value)
                    items += len(value.values)
                    failed += len(value.failed)
                    retries += value.retries
                    report(len(value.values), len(value.failed))
        total = Tally(total.deaths + tally.deaths, total.busy + tally.busy, max(total.slots, tally.slots))
        todo = again
    kept = sum(len(shard.items) for shard in shards) - sum(len(shard.items) for shard in left)
    return total.summary(items, failed, retries, time.perf_counter() - begin, kept)


def _marked(shard: Shard) -> tuple[Path, range]:
    return Path(shard.folder), range(shard.begin, shard.begin + len(shard.items))


def _note_done(folder: OpenRun, shard: Shard, result: ShardResult) -> None:
    values, failed = result.values, set(result.failed)
    folder.shard_done(
        *_marked(shard),
        {shard.begin + k: line for k, line in enumerate(values) if k not in failed},
        {shard.begin + k: values[k] for k in result.failed},
    )


def _stopped(folder: OpenRun, shard: Shard, result: ShardResult) -> BaseException:
    assert result.stop is not None
    error = load_error(result.error)
    if result.stop.cause == "runner" and error is not None:
        return error
    at = len(result.values)
    if at < len(shard.items) and result.stop.index == shard.items[at]:  # else a hook failed that has no item
        folder.append_failures([(shard.begin + at, result.stop)])
    return item_error(error or RuntimeError(result.stop.message), result.stop)


def _without_poison(shard: Shard, death: ItemFailure, policy: Policy) -> Shard:
    """Return the shard to run in place of one that killed its workers.

    Raises:
        PoisonItemError: If the guilty item is known and failures are not recorded.
    """
    if death.cause == "timeout":
        return _without_late(shard, death, policy)
    if death.cause != "poison":  # the shard's result could not travel, though its values are checked
        raise item_error(RuntimeError(death.message), death)
    guilty, in_batch = poisoned(shard, death.attempts)
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


def _without_late(shard: Shard, late: ItemFailure, policy: Policy) -> Shard:
    """Return the shard to run in place of one whose worker was killed for an item that took too long.

    Raises:
        ItemError: If the item has had all its attempts and failures are not recorded.
    """
    stretch = in_flight(shard)
    forget_flight(shard)  # it was no crash
    if stretch is None:
        raise item_error(TimeoutError(late.message), late)
    at, end = stretch
    if end - at > 1:  # a batch: its items have the same time each
        return replace(shard, alone=True)
    attempts = shard.late.get(at, 0) + 1
    if attempts <= policy.max_retries:
        return replace(shard, late={**shard.late, at: attempts})
    failure = replace(late, index=shard.items[at], attempts=attempts)
    if policy.on_error == "raise":
        raise item_error(TimeoutError(failure.message), failure)
    return replace(shard, skip={**shard.skip, at: failure})
