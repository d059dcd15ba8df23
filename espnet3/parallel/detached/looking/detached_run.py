"""`DetachedRun`: the job records of a detached run, and its verbs."""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

from espnet3.parallel.backends.scheduler import submitter
from espnet3.parallel.checks import MOST_SECONDS, ON_ERROR, Number, argument
from espnet3.parallel.config import DetachedSettings
from espnet3.parallel.detached.job_spec import load, same_file
from espnet3.parallel.detached.launch import job_arrays, kube_jobs
from espnet3.parallel.detached.launch.handover import hand_over, launcher, put_specs
from espnet3.parallel.detached.layout import ENDED, LOG, RUNNER, TEMPLATE, Layout, Plan, tail
from espnet3.parallel.detached.looking.status import changed_sources, run_status, status_of_ended, watch
from espnet3.parallel.detached.states import GRACE, MAY_BE_QUEUED, JobState, RunStatus, acquire, shard_status
from espnet3.parallel.engine.exceptions import item_error, recorded_error
from espnet3.parallel.engine.inside import refuse_in_import
from espnet3.parallel.errors import ConfigError, ParallelError, explained
from espnet3.parallel.ledger.errors import ChangedRunError, IncompleteRunError, LedgerError
from espnet3.parallel.ledger.files import Appender, NewLines, make_folder, refuse_others, write_json
from espnet3.parallel.ledger.folder import EVENTS, note_event, resumed
from espnet3.parallel.ledger.lease import Lease, disk_now, holder_lives
from espnet3.parallel.ledger.lines import decode, encode
from espnet3.parallel.ledger.merge import Results, merge_splits, note_finished
from espnet3.parallel.ledger.split import FAILED, LEFT, OK, RESULTS, Scan
from espnet3.parallel.messages import counted, html_table
from espnet3.parallel.provenance.parts import LoadedCode
from espnet3.parallel.runner.hooks import folder_entries
from espnet3.parallel.runner.progress import NoneWatch
from espnet3.parallel.runner.run import finish

_PATIENCE = 60.0  # seconds beyond the grace: schedulers have a grace of their own
_LOOK = 0.2  # seconds between two looks at the leases


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One shard's job."""

    shard: int
    job_id: str  # the job as its backend calls it; empty before it is submitted
    spec: Path  # the JSON file the job reads
    result: Path  # the JSON lines it writes its results to


