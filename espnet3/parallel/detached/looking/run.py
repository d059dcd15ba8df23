"""A detached run in the caller's hands: what was submitted, how it is, and what came out."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from espnet3.parallel.checks import MOST_SECONDS, Choice, Number, argument
from espnet3.parallel.detached.launch.handover import launcher
from espnet3.parallel.detached.layout import DONE, Layout, Plan, tail
from espnet3.parallel.detached.looking import verbs
from espnet3.parallel.detached.looking.status import run_status, watch
from espnet3.parallel.detached.states import GRACE, JobState, RunStatus, progress
from espnet3.parallel.errors import explained
from espnet3.parallel.ledger.files import open_plain
from espnet3.parallel.ledger.split import RESULTS
from espnet3.parallel.messages import html_table


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One shard's job.

    Attributes:
        shard: The shard's number.
        job_id: The job as its backend calls it; empty before it is submitted.
        spec: The JSON file the job reads.
        result: The JSON lines it writes its results to.
    """

    shard: int
    job_id: str
    spec: Path
    result: Path


class DetachedRun(Sequence[JobRecord]):
    """A sequence of the run's job records, and the verbs for them.

    What a runner with `async_mode=True` returns; `DetachedRun.open(folder)` gets it back in any process
    that sees the folder.

    Attributes:
        path: The run's folder.
    """

    def __init__(self, layout: Layout, runner: Any = None) -> None:
        self.path = layout.run
        self._layout = layout
        self._plan: Plan = layout.plan()
        self._runner = runner

    @classmethod
    @explained
    def open(cls, path: str | os.PathLike[str], *, trust: bool = False) -> DetachedRun:
        """Return the run of a folder.

        Args:
            path: The folder that was printed at submission.
            trust: Also act on a folder that another user owns or may write to: jobs of it run what is in it.

        Raises:
            ConfigError: It is not the folder of a detached run.
        """
        return cls(Layout(Path(os.path.abspath(path)), trust=trust))

    def __len__(self) -> int:
        return self._plan.n_shards

    @overload
    def __getitem__(self, index: int) -> JobRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[JobRecord]: ...
    def __getitem__(self, index: int | slice) -> JobRecord | list[JobRecord]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        shard = range(len(self))[index]
        job_id = self._layout.job_ids().get(str(shard), "")
        result = self.path / self._plan.outcomes[shard] / RESULTS
        spec = self._layout.spec(shard)
        shown = Path(self._plan.specs) / spec.name
        with contextlib.suppress(OSError):  # the link is gone, or the run was moved
            spec = shown if os.path.samefile(shown, spec) else spec
        return JobRecord(shard, job_id, spec, result)

    def __repr__(self) -> str:
        return f"<{len(self)} {self._plan.env} jobs of {str(self.path)!r}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how the run is now, by its files alone; no scheduler is asked."""
        shards = [progress(self._layout.shard(shard)) for shard in range(len(self))]
        ok, failed = (sum(counts) for counts in zip(*shards, strict=True)) if shards else (0, 0)
        done = sum((self._layout.shard(shard) / DONE).exists() for shard in range(len(self)))
        rows = [
            ("folder", self.path),
            ("jobs", f"{len(self):,} {self._plan.env} jobs, {self._plan.n_workers:,} at a time"),
            ("items", f"{ok + failed:,} of {self._plan.bounds[-1]:,}, {failed:,} failed"),
            ("shards done", f"{done:,} of {len(self):,}"),
        ]
        return html_table("Detached run", rows)

    # --- looking ---

    @explained
    def status(self) -> RunStatus:
        """Return how every shard is: its files first; one question to the scheduler explains the others."""
        return run_status(self._layout, self._plan)

    @explained
    def wait(
        self, timeout: float | None = None, seen: Callable[[RunStatus], object] | None = None
    ) -> RunStatus:
        """Wait until no job is queued or at work any more.

        Args:
            timeout: Seconds after which to return in any case; None: no limit.
            seen: Called with each status on the way, to show it.

        Returns:
            The last status: `done` says whether every shard is done.
        """
        limit = argument("timeout", timeout, Number(least=0, most=MOST_SECONDS, none="None"))
        return watch(self.status, limit, seen)

    def logs(self, failed: bool = False) -> Iterator[tuple[int, str]]:
        """Yield what each shard's jobs printed: the shard and the end of its log.

        A job whose script fails before its worker begins has written none; then it is the scheduler's output file.

        Args:
            failed: Only of shards that ended without being done.
        """
        for shard, files in self._printed(failed):
            text = "".join(tail(file) for file in files)
            if text:
                yield shard, text

    def follow(self, failed: bool = False) -> Iterator[tuple[int, str]]:
        """Yield what the shards' jobs print, as it comes, until no job is queued or at work.

        Args:
            failed: Only of shards that ended without being done.
        """
        seen: dict[Path, int] = {}
        while True:
            alive = self.status().alive
            for shard, files in self._printed(failed):
                for file in files:
                    with open_plain(file) as stream:
                        stream.seek(seen.get(file, 0))
                        data = stream.read()
                    whole = data[: data.rfind(b"\n") + 1] if alive else data
                    if whole:
                        seen[file] = seen.get(file, 0) + len(whole)
                        yield shard, whole.decode(errors="replace")
            if not alive:
                return
            time.sleep(1.0)  # files on a shared disk send no event

    def _printed(self, failed: bool) -> Iterator[tuple[int, list[Path]]]:
        """Yield shards, and the files with what each one's jobs printed: the scheduler's, and then its log."""
        shards = range(len(self)) if not failed else self._failed_shards()
        printed = launcher(self._plan.env).printed(self._layout, shards)
        for shard in shards:
            log = self._layout.log(shard)
            yield shard, [*printed.get(shard, []), *([log] if log.exists() else [])]

    def _failed_shards(self) -> list[int]:
        fine = (JobState.DONE, JobState.NEW, JobState.PENDING, JobState.RUNNING)
        return [s.shard for s in self.status().shards if s.state not in fine]

    # --- acting ---

    @explained
    def cancel(self, grace: float = GRACE) -> RunStatus:
        """End every job, queued or at work; what has been computed stays.

        Args:
            grace: Seconds that a job at work has for the item it is at.
        """
        grace = argument("grace", grace, Number(least=0, most=MOST_SECONDS))
        return verbs.cancel(self._layout.to_act_on(), grace)

    @explained
    def submit(self) -> RunStatus:
        """Submit the shards that never were: a scheduler did not take them, say."""
        return verbs.submit_new(self._layout.to_act_on())

    @explained
    def retry(self, failed_items: bool = False, on_error: str | None = None) -> RunStatus:
        """Submit again what is missing, and nothing else.

        Args:
            failed_items: Run items again too that have a failure recorded.
            on_error: "raise" or "record", in place of the runner's, from now on: with "record" an item that has
                stopped the run keeps its failure, and the others go on. None leaves it as it is.

        Raises:
            ConfigError: `on_error` is something else.
            FolderInUseError: Jobs are still queued or at work.
        """
        if on_error is not None:
            argument("on_error", on_error, Choice(("raise", "record"), quoted=True))
        return verbs.retry(self._layout.to_act_on(), failed_items, on_error)

    @explained
    def merge(self) -> Any:
        """Put the outcomes in order and prove that none is missing.

        Returns:
            What the same call without `async_mode` returns: the results, in the order of the indices, or
            what the runner's `merge` returns.

        Raises:
            IncompleteRunError: Items have no outcome yet; the message says what their jobs are doing.
            ItemError: An item failed, and the runner's `on_error` is "raise".
        """
        return verbs.merge(self._layout.to_act_on(), self._runner)
