"""BaseRunner: one static `forward(idx, **env)` over many indices, anywhere."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from espnet3.parallel.checks import FLAG, ON_ERROR, RESUME, Location, Whole, argument
from espnet3.parallel.env.injection import bind
from espnet3.parallel.errors import explained
from espnet3.parallel.parallel import active_client, active_config, before_loading
from espnet3.parallel.runner.arguments import FAILURES, SECONDS, SUBDIR, check_effects, with_suggestions
from espnet3.parallel.runner.hooks import close_all, concatenate_shard_files, make_static, new_state

if TYPE_CHECKING:
    from pathlib import Path

    from espnet3.parallel.config import ParallelConfig
    from espnet3.parallel.records import RunSummary
    from espnet3.parallel.runner.ranks import Rank
    from espnet3.parallel.runner.run import Run

__all__ = ["BaseRunner", "concatenate_shard_files"]


class BaseRunner(ABC):
    """Runs `forward` over indices, in this process or on workers, with the same answer everywhere.

    Args:
        provider: Builds the env, once per process.
        batch_size: Indices for one call of `batch_forward`; changes the speed, never the result. Without one it has no
            effect, except beside ESPnet's own `espnet3.systems`, where `forward` is given lists of so many indices.
        async_mode: Submit detached jobs instead of waiting.
        async_specs_dir: Folder for a link to the specs of detached jobs, which the run folder holds.
        async_result_dir: Output folder of detached jobs without an `output_dir`.
        async_num_workers: Detached jobs at a time.
        output_dir: Folder of the run: every outcome is on disk before it is reported, and an interrupted run goes on
            where it stopped.
        shard_subdir: The run's folder inside `output_dir`.
        resume: True goes on with the outcomes in the folder, if they are of this runner, config and index list; "force"
            goes on in any case; False moves them to `old.<n>` there, where the last such run is kept, and starts anew.
        on_error: "raise" stops at the first failed item with an `ItemError`; "record" puts an
            `ItemFailure` in the item's place and goes on.
        max_retries: Further tries of an item that raised, in place.
        seed: Seeds `random`, numpy and torch before each item from (seed, index). Batches are then
            of one item, so that no draw depends on a neighbour.
        progress: Show the run's state on standard error (a bar on a terminal and in a notebook, elsewhere a line now
            and then), and a last line with its figures.
        max_failures: With "record", stop once more items than this have failed: a number, or a
            share of all items below 1.
        setup_timeout: Seconds for building the env; None takes the configuration's.
        retry_failed: Run items again that failed in an earlier session, as `on_error="raise"` always does.
        item_timeout: Seconds for one call of `forward` (or of `batch_forward`): the worker of a longer one is killed
            and replaced, and the item fails with the cause "timeout". With one worker the items then run in a process
            of their own.
        split_batches: Halve a batch that does not fit into memory (of a GPU, or of this machine) until it fits, and
            keep that size for later batches of the process; False runs it item by item, like a batch that raises.
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
        make_static(cls)

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
        from pathlib import Path  # workers are starting meanwhile

        self.provider = provider
        self.batch_size = argument("batch_size", batch_size, Whole(none="None"))  # above 0: when it is called
        self.async_mode = argument("async_mode", async_mode, FLAG)
        self.async_specs_dir = Path(argument("async_specs_dir", async_specs_dir, Location()))
        self.async_result_dir = Path(argument("async_result_dir", async_result_dir, Location()))
        self.async_num_workers = argument("async_num_workers", async_num_workers, Whole(least=1, none="None"))
        folder = argument("output_dir", output_dir, Location(none="None"))
        self.output_dir = None if folder is None else Path(folder)
        self.shard_subdir = argument("shard_subdir", shard_subdir, SUBDIR)
        self.resume = argument("resume", resume, RESUME)
        self.on_error = argument("on_error", on_error, ON_ERROR)
        self.max_retries = argument("max_retries", max_retries, Whole(least=0))
        self.seed = argument("seed", seed, Whole(none="None"))
        self.progress = argument("progress", progress, FLAG)
        self.max_failures = argument("max_failures", max_failures, FAILURES)
        self.setup_timeout = argument("setup_timeout", setup_timeout, SECONDS)
        self.retry_failed = argument("retry_failed", retry_failed, FLAG)
        self.item_timeout = argument("item_timeout", item_timeout, SECONDS)
        self.split_batches = argument("split_batches", split_batches, FLAG)
        self.every_rank = argument("every_rank", every_rank, FLAG)
        check_effects(self)

    # `*args: Any, **env: Any` lets a type checker accept a subclass that names its own env entries

    @staticmethod
    @abstractmethod
    def forward(idx: Any, *args: Any, **env: Any) -> Any:
        """Compute one item's result; parameters after the first are env entries, by name."""

    @staticmethod
    def batch_forward(indices: Any, *args: Any, **env: Any) -> Any:
        """Compute several items' results, one per index, in their order. Optional, also without a `forward`."""
        raise NotImplementedError

    # A runner that overrides one of the hooks from here to `merge` writes files of its own. Their env, and that of its
    # `forward`, also holds `output_dir`, `shard_subdir` and `shard_id`.

    @staticmethod
    def open_writers(shard_dir: Any, *args: Any, **env: Any) -> Any:
        """Open a shard's writers, and return them for the other two hooks. Optional."""
        return {}

    @staticmethod
    def write_record(writers: Any, result: Any, state: Any, *args: Any, **env: Any) -> None:
        """Write one result. Optional; the default gathers results in `state["records"]`.

        It says where results go: the run folder keeps none of a runner that overrides it, and the call returns None for
        each, unless `merge` makes its result.
        `state` lives as long as the shard; it also holds `index`, `shard_id` and `shard_dir`.
        """
        state.setdefault("records", []).append(result)

    @staticmethod
    def close_writers(writers: Any, state: Any, *args: Any, **env: Any) -> Any:
        """Close a shard's writers, also after an error. Optional; the default closes everything in `writers`.

        A writer has a method `close`; `open_writers` returns one, or any nesting of lists, tuples and mappings of them.
        A shard is done once this has returned.
        """
        close_all(writers)

    @classmethod
    def init_state(cls, shard_id: int = 0, output_dir: str = "", shard_subdir: str = "", **env: Any) -> Any:
        """Return a shard's first state, with its writers opened. Optional.

        Only a runner that overrides it, `reduce_state` or `finalize_state` has these three called; the defaults call
        `open_writers`, `write_record` and `close_writers`.
        """
        from pathlib import Path  # first runs start their workers before

        folder = Path(output_dir, shard_subdir, f"split.{shard_id}")
        env |= {"output_dir": output_dir, "shard_subdir": shard_subdir, "shard_id": shard_id}
        return {**new_state(folder, shard_id), "_writers": bind(cls.open_writers, env)(folder)}

    @classmethod
    def reduce_state(cls, state: Any, result: Any, **env: Any) -> Any:
        """Return the shard's state with one more result written. Optional."""
        bind(cls.write_record, env, n_positional=3)(state["_writers"], result, state)
        return state

    @classmethod
    def finalize_state(cls, state: Any, **env: Any) -> Any:
        """Return the shard's state with its writers closed and the entries from `close_writers`. Optional."""
        found = bind(cls.close_writers, env, n_positional=2)(state.pop("_writers", {}), state)
        return {**state, **(found or {})}

    @classmethod
    def is_shard_done(cls, shard_dir: str | Path) -> bool:
        """Return whether a shard is finished, by its folder: one of those that `merge` gets."""
        from espnet3.parallel.ledger.split import DONE

        return os.path.exists(os.path.join(shard_dir, DONE))

    def merge(self, shard_dirs: list[Path]) -> Any:
        """Combine the files of the shards, and return the result of the call. Optional."""
        raise NotImplementedError

    def write_outputs(self, indices: Sequence[Any], results: Sequence[Any]) -> None:
        """Write more files of a whole run's results, also in a detached run's merge. Optional, without `merge`."""

    @explained
    def __call__(self, indices: Iterable[Any]) -> Any:
        """Run all indices; with `output_dir`, those that have no outcome in that folder yet.

        Args:
            indices: Any iterable; later changes of a list do not change the run.

        Returns:
            The results in the order of the indices: a list, or with `output_dir` a sequence that reads the folder
            lazily. With `merge` overridden, its result. With `async_mode`, a `DetachedRun`: a sequence of job records.

        Raises:
            TypeError: The indices are a text, a mapping or a table, probably by mistake.
            ItemError: The first failed item, unless failures are recorded.
            TooManyFailuresError: More failed than `max_failures`.
            WorkerSetupError: The env could not be built.
            SignatureError: `forward` needs something the env does not hold.
            LedgerError: The folder holds another run, is in use, is damaged or cannot be written to; or this is
                another rank than 0 of a distributed program, and rank 0 has failed.
        """
        return call_runner(self, indices)