class DetachedRun(Sequence[JobRecord]):
    """A sequence of the run's job records, and the verbs for them.

    A runner with `async_mode=True` returns one; `DetachedRun.open(folder)` gets it back in any process
    that sees the folder.

    Attributes:
        path: The run's folder.
    """

    def __init__(self, layout: Layout, runner: Any = None, *, trust: bool = False) -> None:
        self.path = layout.run
        self._layout = layout
        self._plan: Plan = layout.plan()
        self._runner = runner
        self._trust = trust  # act on it, even if another user wrote it

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
        return cls(Layout(Path(os.path.abspath(path))), trust=trust)

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
        job_id = self._layout.jobs()["jobs"].get(str(shard), "")
        result = self.path / self._plan.outcomes(shard) / RESULTS
        spec = self._layout.spec(shard)
        shown = Path(self._plan.specs) / spec.name  # or the link is gone, or the run was moved
        return JobRecord(shard, job_id, shown if same_file(shown, spec) else spec, result)

    def __repr__(self) -> str:
        return f"<{len(self)} {self._plan.env} jobs of {str(self.path)!r}>"

    def _repr_html_(self) -> str:
        shards = [shard_status(self._layout, self._plan, n, "", None, None) for n in range(len(self))]
        ok, failed = sum(shard.ok for shard in shards), sum(shard.failed for shard in shards)
        done = sum(shard.state is JobState.DONE for shard in shards)
        rows = [
            ("folder", self.path),
            ("jobs", f"{len(self):,} {self._plan.env} jobs, {self._plan.n_workers:,} at a time"),
            ("items", f"{ok + failed:,} of {self._plan.bounds[-1]:,}, {failed:,} failed"),
            ("shards done", f"{done:,} of {len(self):,}"),
        ]
        return html_table("Detached run", rows)

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
            if text := "".join(map(tail, files)):
                yield shard, text

    def follow(self, failed: bool = False) -> Iterator[tuple[int, str]]:
        """Yield what the shards' jobs print, as it comes, until no job is queued or at work.

        Args:
            failed: Only of shards that ended without being done.
        """
        new = NewLines()
        while True:
            alive = self.status().alive
            for shard, files in self._printed(failed):
                for file in files:
                    if text := b"".join(line for _, line in new.of(file)):
                        yield shard, text.decode(errors="replace")
            if not alive:
                return
            time.sleep(1.0)  # files on a shared disk send no event

    def _printed(self, failed: bool) -> Iterator[tuple[int, list[Path]]]:
        shards: Sequence[int] = range(len(self))
        if failed:
            fine = (JobState.DONE, JobState.NEW, JobState.PENDING, JobState.RUNNING)
            shards = [s.shard for s in self.status().shards if s.state not in fine]
        printed = launcher(self._plan.env).printed(self._layout, shards)
        for shard in shards:
            log = self._layout.shard(shard) / LOG
            yield shard, [*printed.get(shard, []), *([log] if log.exists() else [])]

    @explained
    def cancel(self, grace: float = GRACE) -> RunStatus:
        """End every job, queued or at work; what has been computed stays.

        Args:
            grace: Seconds that a job at work has for the item it is at.
        """
        grace = argument("grace", grace, Number(least=0, most=MOST_SECONDS))
        by = f"cancelled by {submitter()}@{socket.gethostname()}"
        # a submission in between would be missed, or would lift the order
        with self._driving("cancel", _PATIENCE) as (layout, plan, _):
            alive = run_status(layout, plan).alive
            layout.order_stop({"state": JobState.CANCELLED.value, "why": by, "grace": grace})
            # in every queue that it was ever submitted to; supervisors, and jobs at work, read the order
            try:
                job_arrays.cancel(layout, grace)
            finally:  # an error of one keeps no other from its jobs
                kube_jobs.cancel(layout, grace)
            _wait_for_leases(layout, plan, grace)
            for shard in run_status(layout, plan).shards:
                folder = layout.shard(shard.shard)
                has_ended = (folder / ENDED).exists()
                # an end after which its job was perhaps queued again ends here: that job is gone now, too
                open_end = shard.state in MAY_BE_QUEUED or not has_ended
                if shard.state not in (JobState.DONE, JobState.RUNNING) and open_end:
                    before = f"; before that {shard.state.value}: {shard.note}" if has_ended else ""
                    make_folder(folder)
                    end = {"state": JobState.CANCELLED.value, "why": by + before}
                    write_json(folder / ENDED, end, durable=False)
            _event(layout, "cancelled", by=by)
        note = "no job was queued or at work: there was nothing to cancel"
        return _noted(run_status(layout, plan), "" if alive else note)

    @explained
    def submit(self) -> RunStatus:
        """Submit shards that were never submitted, because a scheduler refused them, say."""
        with self._driving("submit") as (layout, plan, _):
            new = [s.shard for s in run_status(layout, plan).shards if s.state is JobState.NEW]
            hand_over(layout, plan, new)
            _event(layout, "submitted", shards=len(new))
        note = f"nothing was submitted: every shard was before; `{layout.retrying}` submits what is missing again"
        return _noted(run_status(layout, plan), "" if new else note)

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
            argument("on_error", on_error, ON_ERROR)
        with self._driving("retry") as (layout, plan, who):
            before = status_of_ended(layout, plan)  # before the marks of the last attempts are removed
            changed = changed_sources(plan)
            if changed and resumed(True) != "force":
                raise ChangedRunError(str(layout.run), [f"code: {line}" for line in changed])
            factor = DetachedSettings(**plan.settings).retry_memory_factor
            killed = before.ended_early().get(JobState.OUT_OF_MEMORY.value, [])
            had = layout.jobs()["raised"]
            raised = {str(one): had.get(str(one), 1.0) * factor for one in killed} if factor else {}
            if on_error is not None:
                template = layout.template()
                template = replace(template, policy=replace(template.policy, on_error=on_error))
                write_json(layout.folder / TEMPLATE, template.to_json())
                write_json(layout.folder / RUNNER, {**layout.read(RUNNER), "on_error": on_error})
            items = layout.items()
            if changed:
                layout.write_plan(replace(plan, code={}))
            scan = Scan(layout.run, items, plan.indices_sha256, plan.kind)
            shards = put_specs(layout, plan, items, scan.state, who, failed_items)
            ok, failed, left = map(scan.state.count, (OK, FAILED, LEFT))
            facts = {"on_error": on_error, "raised": raised, "ended": before.ended_early()}
            said = {name: value for name, value in facts.items() if value}
            _event(layout, "retried", shards=shards, items=left, ok=ok, failed=failed, **said)
            hand_over(layout, plan, shards, raised)
        status = run_status(layout, plan)
        if shards:
            return status
        again = f"; `{layout.retrying} --failed-items` runs the {counted(failed, 'failed item')} again"
        return _noted(status, f"nothing was submitted: every item has an outcome{again if failed else ''}")

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
        with self._driving("merge") as (layout, plan, _):
            items = layout.items()
            notes: list[str] = []
            try:
                receipt = merge_splits(
                    layout.run, items, plan.indices_sha256, notes.append, plan.kind, not plan.finishes
                )
            except IncompleteRunError as error:
                raise IncompleteRunError(error.problem, _waiting(run_status(layout, plan))) from None
            for note in notes:
                _event(layout, "repaired", what=note)
            _event(layout, "merged", planned=receipt.planned, ok=receipt.ok, failed=receipt.failed)
            spec = layout.template()
            results = Results(layout.run)
            if receipt.failed and spec.policy.on_error == "raise":
                failure = results.failures[0]
                raise item_error(recorded_error(failure), failure)
            if not plan.hooks:
                NoneWatch(spec.runner.name, len(results)).see(results)
            if not plan.finishes:
                return results  # a runner is not made again, nor its module imported, for nothing
            runner = _finishing_runner(layout, self._runner)
            if resumed(True) != "force":
                LoadedCode(plan.code).check("this process, which merges,")
            found = finish(runner, items, results, layout.run, plan.n_shards)
            note_finished(layout.run)
            return found

    @contextlib.contextmanager
    def _driving(self, verb: str, patience: float = 0.0) -> Iterator[tuple[Layout, Plan, str]]:
        if not self._trust:
            refuse_others(self.path)
        layout = Layout(self.path, own=not self._trust)
        refuse_in_import()
        # the jobs that are noted here belong to the other folder, and their specs name it
        if verb != "merge" and (home := layout.home()) is not None:
            raise ConfigError(
                f"{layout.run} was copied or moved from {home}: move it back, or call its runner with this output_dir, "
                "which goes on with what is left"
            )
        lease, who = Lease(layout.run), f"{verb}-{uuid.uuid4().hex}"
        acquire(lease, who, patience)
        try:
            yield layout, layout.plan(), who
        finally:
            lease.release()


