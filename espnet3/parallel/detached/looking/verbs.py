"""The verbs that change a detached run: cancel, submit, retry, merge."""

from __future__ import annotations

import copy
import datetime
import json
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from espnet3.parallel.backends.detached_settings import DetachedSettings
from espnet3.parallel.backends.queue_answers import submitter
from espnet3.parallel.detached.code import load
from espnet3.parallel.detached.launch.handover import cancel_all, hand_over, put_specs, settle_in
from espnet3.parallel.detached.layout import ENDED, RUNNER, Layout, Plan, write_quickly
from espnet3.parallel.detached.looking.status import (
    changed_sources,
    may_be_queued,
    run_status,
    status_of_ended,
)
from espnet3.parallel.detached.states import JobState, RunStatus, acquire, disk_now, holder_lives
from espnet3.parallel.engine.exceptions import item_error, recorded_error
from espnet3.parallel.engine.inside import refuse_in_import
from espnet3.parallel.errors import ConfigError, ParallelError
from espnet3.parallel.ledger.errors import ChangedRunError, IncompleteRunError, LedgerError
from espnet3.parallel.ledger.files import Appender, make_folder, write_json
from espnet3.parallel.ledger.folder import resumed
from espnet3.parallel.ledger.indices import Places
from espnet3.parallel.ledger.lease import Lease
from espnet3.parallel.ledger.merge import merge_splits
from espnet3.parallel.ledger.results import Results
from espnet3.parallel.ledger.scan import FAILED, LEFT, scan_splits
from espnet3.parallel.ledger.session import EVENTS
from espnet3.parallel.ledger.values import decode, encode
from espnet3.parallel.messages import counted, masked
from espnet3.parallel.provenance.record import LoadedCode
from espnet3.parallel.runner.advice import look_for_nones
from espnet3.parallel.runner.writers.hooks import folder_entries

_PATIENCE = 60.0  # seconds beyond the grace: schedulers have a grace of their own
_LOOK = 0.2  # seconds between two looks at the leases


@contextmanager
def _driving(layout: Layout, verb: str, patience: float = 0.0) -> Iterator[str]:
    """Hold the run folder's lease, so that one verb or driver at a time changes the run."""
    refuse_in_import()
    lease, who = Lease(layout.run), f"{verb}-{uuid.uuid4().hex}"
    acquire(lease, who, patience, _LOOK)
    try:
        yield who
    finally:
        lease.release()


def _event(layout: Layout, kind: str, **facts: Any) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    events = Appender(layout.run / EVENTS)
    try:
        events.append([json.dumps({"time": now, "event": kind, **masked(facts)}).encode() + b"\n"])
    finally:
        events.close()


def cancel(layout: Layout, grace: float) -> RunStatus:
    """End every job, and note it for those that had not ended by themselves."""
    plan = layout.plan()
    by = f"cancelled by {submitter()}@{socket.gethostname()}"
    # a submission in between would be missed, or would lift the order
    with _driving(layout, "cancel", _PATIENCE):
        alive = run_status(layout, plan).alive
        layout.order_stop({"state": JobState.CANCELLED.value, "why": by, "grace": grace})
        if layout.original() is None:  # else the jobs that are noted here are another folder's
            cancel_all(layout, layout.plan(), grace)
        _wait_for_leases(layout, plan, grace)
        for shard in run_status(layout, plan).shards:
            folder = layout.shard(shard.shard)
            has_ended = (folder / ENDED).exists()
            # an end after which its job was perhaps queued again ends here: that job is gone now, too
            open_end = may_be_queued(shard.state) or not has_ended
            if shard.state not in (JobState.DONE, JobState.RUNNING) and open_end:
                before = f"; before that {shard.state.value}: {shard.note}" if has_ended else ""
                make_folder(folder)
                write_quickly(folder / ENDED, {"state": JobState.CANCELLED.value, "why": by + before})
        _event(layout, "cancelled", by=by)
    status = run_status(layout, plan)
    note = "no job was queued or at work: there was nothing to cancel"
    return status if alive else _noted(status, note)


def _wait_for_leases(layout: Layout, plan: Plan, grace: float) -> None:
    """Wait until no worker holds a lease, wherever it runs: a scheduler kills what does not end."""
    end = time.monotonic() + grace + _PATIENCE
    folders = [layout.shard(shard) for shard in range(plan.n_shards)]
    while any(holder_lives(folder, disk_now(layout.folder)) for folder in folders):
        if time.monotonic() > end:
            raise ParallelError(
                f"{layout.run} was told to stop, and jobs of it are still at work after {grace + _PATIENCE:g} s: "
                "`espnet3 status` says which"
            )
        time.sleep(_LOOK)  # another host's process sends no event


def submit_new(layout: Layout) -> RunStatus:
    """Submit the shards that were never submitted."""
    plan = layout.plan()
    if (home := layout.home()) is not None:
        raise ConfigError(
            f"{layout.run} was submitted as {home}, and its specs name that folder: "
            f"`{layout.retrying}` writes its own, and submits all that is missing"
        )
    with _driving(layout, "submit"):
        new = [s.shard for s in run_status(layout, plan).shards if s.state is JobState.NEW]
        hand_over(layout, plan, new)
        _event(layout, "submitted", shards=len(new))
    note = f"nothing was submitted: every shard was before; `{layout.retrying}` submits what is missing again"
    return _noted(run_status(layout, plan), "" if new else note)


