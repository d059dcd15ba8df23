"""How a run is: every shard's files, and one question to the backend about those that say nothing."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from espnet3.parallel.backends.detached_settings import DetachedSettings
from espnet3.parallel.detached.launch import launchers
from espnet3.parallel.detached.layout import FOLDER, PLAN, Layout, Plan
from espnet3.parallel.detached.states import (
    JobState,
    RunStatus,
    disk_now,
    holder_lives,
    holder_of,
    shard_status,
)
from espnet3.parallel.ledger.errors import FolderInUseError
from espnet3.parallel.ledger.merge import RECEIPT
from espnet3.parallel.provenance.record import changed_files, shortened


def run_status(layout: Layout, plan: Plan) -> RunStatus:
    """Return how every shard is."""
    ids, now = job_ids(layout), disk_now(layout.folder)
    notes = _changed_sources(plan)
    shards = range(plan.n_shards)
    found = [shard_status(layout, plan, n, ids.get(str(n), ""), now, None) for n in shards]
    silent = {str(s.shard): s.job_id for s in found if s.job_id and may_be_queued(s.state)}
    if silent:
        queue: launchers.Queue = {}
        home, original = layout.home(), layout.original()
        try:
            if original is None:
                queue = launchers.launcher(plan.env).query(layout, silent)
            else:
                queue = {int(shard): (JobState.LOST, "") for shard in silent}
        except OSError as error:
            notes.append(f"the scheduler does not answer ({error}): what gives no sign of life is unknown")
        if home is not None:
            what = "is a copy of" if original is not None else "was moved here from"
            notes.append(
                f"the run {what} {home}, where its jobs belong; `espnet3 retry` computes here what is left"
            )
        for shard in map(int, silent):
            found[shard] = shard_status(layout, plan, shard, ids.get(str(shard), ""), now, queue)
            if home is not None and found[shard].state is JobState.LOST and not found[shard].note:
                found[shard] = replace(found[shard], note=f"its job was submitted for {home}")
    if (layout.stopped() or {}).get("at_item"):
        again = shlex.join(["espnet3", "retry", str(layout.run)])
        notes.append(
            f"on_error is 'raise', so one failed item stops the run. Mend what it failed of, then `{again}`; or "
            f"`{again} --on-error record`, which keeps its failure and goes on with the other items"
        )
    merged = (layout.run / RECEIPT).exists()
    status = RunStatus(str(layout.run), plan.env, tuple(found), merged, ())
    if (driver := driver_of(layout.run)) and not status.alive:
        notes = [f"a driver is at work in this folder: {driver}"]
    elif merged and not status.done and not status.alive:
        notes = ["a driver has finished the run since: its merged files hold an outcome of every item"]
    return replace(status, notes=tuple(notes))


def driver_of(run: Path) -> str:
    """Return process, host and start of the driver that is at work in a run's folder; empty where none is."""
    if not holder_lives(run, disk_now(run)):
        return ""
    held = holder_of(run) or {}
    return f"process {held.get('pid')} on {held.get('host')}, since {held.get('since')}"


def job_ids(layout: Layout) -> dict[str, str]:
    """Return the job of each shard that was ever submitted, by the shard's number."""
    jobs = layout.jobs()
    return {**jobs.get("earlier", {}), **jobs.get("jobs", {})}


def may_be_queued(state: JobState) -> bool:
    """Whether the backend may know more: no sign of life, or an end after which it starts the job again."""
    return state in (JobState.UNKNOWN, JobState.UNFINISHED, JobState.TIMEOUT)


def _changed_sources(plan: Plan) -> list[str]:
    changed = changed_sources(plan)
    if not changed:
        return []
    what = "; ".join(shortened(changed))
    advice = (
        "take it back, or submit again with resume=False or 'force' (a recipe's stage: ESPNET3_RESUME=force)"
    )
    return [f"changed since the submission: {what}. Jobs that start now are refused: {advice}"]


def changed_sources(plan: Plan) -> list[str]:
    """Return what of the run's code has changed in its files, for jobs that read them."""
    snapshot = DetachedSettings.of(plan.settings).snapshot  # the copy does not change
    return [] if snapshot else changed_files(plan.code)


def refuse_living(run: Path) -> None:
    """Raise if a run folder has detached jobs that are queued or at work.

    Cheap for a folder that never had any.
    """
    if (run / FOLDER / PLAN).exists():
        layout = Layout(run)
        status_of_ended(layout, layout.plan())


def status_of_ended(layout: Layout, plan: Plan) -> RunStatus:
    """Return the status of a run none of whose jobs is queued or at work."""
    status = run_status(layout, plan)
    if status.alive:
        raise FolderInUseError(_in_use(layout.run, status))
    return status


def _in_use(run: Path, status: RunStatus) -> str:
    counts = ", ".join(f"{n} {state.value}" for state, n in status.counts.items())
    unknown = next((f": {s.note}" for s in status.shards if s.state is JobState.UNKNOWN and s.note), "")
    return (
        f"{run} is in use by detached jobs ({counts}{unknown}). `espnet3 wait` waits for them, `espnet3 cancel` ends "
        "them; or take another output_dir"
    )
