"""One call of a runner: its record, and its driver, which fills a list or a run folder.

These are not methods of `BaseRunner`: users derive from it, and any further name in it could be one of theirs.
"""

from __future__ import annotations

import inspect
import math
import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.parallel.checks import Fits, Whole, argument
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.engine.exceptions import item_error
from espnet3.parallel.engine.work import Work, as_items
from espnet3.parallel.env.store import Adding, seen_as
from espnet3.parallel.env_provider import built_here, keywords_of, made_with, worker_setup_of
from espnet3.parallel.errors import ConfigError, NoOutputDirError, say_where
from espnet3.parallel.messages import shown
from espnet3.parallel.pilots.protocol import RunSpec
from espnet3.parallel.records import Policy
from espnet3.parallel.runner.arguments import SUBDIR, check_builds, check_finishing, check_indices
from espnet3.parallel.runner.execute import outcomes
from espnet3.parallel.runner.hooks import folder_entries, in_lists, is_default, takes_lists, writes_files
from espnet3.parallel.runner.progress import Report
from espnet3.parallel.timing.recorder import TimesRecorder

if TYPE_CHECKING:
    from espnet3.parallel.ledger.folder import OpenRun
    from espnet3.parallel.ledger.identity import Identity
    from espnet3.parallel.runner.shards import Launch

