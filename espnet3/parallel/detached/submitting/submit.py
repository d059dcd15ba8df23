"""`async_mode=True`: write what the jobs need, hand them over, and come back."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import sys
import uuid
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from espnet3.parallel.backends.detached_settings import DetachedSettings
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.launch import launchers
from espnet3.parallel.detached.launch.handover import hand_over, put_specs, settle_in
from espnet3.parallel.detached.layout import ENDED, FOLDER, RUNNER, Layout, Plan
from espnet3.parallel.detached.looking.run import DetachedRun
from espnet3.parallel.detached.looking.status import refuse_living
from espnet3.parallel.detached.restoring import runner_attributes
from espnet3.parallel.detached.spec import JobSpec
from espnet3.parallel.detached.submitting.prepare import (
    make_plan,
    new_run_folder,
    shard_bounds,
    template,
)
from espnet3.parallel.detached.submitting.snapshot import snapshot
from espnet3.parallel.detached.submitting.trial import Trial
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger import open_run
from espnet3.parallel.ledger.files import make_folder, refuse_others, write_json
from espnet3.parallel.ledger.folder import resumed
from espnet3.parallel.ledger.identity import Identity
from espnet3.parallel.ledger.session import SHARDS
from espnet3.parallel.ledger.split import SESSION, SPLIT, split_folders
from espnet3.parallel.messages import counted
from espnet3.parallel.provenance.record import changed_files, shortened
from espnet3.parallel.runner.run import Run
from espnet3.parallel.runner.writers.manifest import write_manifest

_CALLER = 3  # frames from here to the line that calls the runner


def submit_detached(run: Run, config: ParallelConfig) -> DetachedRun:
    """Submit a run's items as detached jobs."""
    runner, identity = run.runner, run.identity()
    if (changed := changed_files(identity.code)) and resumed(runner.resume) != "force":
        raise ConfigError(
            f"edited since this process imported it, so that jobs would compute with other code: "
            f"{'; '.join(shortened(changed))}. Start the program (or the notebook's kernel) again"
        )
    workers = runner.async_num_workers or config.n_workers
    name = type(runner).__name__
    folder = Path(os.path.abspath(run.folder or new_run_folder(runner.async_result_dir, name)))
    spec = template(folder, run, identity, config, launchers.walltime(config))
    specs = Path(os.path.abspath(runner.async_specs_dir)) / f"{folder.name}-{uuid.uuid4().hex[:8]}"
    fresh = not folder.exists()
    with Trial(spec, config.env) as trial:
        launchers.check(replace(config, n_workers=workers))
        refuse_living(folder)
        if not fresh:
            refuse_others(folder)
            trial.passed()  # a folder that was there is not touched for a run that no job could do
        try:
            layout, plan, shards = _write_and_submit(run, identity, config, spec, specs, workers, trial)
        except BaseException:
            if fresh and trial.failed:
                shutil.rmtree(folder, ignore_errors=True)
                specs.unlink(missing_ok=True)
            raise
    left = sum(plan.size(shard) for shard in shards)
    if run.folder is not None and (unused := _unused_result_dir(runner)):
        warnings.warn(
            f"async_result_dir = {unused} is not used: the run is in output_dir, {folder}. Leave one of them out",
            stacklevel=_CALLER,
        )
    if not runner.progress:
        return DetachedRun(layout, runner)
    print(
        f"submitted {counted(len(shards), 'shard')} ({counted(left, 'item')}) as {plan.env} jobs, "
        f"{plan.n_workers} at a time; the run is in {folder}\n"
        "`espnet3 status`, `wait`, `logs`, `cancel`, `retry` and `merge` take this folder",
        file=sys.stderr,
    )
    if run.policy.on_error == "raise" and left > 1:
        print(
            'on_error is "raise": the first item that fails stops all shards. With on_error="record" its failure is '
            "recorded, and the others go on",
            file=sys.stderr,
        )
    return DetachedRun(layout, runner)


def _unused_result_dir(runner: Any) -> str:
    """Return the `async_result_dir` that a runner was given; empty where it is the default."""
    for cls in type(runner).__mro__:
        made = vars(cls).get("__init__")
        parameter = inspect.signature(made).parameters.get("async_result_dir") if made is not None else None
        if parameter is not None and parameter.default is not parameter.empty:
            given = Path(runner.async_result_dir)
            return "" if given == Path(parameter.default) else str(given)
    return ""