def _event(layout: Layout, kind: str, **facts: Any) -> None:
    with contextlib.closing(Appender(layout.run / EVENTS)) as events:
        note_event(events, kind, facts)


def _wait_for_leases(layout: Layout, plan: Plan, grace: float) -> None:
    end = time.monotonic() + grace + _PATIENCE
    # supervisors end their jobs first
    folders = [*layout.folder.glob(f"{layout.supervisor.name}*"), *map(layout.shard, range(plan.n_shards))]
    while any(holder_lives(folder, disk_now(layout.folder)) for folder in folders):
        if time.monotonic() > end:
            raise ParallelError(
                f"{layout.run} was told to stop, and jobs of it are still at work after {grace + _PATIENCE:g} s: "
                "`espnet3-parallel status` says which"
            )
        time.sleep(_LOOK)  # another host's process sends no event


def _noted(status: RunStatus, note: str) -> RunStatus:
    return replace(status, notes=(*status.notes, note)) if note else status


def _waiting(status: RunStatus) -> str:
    if status.done:
        return "`espnet3-parallel retry` computes them"
    left = [(n, state.value) for state, n in status.counts.items() if state is not JobState.DONE]
    counts = ", ".join(f"{n} {word.replace('_', ' ')}" for n, word in left)
    verb = "wait` waits for them" if status.alive else "retry` goes on with them"
    first = next((f" (shard {s.shard}: {s.note})" for s in status.shards if s.note), "")
    return f"Of {len(status.shards)} shards {counts}{first}: `espnet3-parallel {verb}"


def runner_attributes(runner: Any) -> dict[str, Any]:
    """Return those attributes of a runner that JSON can hold, for a `merge` in another process."""
    attributes = {}
    for name, value in vars(runner).items():
        with contextlib.suppress(LedgerError):  # the provider, for one: a merge that needs it says so itself
            attributes[name] = encode(value, name)
    return attributes


def _finishing_runner(layout: Layout, runner: Any) -> Any:
    if runner is None:
        spec = layout.template()
        sys.path.extend(entry for entry in spec.surroundings.sys_path if entry not in sys.path)
        cls: Any = load(spec.runner)
        runner = cls.__new__(cls)  # its own constructor may want what only the submitting process has
        for name, value in layout.read(RUNNER).items():
            setattr(runner, name, decode(value, layout.folder / RUNNER))
    runner = copy.copy(runner)
    # whatever folder the submitter was in
    entries = folder_entries(layout.run, runner.shard_subdir)
    runner.output_dir, runner.shard_subdir = Path(entries["output_dir"]), entries["shard_subdir"]
    return runner
