"""From a runner to the facts of a detached run; what is wrong with it is found here, before anything is written."""

from __future__ import annotations

import datetime
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espnet3.parallel.backends.detached_settings import DetachedSettings
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.code import refer
from espnet3.parallel.detached.layout import Plan
from espnet3.parallel.detached.spec import JobSpec, provider_arguments
from espnet3.parallel.detached.submitting import cutting
from espnet3.parallel.detached.surroundings import interpreter, record
from espnet3.parallel.ledger.identity import Identity
from espnet3.parallel.runner.run import Run


def new_run_folder(base: Path, name: str) -> Path:
    """Return a folder for a run without an `output_dir`: the runner's name, the time, and four letters."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S")
    return base / f"{name}-{now}-{secrets.token_hex(2)}"


def template(
    folder: Path, run: Run, identity: Identity, config: ParallelConfig, walltime: float | None
) -> JobSpec:
    """Return the spec of a run without items: each shard's differs from it in those alone."""
    settings, runner = DetachedSettings.of(config.detached), run.runner
    timeout = runner.setup_timeout if runner.setup_timeout is not None else config.setup_timeout
    return JobSpec(
        run=str(folder),
        shard=0,
        begin=0,
        items=range(0),
        indices_sha256=identity.indices["sha256"],
        outcomes="",
        runner=refer(type(runner), "runner"),
        provider=refer(type(runner.provider), "provider"),
        arguments=provider_arguments(runner.provider),
        policy=run.policy,
        surroundings=record(settings.variables, interpreter(config.env, config.options, "")),
        max_failures=runner.max_failures,
        total=identity.indices["count"],
        setup_timeout=timeout,
        walltime=walltime,
        batched=run.batch_forward is not None,
        hooks=run.writes,
        keep_values=not run.merges,
        entries=run.entries(folder),
    )


def make_plan(
    spec: JobSpec,
    specs: str,
    first: int,
    config: ParallelConfig,
    workers: int,
    bounds: list[int],
    outputs: bool,
) -> Plan:
    """Return the plan of a run."""
    kind = "session" if spec.hooks else "split"
    return Plan(
        indices_sha256=spec.indices_sha256,
        bounds=bounds,
        specs=specs,
        outcomes=[f"{kind}.{first + number}" for number in range(len(bounds) - 1)],
        env=config.env,
        n_workers=workers,
        options=json.loads(json.dumps(dict(config.options), default=str)),
        settings=json.loads(json.dumps(dict(config.detached), default=str)),
        hooks=spec.hooks,
        keep_values=spec.keep_values,
        outputs=outputs,
    )


def shard_bounds(
    items: Sequence[Any], config: ParallelConfig, workers: int, cost: Sequence[float] | None, align: int
) -> list[int]:
    """Cut a run without writers of its own."""
    settings = DetachedSettings.of(config.detached)
    return cutting.bounds(len(items), settings.shards, workers, cost, align)
