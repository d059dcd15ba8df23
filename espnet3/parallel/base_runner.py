"""BaseRunner: one static `forward(idx, **env)` over many indices, wherever they run."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.parallel.engine.work import as_items
from espnet3.parallel.env_provider import made_with, worker_setup_of
from espnet3.parallel.errors import ConfigError, SignatureError, TooManyFailuresError
from espnet3.parallel.parallel import active_client, get_parallel_config
from espnet3.parallel.records import Policy, RunSummary
from espnet3.parallel.runner.arguments import check_number, check_provider, check_whole, costs_of
from espnet3.parallel.runner.execute import Task, outcomes
from espnet3.parallel.runner.items import Launch, Report, run_to_folder, run_to_list
from espnet3.parallel.runner.progress import Progress
from espnet3.parallel.runner.shard_driver import run_shards
from espnet3.parallel.runner.shards import Hooks, cut, make_check, make_shard_function, shards_of

if TYPE_CHECKING:
    from espnet3.parallel.detached.looking.run import DetachedRun
    from espnet3.parallel.ledger.identity import Identity
    from espnet3.parallel.ledger.session import OpenRun

_STATIC = ("forward", "batch_forward", "open_writers", "write_record", "close_writers")
_HOOKS = ("open_writers", "write_record", "close_writers")


class BaseRunner(ABC):
    """Runs `forward` over indices: in this process, over Dask workers, the same answer everywhere.

    Args:
        provider: Builds the env, once per process.
        batch_size: Indices given to `batch_forward` at once; changes the speed, never the result.
        async_mode: Submit detached jobs instead of waiting.
        async_specs_dir: Where detached jobs' specs are written.
        async_result_dir: Where detached jobs write where there is no `output_dir`.
        async_num_workers: Detached jobs at a time.
        output_dir: Folder of the run: every outcome is on disk before it is reported, and a run that
            was cut off goes on where it was.
        shard_subdir: The run's folder inside `output_dir`.
        resume: True goes on with what the folder holds, if it is of this runner, config and index list;
            "force" goes on whatever has changed; False moves it to `old.<n>` there and starts anew.
        on_error: "raise" stops at the first failed item with an `ItemError`; "record" puts an
            `ItemFailure` in the item's place and goes on.
        max_retries: How often an item that raised is tried again, in place.
        seed: Seeds `random`, numpy and torch before each item from (seed, index). Batches are then
            of one item, so that no draw depends on a neighbour.
        progress: Show a bar (or a line a minute) and a last line on standard error.
        max_failures: With "record", stop once more items than this have failed: a number, or a
            share of all items below 1.
        setup_timeout: Seconds the env may take to build; None takes the configuration's.
        retry_failed: Run items again that failed in an earlier session of the folder; with
            `on_error="raise"` they always are.
        item_timeout: Seconds that one call of `forward` (or of `batch_forward`) may take: a worker in
            which one takes longer is killed and replaced, and the item has failed with the cause
            "timeout". With one worker the items then run in a process of their own.

    Attributes:
        summary: The figures of the last finished run (`RunSummary`), or None.

    Raises:
        ConfigError: An argument is wrong.
        SignatureError: When a subclass is defined whose `forward` is not static, or is asynchronous.
    """

    summary: RunSummary | None = None
    # `(self, idx) -> float` in a subclass: the item's cost in any unit; the dearest start first
    item_cost: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _STATIC:
            own = inspect.getattr_static(cls, name)
            if inspect.isfunction(own):  # plain, so a method; also one that a mixin brings
                raise SignatureError(
                    f"{cls.__qualname__}.{name} must be static: it runs on workers, where there is no self. "
                    f"Put @staticmethod above it and take what it needs from the env"
                )
            if inspect.iscoroutinefunction(getattr(own, "__func__", own)):
                raise SignatureError(
                    f"{cls.__qualname__}.{name} must be a plain function: nothing would await what an `async "
                    "def` returns. Call asyncio.run(...) in it"
                )

    def __init__(
        self,
        provider: Any,
        *,
        batch_size: int | None = None,
        async_mode: bool = False,
        async_specs_dir: str | Path = "./_async_specs",
        async_result_dir: str | Path = "./_async_results",
        async_num_workers: int | None = None,
        output_dir: str | Path | None = None,
        shard_subdir: str = "",
        resume: bool | str = True,
        on_error: str = "raise",
        max_retries: int = 0,
        seed: int | None = None,
        progress: bool = True,
        max_failures: float | None = None,
        setup_timeout: float | None = None,
        retry_failed: bool = False,
        item_timeout: float | None = None,
    ) -> None:
        check_whole("batch_size", batch_size, least=1, or_none=True)
        check_whole("max_retries", max_retries, least=0)
        check_whole("seed", seed, or_none=True)
        if on_error not in ("raise", "record"):
            raise ConfigError(f'on_error must be "raise" or "record", not {on_error!r}')
        if resume not in (True, False, "force"):
            raise ConfigError(f'resume must be True, False or "force", not {resume!r}')
        check_number("max_failures", max_failures)
        check_number("setup_timeout", setup_timeout, above_zero=True)
        check_number("item_timeout", item_timeout, above_zero=True)
        check_provider(provider)
        check_whole("async_num_workers", async_num_workers, least=1, or_none=True)
        self.provider = provider
        self.batch_size = batch_size
        self.async_mode = async_mode
        self.async_specs_dir = Path(async_specs_dir)
        self.async_result_dir = Path(async_result_dir)
        self.async_num_workers = async_num_workers
        self.output_dir = Path(output_dir) if output_dir is not None else None
        self.shard_subdir = shard_subdir
        self.resume = resume
        self.on_error = on_error
        self.max_retries = max_retries
        self.seed = seed
        self.progress = progress
        self.max_failures = max_failures
        self.setup_timeout = setup_timeout
        self.retry_failed = retry_failed
        self.item_timeout = item_timeout

    # `*args: Any, **env: Any` is how a type checker is told that a subclass names its own env entries

    @staticmethod
    @abstractmethod
    def forward(idx: Any, *args: Any, **env: Any) -> Any:
        """Compute one item's result; parameters after the first are env entries, by name."""

    @staticmethod
    def batch_forward(indices: Any, *args: Any, **env: Any) -> Any:
        """Compute several items' results, one per index, in their order. Optional."""
        raise NotImplementedError

    @staticmethod
    def open_writers(shard_dir: Any, *args: Any, **env: Any) -> Any:
        """Open a shard's writers; what is returned is given to the other two hooks. Optional."""
        return {}

    @staticmethod
    def write_record(writers: Any, result: Any, state: Any, *args: Any, **env: Any) -> None:
        """Write one result; `state` lives as long as the shard and holds `index`. Optional."""

    @staticmethod
    def close_writers(writers: Any, state: Any, *args: Any, **env: Any) -> None:
        """Close a shard's writers, also after an error. Optional."""

    def merge(self, shard_dirs: list[Path]) -> Any:
        """Combine what the shards wrote; what it returns is the result of the call. Optional."""
        raise NotImplementedError

    def write_outputs(self, indices: Sequence[Any], results: Sequence[Any]) -> None:
        """Write more files of a whole run's results, also in a detached run's merge. Optional, without `merge`."""

    def __call__(self, indices: Iterable[Any]) -> Any:
        """Run all indices; with `output_dir`, those that have no outcome in that folder yet.

        Args:
            indices: Any iterable; a `range` or list is not copied.

        Returns:
            The results in the order of the indices: a list, or with `output_dir` a sequence that is read
            from the folder as it is used. With `merge` overridden, what it returns. With `async_mode`,
            a `DetachedRun`: a sequence of job records.

        Raises:
            ItemError: The first failed item, unless failures are recorded.
            TooManyFailuresError: More failed than `max_failures`.
            WorkerSetupError: The env could not be built.
            SignatureError: `forward` needs something the env does not hold.
            LedgerError: The folder holds another run, is in use, is damaged or cannot be written to.
        """
        items = as_items(indices, "indices")
        cost = costs_of(self.item_cost, items)
        if self.async_mode:
            return self._submit(items, cost)
        progress = Progress(len(items), type(self).__name__, self.progress)
        try:
            result, self.summary = self._run(items, cost, progress)
        except BaseException:
            progress.close()
            raise
        progress.close(self.summary)
        if not self._overrides("merge"):
            self.write_outputs(items, result)
        return result

    # --- how ---

    def _submit(self, items: Sequence[Any], cost: Sequence[float] | None) -> DetachedRun:
        from espnet3.parallel.detached.submitting.prepare import Submission
        from espnet3.parallel.detached.submitting.submit import submit_detached

        writes = self._writes()
        submission = Submission(
            identity=self._identity(items, cost, writes),
            policy=self._policy(),
            cost=cost,
            batched=self._batch() is not None,
            hooks=writes,
            keep_values=not self._overrides("merge"),
            outputs=self._overrides("write_outputs"),
            retry_failed=self.retry_failed or self.on_error == "raise",
        )
        return submit_detached(self, items, get_parallel_config(), submission)

    def _writes(self) -> bool:
        return self._overrides("merge") or any(self._overrides(h) for h in _HOOKS)

    def _run(
        self, items: Sequence[Any], cost: Sequence[float] | None, progress: Progress
    ) -> tuple[Any, RunSummary]:
        writes = self._writes()
        if self.output_dir is None and writes:
            raise ConfigError(
                f"{type(self).__name__} writes files of its own (it overrides a writer hook or merge): "
                "give it an output_dir"
            )
        if self.output_dir is None:
            report = self._reporter(progress, len(items))
            return run_to_list(items, cost, self.batch_size or 1, self._launcher(self._task()), report)
        path = (self.output_dir / self.shard_subdir).absolute()  # an item may change the working directory
        with self._open_folder(path, items, cost, writes) as folder:
            retry = self.retry_failed or self.on_error == "raise"
            progress.resume(len(items) - len(folder.left(retry)), folder.resuming(retry))
            report = self._reporter(progress, len(items), 0 if retry else folder.failed)
            report(0, 0)  # too many failed in earlier sessions already
            if writes:
                return self._run_shards(folder, items, cost, report, retry)
            task = replace(self._task(), as_lines=True)
            launch = self._launcher(task)
            summary = run_to_folder(folder, items, cost, self.batch_size or 1, launch, report, retry)
            folder.event("computed", **asdict(summary))
            folder.merge()
            return folder.results(), summary

    def _open_folder(
        self, path: Path, items: Sequence[Any], cost: Sequence[float] | None, writes: bool
    ) -> OpenRun:
        from espnet3.parallel.ledger import open_run  # here: it is a tenth of a second

        identity = self._identity(items, cost, writes)
        if (path / "detached").is_dir():
            from espnet3.parallel.detached.looking.status import refuse_living

            refuse_living(path)
        return open_run(path, identity, items, self.resume)

    def _identity(self, items: Sequence[Any], cost: Sequence[float] | None, writes: bool) -> Identity:
        from espnet3.parallel.ledger import identify

        return identify(
            type(self),
            type(self.provider),
            made_with(self.provider),
            items,
            seed=self.seed,
            policy=asdict(self._policy()),
            plan={"shards": cut(len(items), cost, self.batch_size or 1)} if writes else {},
        )

    def _run_shards(
        self,
        folder: OpenRun,
        items: Sequence[Any],
        cost: Sequence[float] | None,
        report: Report,
        retry: bool,
    ) -> tuple[Any, RunSummary]:
        cls, policy = type(self), self._policy()
        merges = self._overrides("merge")
        hooks = Hooks(cls.forward, self._batch(), cls.open_writers, cls.write_record, cls.close_writers)
        shards = shards_of(folder.plan["shards"], items, cost, folder.path)
        task = self._task(make_shard_function(hooks, policy, keep_values=not merges), make_check(hooks))
        summary = run_shards(folder, shards, self._launcher(task), policy, report, retry)
        folder.event("computed", **asdict(summary))
        folder.merge()
        if merges:
            return self.merge([Path(shard.folder) for shard in shards]), summary
        return folder.results(), summary

    def _launcher(self, task: Task) -> Launch:
        return lambda work: outcomes(task, work, active_client(), get_parallel_config())

    def _reporter(self, progress: Progress, total: int, failed: int = 0) -> Report:
        """Return what is told of more items; it stops a run that is hopeless."""
        limit = self.max_failures

        def report(n: int, n_failed: int) -> None:
            nonlocal failed
            failed += n_failed
            progress.add(n)
            if limit is not None and failed > (limit * total if 0 < limit < 1 else limit):
                again = "; retry_failed=True runs them again" if self.output_dir is not None else ""
                raise TooManyFailuresError(
                    f"{failed} of {total} items failed, and max_failures is {limit:g}{again}"
                )

        return report

    def _task(self, shard_function: Any = None, check: Any = None) -> Task:
        """Return what the launchers run: this runner's functions, or a function of shards."""
        alone = shard_function is None
        return Task(
            one=type(self).forward if alone else shard_function,
            many=self._batch() if alone else None,
            setup=worker_setup_of(self.provider),
            setup_here=self.provider.build_env_local,
            policy=self._policy() if alone else Policy(on_error="record", poison_after=0),
            setup_timeout=self.setup_timeout,
            check=check,
            killable=self.item_timeout is not None,
            tells=self.progress,
        )

    def _batch(self) -> Any:
        return type(self).batch_forward if self.batch_size and self._overrides("batch_forward") else None

    def _policy(self) -> Policy:
        return Policy(
            self.on_error,
            self.max_retries,
            self.seed,
            self.batch_size,
            self.item_timeout,
            poison_after=2 if self.output_dir is None else 1,
        )

    def _overrides(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(BaseRunner, name)


if __name__ == "__main__":  # python espnet3/parallel/base_runner.py SPEC: a detached job
    from espnet3.parallel.worker import main

    sys.exit(main())
