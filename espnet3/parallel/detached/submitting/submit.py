"""`async_mode=True`: write what the jobs need, hand them over, and come back."""

from __future__ import annotations

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
from espnet3.parallel.detached.code import SubmissionReached, loading_script
from espnet3.parallel.detached.launch import launchers
from espnet3.parallel.detached.launch.handover import hand_over, put_specs
from espnet3.parallel.detached.layout import FOLDER, RUNNER, TEMPLATE, Layout, Plan
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
from espnet3.parallel.ledger.files import write_json
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
    """Submit a run's items as detached jobs.

    Args:
        run: What is to be run, and the runner whose `async_*` arguments say how.
        config: The registered configuration.

    Raises:
        ConfigError: A job could not do what it would be asked to; nothing was submitted.
        FolderInUseError: The run's jobs are at work.
        ChangedRunError: The folder belongs to another run.
    """
    if loading_script():
        raise SubmissionReached  # this process is a job that only wants the script's classes
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
            trial.passed()  # a folder that was there is not touched for a run that no job could do
        try:
            layout, plan, shards = _write_and_submit(run, identity, config, spec, specs, workers, trial)
        except BaseException:
            if fresh and trial.failed:
                for written in (folder, specs):
                    shutil.rmtree(written, ignore_errors=True)
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
        before = _plan_of(layout, spec, fresh=runner.resume is False)
        if before is None:
            if run.writes:
                bounds = [*opened.plan[SHARDS], len(items)]
            else:
                align = run.align if run.batch_forward is not None else 1
                bounds = shard_bounds(items, config, workers, run.cost, align)
            kind = SESSION if run.writes else SPLIT
            first = max((int(split.suffix[1:]) for split in split_folders(folder, kind)), default=-1) + 1
            plan = make_plan(spec, specs, first, config, workers, bounds, run.outputs)
        else:  # another backend, or another number of workers, may go on with the same shards
            plan = make_plan(spec, Path(before.specs), 0, config, workers, before.bounds, run.outputs)
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
        write_json(layout.folder / TEMPLATE, spec.to_json())
        write_json(layout.folder / RUNNER, runner_attributes(runner))
        shards = put_specs(layout, plan, items, opened.state, opened.run_id, run.retry_failed, before is None)
        trial.passed()
        opened.event("submitted", env=plan.env, shards=len(shards), workers=plan.n_workers)
        hand_over(layout, plan, shards)
    return layout, plan, shards


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
