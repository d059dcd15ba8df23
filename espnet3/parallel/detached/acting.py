"""The verbs that change a detached run: cancel, submit, retry, merge."""

from __future__ import annotations

import datetime
import getpass
import json
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from espnet3.parallel.detached import launching, submit
from espnet3.parallel.detached.layout import DONE, ENDED, Layout, Plan
from espnet3.parallel.detached.states import JobState, RunStatus
from espnet3.parallel.ledger.errors import FolderInUseError, IncompleteRunError
from espnet3.parallel.ledger.files import Appender, write_json
from espnet3.parallel.ledger.indices import Places
from espnet3.parallel.ledger.lease import Lease
from espnet3.parallel.ledger.merge import RECEIPT, merge_splits
from espnet3.parallel.ledger.results import Results
from espnet3.parallel.ledger.scan import LEFT, scan_splits
from espnet3.parallel.ledger.session import EVENTS

if TYPE_CHECKING:
    from espnet3.parallel.detached.run import DetachedRun


@contextmanager
def _driving(layout: Layout) -> Iterator[str]:
    """Hold the run folder's lease: one driver at a time."""
    lease, who = Lease(layout.run), uuid.uuid4().hex
    lease.acquire(who)
    try:
        yield who
    finally:
        lease.release()


def _event(layout: Layout, kind: str, **facts: Any) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    events = Appender(layout.run / EVENTS)
    try:
        events.append([json.dumps({"time": now, "event": kind, **facts}).encode() + b"\n"])
    finally:
        events.close()


def cancel(layout: Layout, plan: Plan, run: DetachedRun) -> RunStatus:
    """End every job, and note it for those that had not ended by themselves."""
    by = f"cancelled by {getpass.getuser()}@{socket.gethostname()}"
    layout.order_stop({"state": JobState.CANCELLED.value, "why": by})
    launching.launcher(plan.env).cancel(layout, plan)
    for shard in run.status().shards:
        folder = layout.shard(shard.shard)
        if shard.state not in (JobState.DONE, JobState.RUNNING) and not (folder / ENDED).exists():
            write_json(folder / ENDED, {"state": JobState.CANCELLED.value, "why": by})
    _event(layout, "cancelled", by=by)
    return run.status()


def submit_new(layout: Layout, plan: Plan, run: DetachedRun) -> RunStatus:
    """Submit the shards that were never submitted."""
    with _driving(layout):
        new = [s.shard for s in run.status().shards if s.state is JobState.NEW]
        submit.hand_over(layout, plan, new)
        _event(layout, "submitted", shards=len(new))
    return run.status()


def retry(layout: Layout, plan: Plan, run: DetachedRun, failed_items: bool) -> RunStatus:
    """Submit what is missing."""
    with _driving(layout) as who:
        submit.refuse_living(layout.run)
        items = layout.items()
        kind = plan.kind
        scan = scan_splits(layout.run, Places(items), plan.indices_sha256, kind=kind)
        shards = submit.put_specs(layout, plan, items, scan.state, who, failed_items)
        left = scan.state.count(LEFT)
        _event(layout, "retried", shards=shards, items=left)
        submit.hand_over(layout, plan, shards)
    return run.status()


def merge(layout: Layout, plan: Plan, run: DetachedRun, runner: Any) -> Any:
    """Merge, or say which jobs' items are missing and what those jobs are doing."""
    del runner
    with _driving(layout):
        items = layout.items()
        notes: list[str] = []
        try:
            receipt = merge_splits(layout.run, Places(items), plan.indices_sha256, notes.append)
        except IncompleteRunError as error:
            raise IncompleteRunError(f"{error.args[0].partition('. Run again')[0]}. {_waiting(run.status())}") from error
        for note in notes:
            _event(layout, "repaired", what=note)
        _event(layout, "merged", planned=receipt.planned, ok=receipt.ok, failed=receipt.failed)
    return Results(layout.run)


def _waiting(status: RunStatus) -> str:
    shards = [s for s in status.shards if s.state is not JobState.DONE]
    if not shards:
        return "`espnet3 retry` computes them"
    counts = ", ".join(f"{n} {state.value}" for state, n in status.counts.items() if state is not JobState.DONE)
    verb = "`espnet3 wait` waits for them" if status.alive else "`espnet3 retry` goes on with them"
    first = next((f" (shard {s.shard}: {s.note})" for s in shards if s.note), "")
    return f"Of {len(status.shards)} shards {counts}{first}: {verb}"
