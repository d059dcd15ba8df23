"""`async_mode=True`: write what the jobs need, hand them over, and come back."""

from __future__ import annotations

import datetime
import getpass
import json
import os
import socket
import sys
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached import launching
from espnet3.parallel.detached.code import SubmissionReached, loading_script
from espnet3.parallel.detached.layout import DONE, ENDED, FOLDER, TEMPLATE, Layout, Plan
from espnet3.parallel.detached.prepare import (
    check_in_job,
    make_plan,
    new_run_folder,
    shard_bounds,
    template,
)
from espnet3.parallel.detached.run import DetachedRun
from espnet3.parallel.detached.spec import JobSpec
from espnet3.parallel.detached.states import RunStatus
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger import FolderInUseError, Identity, open_run
from espnet3.parallel.ledger.files import make_folder, write_json
from espnet3.parallel.ledger.scan import LEFT
from espnet3.parallel.ledger.split import SPEC, split_folders
from espnet3.parallel.records import Policy


def submit_detached(
    runner: Any,
    items: Sequence[Any],
    config: ParallelConfig,
    identity: Identity,
    policy: Policy,
    cost: Sequence[float] | None,
    *,
    batched: bool,
) -> DetachedRun:
    """Submit a runner's items as detached jobs.

    Args:
        runner: The runner (its `output_dir`, `provider`, `async_*` arguments).
        items: The index list.
        config: The registered configuration.
        identity: What the run is.
        policy: Errors, retries, seed and batch size.
        cost: The items' costs; None: the same for all.
        batched: `batch_forward` is used.

    Raises:
        ConfigError: A job could not do what it would be asked to; nothing was submitted.
        FolderInUseError: The run's jobs are at work.
        ChangedRunError: The folder belongs to another run.
    """
    if loading_script():
        raise SubmissionReached  # this process is a job that only wants the script's classes
    launching.check(config)
    workers = runner.async_num_workers or config.n_workers
    if runner.output_dir is None:
        folder = new_run_folder(runner.async_result_dir, type(runner).__name__)
    else:
        folder = runner.output_dir / runner.shard_subdir
    run = Path(os.path.abspath(folder))
    spec = template(
        run,
        runner,
        policy,
        config,
        identity.indices["sha256"],
        batched=batched,
        hooks=False,
        keep_values=True,
        walltime=launching.walltime(config),
    )
    check_in_job(spec)
    refuse_living(run)
    with open_run(run, identity, items, runner.resume) as opened:
        layout = Layout(run)
        plan = _plan_of(layout, spec, runner.resume is False or not (opened.ok or opened.failed))
        if plan is None:
            align = (runner.batch_size or 1) if batched else 1
            bounds = shard_bounds(items, config, workers, cost, align)
            numbers = [int(p.suffix[1:]) for p in split_folders(run)]
            specs = Path(os.path.abspath(runner.async_specs_dir)) / f"{run.name}-{uuid.uuid4().hex[:8]}"
            first = max(numbers, default=-1) + 1
            plan = make_plan(spec, specs, first, config, workers, bounds)
            layout.write_plan(plan, items)
        else:  # another backend, or another number of workers, may go on with the same shards
            fresh = make_plan(spec, Path(plan.specs), 0, config, workers, plan.bounds)
            plan = replace(fresh, outcomes=plan.outcomes)
            layout.write_plan(plan, items)
        write_json(layout.folder / TEMPLATE, spec.to_json())
        detached = DetachedRun(layout, runner)
        shards = put_specs(layout, plan, items, opened.state, opened.run_id)
        opened.event("submitted", env=plan.env, shards=len(shards), workers=plan.n_workers)
        hand_over(layout, plan, shards)
    left = sum(plan.size(shard) for shard in shards)
    print(
        f"submitted {len(shards)} shards ({left} items) as {plan.env} jobs, {plan.n_workers} at a time; the run "
        f"is in {run}\n`espnet3 status`, `wait`, `logs`, `cancel`, `retry` and `merge` take this folder",
        file=sys.stderr,
    )
    return detached