def _write_and_submit(
    run: Run,
    identity: Identity,
    config: ParallelConfig,
    spec: JobSpec,
    specs: Path,
    workers: int,
    trial: Trial,
) -> tuple[Layout, Plan, list[int]]:
    """Write what the jobs need while the trial goes on, and queue them once it has passed."""
    folder, items, runner = Path(spec.run), run.items, run.runner
    with open_run(folder, identity, items, runner.resume) as opened:
        layout = Layout(folder)
        if run.writes:
            bounds = [*opened.plan[SHARDS], len(items)]
        else:
            align = run.align if run.batch_forward is not None else 1
            bounds = shard_bounds(items, config, workers, run.cost, align)
        before = _plan_of(layout, spec, bounds, fresh=runner.resume is False)
        if before is None:
            kind = SESSION if run.writes else SPLIT
            first = max((int(split.suffix[1:]) for split in split_folders(folder, kind)), default=-1) + 1
            plan = make_plan(spec, str(specs), first, config, workers, bounds, run.outputs)
        else:  # another backend, or another number of workers, may go on with the same shards
            wanted = DetachedSettings.of(config.detached).shards
            if wanted is not None and before.bounds != bounds:
                warnings.warn(
                    f"detached.shards = {wanted} has no effect: the run in {folder} has begun, in "
                    f"{counted(before.n_shards, 'shard')}",
                    stacklevel=_CALLER + 1,
                )
            settle_in(layout, before)
            plan = make_plan(spec, before.specs, 0, config, workers, before.bounds, run.outputs)
            plan = replace(plan, outcomes=before.outcomes)
        if run.writes:
            write_manifest(folder, runner.shard_subdir, plan.bounds[:-1], items)
        layout.write_plan(replace(plan, code=identity.code), items)
        if DetachedSettings.of(config.detached).snapshot:
            copies = len(list(layout.folder.glob("snapshot.*")))
            spec = snapshot(spec, layout.folder / f"snapshot.{copies}")
            trial.passed()
            with Trial(spec, config.env) as of_the_copy:
                of_the_copy.passed()  # the copy has all that the code needs
        layout.write_template(spec)
        write_json(layout.folder / RUNNER, runner_attributes(runner))
        if plan.specs == str(
            specs
        ):  # jobs read theirs in the run's folder: what is above the link may be others'
            make_folder(specs.parent)
            specs.symlink_to(layout.spec(0).parent, target_is_directory=True)
        shards = put_specs(layout, plan, items, opened.state, opened.run_id, run.retry_failed, before is None)
        trial.passed()
        opened.event("submitted", env=plan.env, shards=len(shards), workers=plan.n_workers)
        hand_over(layout, plan, shards)
    taken = layout.jobs().get("jobs", {})  # not all of them, where the site has a limit
    return layout, plan, [shard for shard in shards if str(shard) in taken]


def _plan_of(layout: Layout, spec: JobSpec, bounds: list[int], fresh: bool) -> Plan | None:
    """Return the plan to go on with; None: a new one is to be made, and an older one is moved aside.

    What was refused, or cancelled before it began, is cut anew as the configuration now says.
    """
    try:
        plan = layout.plan()
    except ConfigError:
        return None
    same = plan.indices_sha256 == spec.indices_sha256 and plan.hooks == spec.hooks
    if not fresh and same and (plan.bounds == bounds or _has_begun(layout, plan)):
        return plan
    if not _has_begun(layout, plan):  # a job of it whose submission got no answer has nothing to do
        if os.path.islink(plan.specs):
            os.unlink(plan.specs)
        for name in plan.outcomes:
            with contextlib.suppress(OSError):
                (layout.run / name).rmdir()
    number = 0
    while (aside := layout.run / f"{FOLDER}.old.{number}").exists():
        number += 1
    layout.folder.rename(aside)
    return None


def _has_begun(layout: Layout, plan: Plan) -> bool:
    """Whether a job of a plan has ever been at work, or an outcome is there."""
    folders = [layout.run / name for name in plan.outcomes]
    folders += [layout.shard(shard) for shard in range(plan.n_shards)]
    return any(file.name != ENDED for folder in folders if folder.is_dir() for file in folder.iterdir())
