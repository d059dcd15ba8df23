"""BaseRunner: one static `forward(idx, **env)` over many indices, wherever they run."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.parallel.checks import SignatureOfInit, refuse_incomplete
from espnet3.parallel.env.injection import bind
from espnet3.parallel.errors import explained
from espnet3.parallel.parallel import active_client, active_config, before_loading
from espnet3.parallel.runner.arguments import (
    check_batches,
    check_provider,
    checked,
    no_attribute,
    with_indices,
    with_suggestions,
)
from espnet3.parallel.runner.hooks import (
    close_all,
    concatenate_shard_files,
    default,
    in_batches_of_one,
    is_default,
    make_static,
    opened_state,
)

if TYPE_CHECKING:
    from espnet3.parallel.records import RunSummary
    from espnet3.parallel.runner.ranks import Rank
    from espnet3.parallel.runner.run import Run

__all__ = ["BaseRunner", "concatenate_shard_files"]


class BaseRunner(ABC):
    """Runs `forward` over indices: in this process, over Dask workers, the same answer everywhere.

    Args:
        provider: Builds the env, once per process.
        batch_size: Indices given to `batch_forward` at once; changes the speed, never the result. Without a
            `batch_forward`, a `forward` that says it takes lists is given lists of so many indices, in a runner
            that writes files of its own; `write_record` is given what it returns for each.
        async_mode: Submit detached jobs instead of waiting.
        async_specs_dir: Where a link to detached jobs' specs is put, which are in the run folder, one for each shard.
        async_result_dir: Where detached jobs write where there is no `output_dir`.
        async_num_workers: Detached jobs at a time.
        output_dir: Folder of the run: every outcome is on disk before it is reported, and a run that
            was cut off goes on where it stopped.
        shard_subdir: The run's folder inside `output_dir`.
        resume: True goes on with what the folder holds, if it is of this runner, config and index list;
            "force" goes on whatever has changed; False moves it to `old.<n>` there and starts anew.
        on_error: "raise" stops at the first failed item with an `ItemError`; "record" puts an
            `ItemFailure` in the item's place and goes on.
        max_retries: How often an item that raised is tried again, in place.
        seed: Seeds `random`, numpy and torch before each item from (seed, index). Batches are then
            of one item, so that no draw depends on a neighbour.
        progress: Show on standard error what the run is doing (a bar, or a line now and then where that is no
            terminal and no notebook), and a last line with its figures.
        max_failures: With "record", stop once more items than this have failed: a number, or a
            share of all items below 1.
        setup_timeout: Seconds the env may take to build; None takes the configuration's.
        retry_failed: Run items again that failed in an earlier session of the folder; with
            `on_error="raise"` they always are.
        item_timeout: Seconds that one call of `forward` (or of `batch_forward`) may take: a worker in
            which one takes longer is killed and replaced, and the item has failed with the cause
            "timeout". With one worker the items then run in a process of their own.
        split_batches: A batch for which memory was not enough (a GPU's, or this machine's) is halved until it fits, and
            later batches in this process have the size that fitted; False runs it item by item, as any that raises.
        every_rank: Have each process of a distributed program (torchrun, Lightning, srun) run its own indices.
            Otherwise, with an `output_dir`, rank 0 runs them and the others wait for its results.

    Attributes:
        summary: The figures of the last finished run (`RunSummary`), or None.

    Raises:
        ConfigError: An argument is wrong.
        SignatureError: When a subclass is defined whose `forward` is not static, is asynchronous, or has a `yield`.
    """

    summary: RunSummary | None = None
    # `(self, idx) -> float` in a subclass: the item's cost in any unit; the most expensive start first
    item_cost: Any = None

    @explained
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.forward is BaseRunner.forward and not is_default(cls, "batch_forward"):
            cls.forward = staticmethod(in_batches_of_one(cls))  # type: ignore[method-assign]  # it has none
        make_static(cls)

    __signature__ = SignatureOfInit()

    @explained
    def __new__(cls, *args: Any, **kwargs: Any) -> BaseRunner:
        """Make a runner, if it has all that it needs."""
        refuse_incomplete(cls, BaseRunner)
        return super().__new__(cls)

    @with_suggestions
    def __init__(
        self,
        provider: Any,
        batch_size: int | None = None,
        output_dir: str | Path | None = None,
        shard_subdir: str = "",
        resume: bool | str = True,
        *,
        async_mode: bool = False,
        async_specs_dir: str | Path = "./_async_specs",
        async_result_dir: str | Path = "./_async_results",
        async_num_workers: int | None = None,
        on_error: str = "raise",
        max_retries: int = 0,
        seed: int | None = None,
        progress: bool = True,
        max_failures: float | None = None,
        setup_timeout: float | None = None,
        retry_failed: bool = False,
        item_timeout: float | None = None,
        split_batches: bool = True,
        every_rank: bool = False,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "provider")}
        check_provider(provider)
        self.provider = provider
        for name, value in given.items():
            setattr(self, name, checked(name, value))
        self.shard_subdir = shard_subdir  # as it was written
        check_batches(self)

    def __getattr__(self, name: str) -> Any:
        raise no_attribute(self, name)

    # `*args: Any, **env: Any` lets a type checker accept a subclass that names its own env entries

    @staticmethod
    @abstractmethod
    def forward(idx: Any, *args: Any, **env: Any) -> Any:
        """Compute one item's result; parameters after the first are env entries, by name."""

    @staticmethod
    @default
    def batch_forward(indices: Any, *args: Any, **env: Any) -> Any:
        """Compute several items' results, one per index, in their order. Optional; it may stand without `forward`."""
        raise NotImplementedError

    # A runner writes files of its own where it overrides one of the hooks from here to `merge`. Their env also holds
    # `output_dir`, `shard_subdir` and `shard_id`, and so does that of its `forward`.

    @staticmethod
    @default
    def open_writers(shard_dir: Any, *args: Any, **env: Any) -> Any:
        """Open a shard's writers; what is returned is given to the other two hooks. Optional."""
        return {}

    @staticmethod
    @default
    def write_record(writers: Any, result: Any, state: Any, *args: Any, **env: Any) -> None:
        """Write one result. Optional; without it, results are gathered in `state["records"]`.

        `state` lives as long as the shard; it also holds `index`, `shard_id` and `shard_dir`.
        """
        state.setdefault("records", []).append(result)

    @staticmethod
    @default
    def close_writers(writers: Any, state: Any, *args: Any, **env: Any) -> Any:
        """Close a shard's writers, also after an error. Optional; without it, everything in `writers` is closed.

        That is whatever `open_writers` returned and has a method `close`: one writer, or any nesting of lists, tuples
        and mappings of them. A shard is done once this has returned.
        """
        close_all(writers)

    @classmethod
    @default
    def init_state(cls, shard_id: int = 0, output_dir: str = "", shard_subdir: str = "", **env: Any) -> Any:
        """Return a shard's first state, with its writers opened. Optional.

        Only where a runner overrides it, `reduce_state` or `finalize_state` are these three called, and what they do
        here calls `open_writers`, `write_record` and `close_writers`.
        """
        entries = {"output_dir": output_dir, "shard_subdir": shard_subdir, "shard_id": shard_id}
        return opened_state(cls, {**env, **entries})

    @classmethod
    @default
    def reduce_state(cls, state: Any, result: Any, **env: Any) -> Any:
        """Return the shard's state with one more result written. Optional."""
        bind(cls.write_record, env, n_positional=3)(state["_writers"], result, state)
        return state

    @classmethod
    @default
    def finalize_state(cls, state: Any, **env: Any) -> Any:
        """Return the shard's state with its writers closed, and what `close_writers` returned in it. Optional."""
        found = bind(cls.close_writers, env, n_positional=2)(state.pop("_writers", {}), state)
        return {**state, **(found or {})}

    @default
    def merge(self, shard_dirs: list[Path]) -> Any:
        """Combine what the shards wrote; what it returns is the result of the call. Optional."""
        raise NotImplementedError

    @default
    def write_outputs(self, indices: Sequence[Any], results: Sequence[Any]) -> None:
        """Write more files of a whole run's results, also in a detached run's merge. Optional, without `merge`."""

    @with_indices
    def __call__(self, indices: Iterable[Any]) -> Any:
        """Run all indices; with `output_dir`, those that have no outcome in that folder yet.

        Args:
            indices: Any iterable; what is done to a list while the run goes on does not change the run.

        Returns:
            The results in the order of the indices: a list, or with `output_dir` a sequence that is read
            from the folder as it is used. With `merge` overridden, what it returns. With `async_mode`,
            a `DetachedRun`: a sequence of job records.

        Raises:
            TypeError: The indices are a text, a mapping or a table, whose items are hardly what is meant.
            ItemError: The first failed item, unless failures are recorded.
            TooManyFailuresError: More failed than `max_failures`.
            WorkerSetupError: The env could not be built.
            SignatureError: `forward` needs something the env does not hold.
            LedgerError: The folder holds another run, is in use, is damaged or cannot be written to; or this is
                another rank than 0 of a distributed program, and rank 0 has failed.
        """
        with before_loading(here=self.async_mode):
            return _call(self, indices)