# Methods called when all items are done, with their arguments
_FINISHING = {"merge": ("shard_dirs",), "write_outputs": ("indices", "results")}
_AT_RISK = 0.005  # of a run's items may be in flight at once: a killed driver costs them


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a runner over all its items."""

    runner: Any  # the runner, with the settings that hold for all its runs: provider, limits, folders
    items: Sequence[Any]  # the indices; lists of them where `forward` takes lists
    cost: Sequence[float] | None  # the cost of each, or None
    policy: Policy  # errors, retries, seed, batch size and time limit
    batched: bool  # whether the runner has a `batch_forward` of its own, and a batch size
    align: int  # the batch size, or 1: chunks and shards begin at multiples of it
    writes: bool  # whether it writes files of its own (writer hooks or `merge`), so that whole shards run
    finishes: bool  # whether its `merge` or `write_outputs` makes something of the whole
    retry_failed: bool  # whether items that failed in an earlier session of the folder run again
    folder: Path | None  # the run folder, or None. Absolute: an item may change the working directory

    @classmethod
    def of(cls, runner: Any, indices: Iterable[Any]) -> Run:
        """Read a runner's arguments and the hooks it overrides."""
        check_indices(indices, "indices")
        check_builds(runner.provider)
        # it may have been set after the runner was made
        kind, size = type(runner), argument("batch_size", runner.batch_size, Whole(least=1, none="None"))
        items = as_items(indices, "indices")
        cost = _costs(runner.item_cost, items)
        if takes_lists(kind, size):
            items = in_lists(items, size)
            cost = None if cost is None else [sum(part) for part in in_lists(cost, size)]
            size = None
        where = runner.output_dir
        own = [name for name in _FINISHING if not is_default(kind, name)]
        for name in own:
            check_finishing(runner, name, _FINISHING[name])
        return cls(
            runner=runner,
            items=items,
            cost=cost,
            policy=Policy(
                runner.on_error,
                runner.max_retries,
                runner.seed,
                size,
                runner.item_timeout,
                poison_after=2 if where is None else 1,
                split_batches=runner.split_batches,
            ),
            batched=bool(size) and not is_default(kind, "batch_forward"),
            align=size or 1,
            writes=writes_files(kind),
            finishes=bool(own),
            retry_failed=runner.retry_failed or runner.on_error == "raise",
            folder=None if where is None else _folder(where, runner.shard_subdir),
        )

    def entries(self, folder: Path) -> dict[str, str]:
        """Return the env entries of the run folder: `output_dir` and `shard_subdir`.

        A runner that writes files gets both; any other one those that its `forward` or `batch_forward` names, so that
        `**env` of a plain `forward` takes up the provider's entries alone.
        """
        kind, found = type(self.runner), folder_entries(folder, self.runner.shard_subdir)
        if self.writes:
            return found
        called = ["forward", "batch_forward"] if self.batched else ["forward"]
        named = {name for one in called for name in inspect.signature(getattr(kind, one)).parameters}
        return {name: value for name, value in found.items() if name in named}

    def identity(self) -> Identity:
        """Return the run's identity, by which its folder is recognised."""
        from espnet3.parallel.ledger.identity import identify  # here: it is a tenth of a second
        from espnet3.parallel.runner.shards import FEW, SHARDS, cut

        runner, provider = self.runner, self.runner.provider
        lists = takes_lists(type(runner), runner.batch_size)
        n = len(self.items)
        few = self.cost is None and n <= FEW and not lists  # a list says what goes together
        return identify(
            type(runner),
            type(provider),
            made_with(provider),
            self.items,
            seed=runner.seed,
            lists=lists,
            policy=asdict(self.policy),
            plan={"shards": cut(n, n // 2 if few else SHARDS, self.cost, self.align)} if self.writes else {},
        )


def finish(runner: Any, items: Sequence[Any], results: Any, folder: Path | None, shards: int) -> Any:
    """Call a runner's `merge`, for so many shards, or `write_outputs`, and return the result of the call."""
    if folder is None or is_default(type(runner), "merge"):
        runner.write_outputs(items, results)
        return results
    folder = seen_as(folder, runner.output_dir / runner.shard_subdir)
    return runner.merge([folder / f"split.{number}" for number in range(shards)])


def compute(run: Run, client: Any, config: ParallelConfig) -> Any:
    """Drive a run from this process, note its figures at the runner, and return its results."""
    if run.folder is None and run.writes:
        raise NoOutputDirError(
            f"{type(run.runner).__name__} writes files of its own (it overrides a writer hook or merge), which "
            "requires output_dir: pass one"
        )
    runner, provider = run.runner, run.runner.provider
    entries, given = ({}, "") if run.folder is None else (run.entries(run.folder), str(runner.output_dir))
    spec = RunSpec(
        one=type(runner).forward,
        many=type(runner).batch_forward if run.batched else None,
        kwargs=keywords_of(provider),
        setup=Adding(worker_setup_of(provider), entries, given),
        policy=run.policy,
        setup_timeout=runner.setup_timeout,
    )
    report = Report(run)
    launch = partial(
        outcomes,
        client=client,
        config=config,
        tally=report.tally,
        here=Adding(partial(built_here, provider), entries, given),
        killable=run.policy.item_timeout is not None,
        show_dashboard=runner.progress,
    )
    try:
        if run.folder is None:
            return _to_list(run, spec, launch, report)
        return _in_folder(run, run.folder, spec, launch, report)
    except BaseException as error:
        report.stopped(error)
        raise


def _to_list(run: Run, spec: RunSpec, launch: Launch, report: Report) -> Any:
    results: list[Any] = [None] * len(run.items)
    work = Work(run.items, run.cost, run.align)
    with closing(launch(spec, work)) as pairs:
        for chunk, block in pairs:
            results[chunk.start : chunk.start + len(block.values)] = block.values
            report.add(block)
            if block.error is not None:
                raise item_error(block.take_error(), block.stop)
    if work.order is not None:  # the most expensive items went first
        results = [results[at] for at in sorted(range(len(results)), key=work.order.__getitem__)]
    report.end(report.summary())
    return finish(run.runner, run.items, results, None, 0)


def _in_folder(run: Run, path: Path, spec: RunSpec, launch: Launch, report: Report) -> Any:
    from espnet3.parallel.ledger.folder import open_run, resumed  # here: it is a tenth of a second
    from espnet3.parallel.ledger.identity import items_have_run, what_counts
    from espnet3.parallel.ledger.merge import Results, note_finished
    from espnet3.parallel.ledger.split import FAILED
    from espnet3.parallel.provenance.parts import LoadedCode
    from espnet3.parallel.runner.shards import run_shards, shards_of

    retry, identity = run.retry_failed, run.identity()
    loaded = LoadedCode({} if resumed(run.runner.resume) == "force" else identity.code, what_counts)
    with open_run(path, identity, run.items, run.runner.resume) as folder:
        shards = shards_of(folder.plan["shards"], run.items, folder.path) if run.writes else []
        again = [shard for shard in shards if not folder.has_shard(shard.marked, retry)]
        if run.writes:
            parts = [shard.marked[1] for shard in again]
            left = sum(map(len, parts))
            failed = folder.failed - sum(folder.state.count(FAILED, part.start, part.stop) for part in parts)
        else:
            left, failed = len(folder.left(retry)), 0 if retry else folder.failed
        report.resume(len(run.items) - left, failed, folder.resuming(left))
        spec = replace(spec, loaded=loaded)
        try:
            if run.writes:
                run_shards(run, folder, again, spec, launch, report)
            elif left:
                _run_items(run, folder, replace(spec, as_lines=True), launch, report)
            summary = report.summary()
            folder.event("computed", **asdict(summary))
            folder.merge(finished=not run.finishes)
            report.end(summary)
            result = finish(run.runner, run.items, Results(path), path, len(shards))
        finally:
            if loaded.is_used_here():
                provider = run.runner.provider
                items_have_run(identity, type(run.runner), type(provider), made_with(provider))
        if run.finishes:
            folder.lease.check()
            note_finished(path)
        return result


def _run_items(run: Run, folder: OpenRun, spec: RunSpec, launch: Launch, report: Report) -> None:
    left = folder.left(run.retry_failed)
    if isinstance(left, range):  # all of them
        work = Work(run.items, run.cost, run.align, at_risk=_AT_RISK)
    else:
        cost = array("d", (run.cost[p] for p in left)) if run.cost is not None else None
        work = Work([run.items[p] for p in left], cost, run.align, left, _AT_RISK)
    with closing(launch(spec, work)) as pairs, TimesRecorder(folder.split.append_times, run.items) as times:
        for chunk, block in pairs:
            times.workers(report.tally)
            values, bad, positions = block.values, block.failed, work.positions(chunk)
            lines = [value for value in values if type(value) is bytes] if bad else values
            folder.append(lines, None if bad else positions)
            lost = [(positions[k], values[k]) for k in bad]
            if block.stop is not None:
                lost.append((positions[len(values)], block.stop))
            folder.append_failures(lost)
            times.took(block.worker, block, positions)
            report.add(block)
            if block.error is not None:
                raise item_error(block.take_error(), block.stop)
        times.workers(report.tally)


def _folder(output_dir: Path, shard_subdir: str | Path) -> Path:
    folder: Path = (output_dir / argument("shard_subdir", shard_subdir, SUBDIR)).absolute()
    if not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(output_dir)):
        raise ConfigError(
            f"shard_subdir = {str(shard_subdir)!r} leads out of output_dir through a symbolic link, to "
            f"{os.path.realpath(folder)}: name another folder, or pass that one as output_dir"
        )
    return folder


def _costs(item_cost: Callable[[Any], Any] | None, items: Sequence[Any]) -> list[float] | None:
    argument("item_cost", item_cost, Fits(callable, "a function from an item to a number", none="None"))
    if item_cost is None:
        return None
    costs = []
    for item in items:
        try:
            cost = item_cost(item)
        except Exception as error:
            say_where(error, f"in the call item_cost({shown(item)})")
            raise
        try:
            number = float(cost)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if isinstance(cost, str) or not (math.isfinite(number) and number >= 0):
            raise ConfigError(f"item_cost({item!r}) is {shown(cost)}; it must be a finite number, 0 or more")
        costs.append(number)
    return costs