def retry(layout: Layout, failed_items: bool, on_error: str | None) -> RunStatus:
    """Submit what is missing."""
    plan = layout.plan()
    with _driving(layout, "retry") as who:
        plan = layout.plan()
        before = status_of_ended(layout, plan)  # before the marks of the last attempts are removed
        changed = changed_sources(plan)
        if changed and resumed(True) != "force":
            raise ChangedRunError(str(layout.run), [f"code: {line}" for line in changed])
        raised = _raised(layout, plan, before)
        settle_in(layout, plan)
        if on_error is not None:
            _change_policy(layout, on_error)
        items = layout.items()
        if changed:
            layout.write_plan(replace(plan, code={}))
        scan = scan_splits(layout.run, Places(items), plan.indices_sha256, kind=plan.kind)
        shards = put_specs(layout, plan, items, scan.state, who, failed_items)
        left = scan.state.count(LEFT)
        facts = {"on_error": on_error, "raised": raised, "ended": before.ended_early()}
        said = {name: value for name, value in facts.items() if value}
        _event(layout, "retried", shards=shards, items=left, **said)
        hand_over(layout, plan, shards, raised)
    status = run_status(layout, plan)
    if shards:
        return _noted(status, _runs_again(layout, items, scan.state))
    failed = scan.state.count(FAILED)
    again = f"; `{layout.retrying} --failed-items` runs the {counted(failed, 'failed item')} again"
    return _noted(status, f"nothing was submitted: every item has an outcome{again if failed else ''}")


def _noted(status: RunStatus, note: str) -> RunStatus:
    return replace(status, notes=(*status.notes, note)) if note else status


def _change_policy(layout: Layout, on_error: str) -> None:
    """Change `on_error` in what the specs, and the runner of the merge, are made from."""
    template = layout.template()
    layout.write_template(replace(template, policy=replace(template.policy, on_error=on_error)))
    runner = layout.read(RUNNER)
    write_json(layout.folder / RUNNER, {**runner, "on_error": on_error})


def _runs_again(layout: Layout, items: Sequence[Any], state: bytearray) -> str:
    """Return a sentence where an item runs again that has stopped the run before, and may again; else nothing."""
    if FAILED not in state or layout.template().policy.on_error != "raise":
        return ""
    return (
        f"item {items[state.index(FAILED)]!r} stopped this run before, and is run again; if it fails again, it stops "
        f"the run again. `{layout.retrying} --on-error record` keeps its failure "
        "and goes on with the other items"
    )


def _raised(layout: Layout, plan: Plan, status: RunStatus) -> dict[str, float]:
    """Return how many times the memory the shards ask for that were killed for want of it."""
    factor = DetachedSettings.of(plan.settings).retry_memory_factor
    if factor is None:
        return {}
    before = layout.jobs().get("raised", {})
    killed = [s.shard for s in status.shards if s.state is JobState.OUT_OF_MEMORY]
    return {str(shard): before.get(str(shard), 1.0) * factor for shard in killed}


def merge(layout: Layout, runner: Any) -> Any:
    """Merge, or say which jobs' items are missing and what those jobs are doing.

    A runner that overrides `merge` or `write_outputs` is made again where None is given.
    """
    plan = layout.plan()
    with _driving(layout, "merge"):
        items = layout.items()
        notes: list[str] = []
        try:
            receipt = merge_splits(layout.run, Places(items), plan.indices_sha256, notes.append, plan.kind)
        except IncompleteRunError as error:
            raise IncompleteRunError(error.problem, _waiting(run_status(layout, plan))) from None
        for note in notes:
            _event(layout, "repaired", what=note)
        _event(layout, "merged", planned=receipt.planned, ok=receipt.ok, failed=receipt.failed)
    spec = layout.template()
    if receipt.failed and spec.policy.on_error == "raise":
        failure = next(Results(layout.run).failures())
        raise item_error(recorded_error(failure), failure)
    results = Results(layout.run)
    if not plan.hooks:
        look_for_nones(f"{spec.runner.name}.{'batch_forward' if spec.batched else 'forward'}", results)
    if plan.keep_values and not plan.outputs:
        return results  # a runner is not made again, nor its module imported, for nothing
    runner = _finishing_runner(layout, runner)
    if resumed(True) != "force":
        LoadedCode(plan.code).check("this process, which merges,")
    if plan.keep_values:
        runner.write_outputs(items, results)
        return results
    return runner.merge([layout.run / f"split.{shard}" for shard in range(plan.n_shards)])


def _waiting(status: RunStatus) -> str:
    shards = [s for s in status.shards if s.state is not JobState.DONE]
    if not shards:
        return "`espnet3 retry` computes them"
    counts = ", ".join(
        f"{n} {state.value.replace('_', ' ')}"
        for state, n in status.counts.items()
        if state is not JobState.DONE
    )
    verb = "`espnet3 wait` waits for them" if status.alive else "`espnet3 retry` goes on with them"
    first = next((f" (shard {s.shard}: {s.note})" for s in shards if s.note), "")
    return f"Of {len(status.shards)} shards {counts}{first}: {verb}"


def runner_attributes(runner: Any) -> dict[str, Any]:
    """Return those attributes of a runner that JSON can hold, for a `merge` in another process."""
    attributes = {}
    for name, value in vars(runner).items():
        try:
            attributes[name] = encode(value, name)
        except LedgerError:  # the provider, for one: a merge that needs it says so itself
            continue
    return attributes


def _finishing_runner(layout: Layout, runner: Any) -> Any:
    """Return a runner for a run's `merge` or `write_outputs`; its `output_dir` and `shard_subdir` name the folder.

    Where none is given it is made again: its class and its plain attributes.
    """
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
