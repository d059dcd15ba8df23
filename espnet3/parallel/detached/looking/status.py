"""Find the state of a run: every shard's files first, then one question to the backend about silent shards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from espnet3.parallel.config import DetachedSettings
from espnet3.parallel.detached import states
from espnet3.parallel.detached.launch.handover import launcher
from espnet3.parallel.detached.layout import Layout, Plan
from espnet3.parallel.detached.states import JobState, Queue, RunStatus, ShardStatus, shard_status
from espnet3.parallel.ledger.errors import FolderInUseError
from espnet3.parallel.ledger.lease import disk_now, holder_lives, holder_of
from espnet3.parallel.ledger.merge import is_finished
from espnet3.parallel.messages import shortened
from espnet3.parallel.provenance.parts import changed_files

_FREE = "its job has ended without beginning it, and another one takes it"
_POLL = (0.1, 10.0)  # seconds between two looks: at first, and after a while
_SHARE = 0.05  # of the time waited so far, between those

UNFINISHED = (
    "the runner's own merge or write_outputs has failed, or was stopped: the same call, or `espnet3-parallel merge` of "
    "a detached run, calls it again"
)


def run_status(layout: Layout, plan: Plan) -> RunStatus:
    """Return how every shard is."""
    ids, now = layout.jobs()["jobs"], disk_now(layout.folder)
    notes = []
    if changed := changed_sources(plan):
        notes.append(
            f"changed since the submission: {'; '.join(shortened(changed))}. Jobs that start now are refused: take it "
            "back, or submit again with resume=False or 'force' (a recipe's stage: ESPNET3_RESUME=force)"
        )
    found = [shard_status(layout, plan, n, ids.get(str(n), ""), now, None) for n in range(plan.n_shards)]
    silent = {s.shard: s.job_id for s in found if s.job_id and s.state in states.MAY_BE_QUEUED}
    _ask(layout, plan, silent, found, notes)
    # the job that has gone on with a shard knows more of its end than the shard's own, which found it taken
    folders = {shard: layout.shard(shard) for shard in silent if not found[shard].state.alive}
    others = {shard: ids.get(str(states.job_of(folder)), silent[shard]) for shard, folder in folders.items()}
    _ask(layout, plan, dict(others.items() - silent.items()), found, notes)
    # a job that has done a shard holds its lease until it has that of the next one
    held = (holder_lives(layout.shard(one.shard), now) for one in found)
    if folders and (any(one.state.alive for one in found) or any(held)):
        for shard, folder in folders.items():
            if not found[shard].state.alive and states.is_free(folder):
                note = "; ".join(filter(None, [found[shard].note, _FREE]))
                found[shard] = replace(found[shard], state=JobState.PENDING, note=note)
    if any(one.state is not JobState.DONE for one in found) and (home := layout.home()) is not None:
        notes.append(
            f"the run was copied or moved from {home}: its runner, called with this output_dir, goes on here"
        )
    if (layout.stopped() or {}).get("at_item"):
        again = layout.retrying
        notes.append(
            f"on_error is 'raise', so one failed item stops the run. Mend what it failed of, then `{again}`; or "
            f"`{again} --on-error record`, which keeps its failure and goes on with the other items"
        )
    merged = is_finished(layout.run)
    if merged is False:
        notes.append(UNFINISHED)
    status = RunStatus(str(layout.run), plan.env, tuple(found), bool(merged), ())
    if (driver := driver_of(layout.run)) and not status.alive:
        notes = [f"a driver is at work in this folder: {driver}"]
    elif merged and not status.done and not status.alive:
        notes = ["a driver has finished the run since: its merged files hold an outcome of every item"]
    return replace(status, notes=tuple(notes))


def _ask(
    layout: Layout, plan: Plan, jobs: dict[int, str], found: list[ShardStatus], notes: list[str]
) -> None:
    if not jobs:
        return
    home, now = layout.home(), disk_now(layout.folder)
    queue: Queue = {}
    try:
        if home is None:
            queue = launcher(plan.env).query(layout, {str(shard): job for shard, job in jobs.items()})
        else:
            queue = dict.fromkeys(jobs, (JobState.LOST, f"its job was submitted for {home}"))
    except OSError as error:
        notes.append(f"the scheduler does not answer ({error}): what gives no sign of life is unknown")
    for shard in jobs:
        found[shard] = shard_status(layout, plan, shard, found[shard].job_id, now, queue)


def driver_of(run: Path) -> str:
    """Return process, host and start of the driver that is at work in a run's folder; empty where none is."""
    if not holder_lives(run):
        return ""
    held = holder_of(run)
    return f"process {held.get('pid')} on {held.get('host')}, since {held.get('since')}"


def changed_sources(plan: Plan) -> list[str]:
    """Return the changes in the files of the run's code, for jobs that read them."""
    snapshot = DetachedSettings(**plan.settings).snapshot  # the copy does not change
    return [] if snapshot else changed_files(plan.code)


def refuse_living(run: Path) -> None:
    """Raise if a run folder has detached jobs that are queued or at work; cheap for one that never had any."""
    layout = Layout(run)
    if layout.is_there():
        status_of_ended(layout, layout.plan())


def status_of_ended(layout: Layout, plan: Plan) -> RunStatus:
    """Return the status of a run none of whose jobs is queued or at work."""
    status = run_status(layout, plan)
    if status.alive:
        counts = ", ".join(f"{n} {state.value}" for state, n in status.counts.items())
        unknown = next((f": {s.note}" for s in status.shards if s.state is JobState.UNKNOWN and s.note), "")
        raise FolderInUseError(
            f"{layout.run} is in use by detached jobs ({counts}{unknown}). `espnet3-parallel wait` waits for them, "
            "`espnet3-parallel cancel` ends them; or take another output_dir"
        )
    return status


@dataclass(frozen=True, slots=True)
class FolderStatus:
    """A run with `output_dir`, as it is now."""

    run: str  # its folder
    items: int
    ok: int  # items with a result
    failed: int  # items with a failure
    alive: bool  # its driver is at work
    merged: bool  # the merged files are there, and what the runner makes of the whole
    driver: str = ""  # the driver that is at work: process, host, and since when; empty where none is
    notes: tuple[str, ...] = ()  # other remarks

    @property
    def done(self) -> bool:
        """True once every item has an outcome, and the merged files prove it."""
        return self.merged and not self.alive

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain JSON data."""
        return {**asdict(self), "done": self.done, "notes": list(self.notes)}


S = TypeVar("S", bound=RunStatus | FolderStatus)


def watch(
    look: Callable[[], S], timeout: float | None = None, seen: Callable[[S], object] | None = None
) -> S:
    """Look at a run again and again, until no process works on it."""
    begin = time.monotonic()
    end = math.inf if timeout is None else begin + timeout
    while (status := look()).alive and (left := end - time.monotonic()) > 0:
        if seen is not None:
            seen(status)
        pause = min(_POLL[1], max(_POLL[0], _SHARE * (time.monotonic() - begin)))
        time.sleep(min(pause, left))  # files on a shared disk send no event
    return status