def call_runner(runner: BaseRunner, indices: Iterable[Any], config: ParallelConfig | None = None) -> Any:
    """Call a runner with a configuration of this call; None: the open client, or the registered one."""
    with before_loading(here=runner.async_mode, config=config):
        from espnet3.parallel.runner.ranks import results_of_rank_0, shared_rank, telling_other_ranks
        from espnet3.parallel.runner.run import Run, compute

        run = Run.of(runner, indices)
        rank = shared_rank(run)
        with telling_other_ranks(run, rank):
            if runner.async_mode:
                return _detached(run, rank, config or active_config())
            if rank is not None and rank.number:
                return results_of_rank_0(run, rank)
            if run.folder is not None and os.path.isdir(run.folder / "detached"):
                from espnet3.parallel.detached.looking.status import refuse_living

                refuse_living(run.folder)
            return compute(run, active_client() if config is None else None, config or active_config())


def _detached(run: Run, rank: Rank | None, config: ParallelConfig) -> Any:
    if rank is None or rank.number == 0 or run.folder is None:
        from espnet3.parallel.detached.submission import submit_detached

        return submit_detached(run, config)
    from espnet3.parallel.detached.layout import FOLDER, PLAN, Layout
    from espnet3.parallel.detached.looking.detached_run import DetachedRun
    from espnet3.parallel.runner.ranks import wait_for_submission

    wait_for_submission(run, rank, run.folder / FOLDER / PLAN)
    return DetachedRun(Layout(run.folder), run.runner)


if __name__ == "__main__":  # python espnet3/parallel/base_runner.py SPEC: a detached job
    from espnet3.parallel.worker import main

    sys.exit(main())