def _call(runner: BaseRunner, indices: Iterable[Any]) -> Any:
    from espnet3.parallel.runner.ranks import results_of_rank_0, telling_other_ranks, waiting_rank
    from espnet3.parallel.runner.run import Run, compute

    run = Run.of(runner, indices)
    rank = waiting_rank(run)
    with telling_other_ranks(run) if rank is None else nullcontext():
        if runner.async_mode:
            return _detached(run, rank)
        if rank is not None:
            return results_of_rank_0(run, rank)
        if run.folder is not None and (run.folder / "detached").is_dir():
            from espnet3.parallel.detached.looking.status import refuse_living

            refuse_living(run.folder)
        result, runner.summary = compute(run, active_client(), active_config())
        if not run.merges:
            runner.write_outputs(run.items, result)
    return result


def _detached(run: Run, rank: Rank | None) -> Any:
    """Submit a run, or find what rank 0 has submitted."""
    if rank is None or run.folder is None:
        from espnet3.parallel.detached.submission import submit_detached

        return submit_detached(run, active_config())
    from espnet3.parallel.detached.layout import FOLDER, PLAN, Layout
    from espnet3.parallel.detached.looking.detached_run import DetachedRun
    from espnet3.parallel.runner.ranks import wait_for_submission

    wait_for_submission(run, rank, run.folder / FOLDER / PLAN)
    return DetachedRun(Layout(run.folder), run.runner)


if __name__ == "__main__":  # python espnet3/parallel/base_runner.py SPEC: a detached job
    from espnet3.parallel.worker import main

    sys.exit(main())
