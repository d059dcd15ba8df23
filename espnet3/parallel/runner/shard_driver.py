"""The driver of runs with writers of their own: hands out shards, settles who ended a worker, notes what is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.parallel.engine.blame import OUTSIDE, Fate, History, Loss
from espnet3.parallel.engine.exceptions import item_error, load_error
from espnet3.parallel.engine.settling import Block
from espnet3.parallel.engine.work import Chunk, Work
from espnet3.parallel.ledger.files import writing
from espnet3.parallel.ledger.scan import FAILED
from espnet3.parallel.records import ItemFailure, NoItem, Policy, RunSummary, Tally
from espnet3.parallel.runner.shards import Shard, ShardResult, take_mark
from espnet3.parallel.timing.recorder import TimesRecorder

if TYPE_CHECKING:
    from espnet3.parallel.ledger.session import OpenRun
    from espnet3.parallel.runner.items import Launch, Report


def left_of(folder: OpenRun, shards: Sequence[Shard], retry_failed: bool) -> list[Shard]:
    """Return the shards to run, each from its beginning: those that are not done, or hold an item to try again."""
    return [shard for shard in shards if not folder.has_shard(_marked(shard), retry_failed)]


def failed_elsewhere(folder: OpenRun, left: Sequence[Shard]) -> int:
    """Return how many items of the run have failed in other shards than these, which are run again."""
    return folder.failed - sum(
        folder.state.count(FAILED, shard.begin, shard.begin + len(shard.items)) for shard in left
    )


def run_shards(
    folder: OpenRun,
    shards: Sequence[Shard],
    launch: Launch,
    policy: Policy,
    report: Report,
    retry_failed: bool,
    recorder: TimesRecorder,
) -> RunSummary:
    """Run every shard that is not done yet to its end."""
    begin = time.perf_counter()
    left = left_of(folder, shards, retry_failed)
    with writing(folder.path):
        for shard in left:
            take_mark(
                shard
            )  # an earlier driver's: whoever killed it killed its workers too, and no item is to blame
    run = _Run(folder, policy, report)
    tally = Tally()
    if left:
        work = Work(left, [shard.cost for shard in left])
        with launch(work) as (pairs, tally), recorder:
            for chunk, block in pairs:
                run.take(chunk, block, work)
                recorder.workers(tally)
                _note_times(recorder, chunk, block)
    kept = sum(len(shard.items) for shard in shards) - sum(len(shard.items) for shard in left)
    summary = tally.summary(run.items, run.failed, run.retries, begin, kept)
    return replace(summary, kept_failed=failed_elsewhere(folder, left), halved=summary.halved + run.halved)


class _Run:
    """The shards of one run, as their results and their losses come in.

    What is held against items is kept in memory, as it ends with this driver.

    Attributes:
        items: Items of the shards that are done.
        failed: Those of them that have failed.
        retries: Times an item was tried again.
        halved: Times a batch was halved because it did not fit into memory.
    """

    def __init__(self, folder: OpenRun, policy: Policy, report: Report) -> None:
        self.items = self.failed = self.retries = self.halved = 0
        self._folder = folder
        self._policy = policy
        self._report = report
        self._histories: dict[int, History] = {}

    def take(self, chunk: Chunk, block: Block, work: Work) -> None:
        """Note the shards of a chunk that are done; put those back that have lost their worker."""
        if block.error is not None:
            raise item_error(block.take_error(), block.stop)
        for place, (shard, value) in enumerate(zip(chunk.items, block.values, strict=False), chunk.start):
            if not isinstance(value, ItemFailure):
                self._done(shard, value)
            elif block.loss is None:  # its result could not travel, though its values are checked
                raise item_error(
                    RuntimeError(value.message), replace(value, index=NoItem(f"shard {shard.number}"))
                )
            else:
                again = self._after_loss(shard, block.loss, value.worker)
                work.put_back(Chunk(place, [again], suspect=True))

    def _done(self, shard: Shard, result: ShardResult) -> None:
        if result.stop is not None:
            raise _stopped(self._folder, shard, result)
        _note_done(self._folder, shard, result)
        self.items += len(result.values)
        self.failed += len(result.failed)
        self.retries += result.retries
        self.halved += result.halved
        self._report(result.values, result.failed)

    def _after_loss(self, shard: Shard, loss: Loss, worker: str) -> Shard:
        """Return the shard to run in place of one that has lost its worker."""
        history = self._histories.setdefault(shard.number, History(self._policy))
        found = take_mark(shard)
        begin, end = found if isinstance(found, tuple) else (OUTSIDE, OUTSIDE + 1)
        fate = history.add(
            replace(loss, begin=begin, items=end - begin, hook=found if isinstance(found, str) else "")
        )
        if not fate.failed:
            self.retries += loss.seconds is not None and end - begin == 1
            return replace(shard, one_by_one=shard.one_by_one or end - begin > 1)
        index = NoItem(f"shard {shard.number}") if begin == OUTSIDE else shard.items[begin]
        failure = history.failure(begin, index, worker)
        if begin == OUTSIDE or self._policy.on_error == "raise":
            kind = TimeoutError if fate is Fate.GIVEN_UP else RuntimeError
            raise item_error(kind(failure.message), failure)
        return replace(shard, skip={**shard.skip, begin: failure})


def _note_times(recorder: TimesRecorder, chunk: Chunk, block: Block) -> None:
    """Note how long the items of a chunk's shards took; the last shard has just ended."""
    ago = 0.0
    for shard, result in reversed(list(zip(chunk.items, block.values, strict=False))):
        if isinstance(result, ShardResult) and result.values:
            positions = range(shard.begin, shard.begin + len(shard.items))
            n, retries = len(result.values), result.retries
            recorder.took(block.worker, result.seconds, n, result.times, positions, ago, retries)
            ago += result.seconds


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