def refuse_living(run: Path) -> None:
    """Raise if a run folder has detached jobs that are queued or at work.

    Cheap for a folder that never had any.

    Raises:
        FolderInUseError: It has; the message says how many.
    """
    if not (run / FOLDER).is_dir():
        return
    status = DetachedRun.open(run).status()
    if status.alive:
        raise FolderInUseError(_in_use(run, status))


def _in_use(run: Path, status: RunStatus) -> str:
    counts = ", ".join(f"{n} {state.value}" for state, n in status.counts.items())
    return (
        f"{run} is in use by detached jobs ({counts}). `espnet3 wait` waits for them, `espnet3 cancel` ends "
        "them; or take another output_dir"
    )


def _plan_of(layout: Layout, spec: JobSpec, fresh: bool) -> Plan | None:
    """Return the plan to go on with; None: a new one is to be made, and an older one is moved aside."""
    try:
        plan = layout.plan()
    except ConfigError:
        return None
    if not fresh and plan.indices_sha256 == spec.indices_sha256 and plan.hooks == spec.hooks:
        return plan
    number = 0
    while (aside := layout.run / f"{FOLDER}.old.{number}").exists():
        number += 1
    layout.folder.rename(aside)
    return None


def put_specs(
    layout: Layout, plan: Plan, items: Sequence[Any], state: bytearray, run_id: str, retry_failed: bool = False
) -> list[int]:
    """Write the specs of the shards that have items left, and mark the others as done.

    Args:
        layout: The run's paths.
        plan: Its plan.
        items: The index list.
        state: One byte a position, as the ledger's scan returns it.
        run_id: The session that submits, for people.
        retry_failed: Run failed items again.

    Returns:
        The shards to submit.
    """
    base = JobSpec.from_json(json.loads((layout.folder / TEMPLATE).read_bytes()))
    make_folder(Path(plan.specs))
    shards = []
    for shard in range(plan.n_shards):
        begin, end = plan.bounds[shard], plan.bounds[shard + 1]
        part = state[begin:end]
        folder = layout.shard(shard)
        left = part.count(LEFT) + (part.count(2) if retry_failed else 0)
        if not left:
            counts = {"ok": part.count(1), "failed": part.count(2)}
            if not (folder / DONE).exists():
                write_json(folder / DONE, counts)
            continue
        for name in (DONE, ENDED):
            (folder / name).unlink(missing_ok=True)
        spec = replace(
            base,
            shard=shard,
            begin=begin,
            items=items[begin:end],
            outcomes=plan.outcomes[shard],
            skip=[] if retry_failed else _stretches(part, begin),
            retry_failed=retry_failed,
        )
        _write(plan.spec(shard), spec.to_json())
        outcomes = layout.run / plan.outcomes[shard]
        make_folder(outcomes)
        facts = {"schema": 1, "run_id": run_id, "indices": plan.indices_sha256, "shard": shard}
        if not (outcomes / SPEC).exists():
            _write(outcomes / SPEC, facts)
        (outcomes / "done").unlink(missing_ok=True)
        shards.append(shard)
    layout.stop.unlink(missing_ok=True)
    return shards


def _write(path: Path, value: Any) -> None:
    """Write a JSON file under a temporary name; a thousand of them are not synced one by one."""
    temporary = path.with_name(f".{path.name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
    temporary.replace(path)


def _stretches(part: Iterable[int], begin: int) -> list[list[int]]:
    """Return the stretches [begin, end) of positions that have an outcome."""
    found: list[list[int]] = []
    for position, state in enumerate(part, begin):
        if state == LEFT:
            continue
        if found and found[-1][1] == position:
            found[-1][1] = position + 1
        else:
            found.append([position, position + 1])
    return found


def hand_over(layout: Layout, plan: Plan, shards: list[int]) -> None:
    """Give shards to the backend and note their jobs.

    Raises:
        ConfigError: The backend refused them; none is queued.
    """
    if not shards:
        return
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    earlier = layout.jobs().get("jobs", {})
    launching.start(layout, plan, shards, {"submitted": now, "by": by}, earlier)


