"""A configuration in a YAML file, and verbs for it: `plan` prints its job script, `size` says how many workers."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from espnet3.parallel.backends import BACKENDS, Backend, Kind, load_cluster_class
from espnet3.parallel.config import DetachedSettings, ParallelConfig, check_trainer, not_indented
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import counted, duration, shown
from espnet3.parallel.views.charts import amount
from espnet3_parallel.output import a_run, as_json_option, say, verb, wrapped

_SAMPLE = 8  # items
_conf = click.argument("conf", type=click.Path(exists=True, dir_okay=False))


def read_file(path: str) -> Any:
    """Return a YAML file as OmegaConf's mapping."""
    from omegaconf import OmegaConf

    try:
        loaded: Any = OmegaConf.load(path)
    except Exception as error:  # PyYAML's errors have no base that can be named without importing it
        raise ConfigError(f"{path} cannot be read, or is not YAML: {error}") from error
    if not isinstance(loaded, Mapping):
        raise ConfigError(f"{path} holds no mapping; it should have a block named parallel")
    if flat := not_indented(OmegaConf.to_container(loaded, resolve=False)):
        raise ConfigError(f"{path}: {flat}")
    return loaded


def read_block(path: str, loaded: Any = None) -> ParallelConfig:
    """Return the `parallel` block of a YAML file, or the whole file if it is one."""
    from omegaconf.errors import OmegaConfBaseException

    loaded = read_file(path) if loaded is None else loaded
    try:
        block = loaded.get("parallel", loaded if "env" in loaded else None)
    except OmegaConfBaseException as error:  # an interpolation of something that is not there
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path}: parallel: {reason}; define it, or write the block") from error
    if not isinstance(block, Mapping):
        example = (
            f"parallel: {{env: local, n_workers: 4}}; the file has {', '.join(map(str, loaded)) or 'nothing'}"
        )
        raise ConfigError(f"{path}: parallel = {shown(block)}: must be a block of lines, such as {example}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            check_trainer(loaded.get("trainer"))
            return ParallelConfig.parse(block)
        finally:
            for each in said:  # its own place would be a line of this program
                say(f"warning: {path}: {each.message}", file=sys.stderr)


@verb(_conf, as_json_option)
def plan(conf: str, as_json: bool) -> None:
    """Print the job scripts or manifests of CONF: of a run with a driver, and of a detached one in the folder RUN.

    Nothing is submitted.
    """
    config = read_block(conf)
    row = BACKENDS[config.env]
    shards = DetachedSettings(**config.detached).shards or 4 * config.n_workers
    facts = dict[str, Any](env=config.env, n_workers=config.n_workers, shards=shards, warnings=[])
    lines = [f"{counted(config.n_workers, 'worker')}, {row.title}: no job script"]
    if row.kind is Kind.KUBERNETES:
        from espnet3_parallel.kubernetes import planned

        manifests = planned(config, shards)
        facts |= {what: {"manifest": text} for what, (_, text) in manifests.items()}
        lines = "\n---\n".join(f"# {head}\n{text}" for head, text in manifests.values()).splitlines()
    elif row.scheduler is not None:
        lines = _of_scheduler(row, config, shards, facts)
    say(json.dumps(facts, indent=2) if as_json else "\n".join(lines))
    for warning in facts["warnings"]:
        say(f"warning: {warning}; a run with a driver starts only on a machine that has it", file=sys.stderr)


def _of_scheduler(row: Backend, config: ParallelConfig, shards: int, facts: dict[str, Any]) -> list[str]:
    load_cluster_class(row)  # the error of a missing package says how to install it
    from espnet3.parallel.clusters.job_cluster import plan_jobs
    from espnet3.parallel.detached.launch.job_arrays import planned

    jobs = plan_jobs(row, config)
    arrays, command, script = planned(config, shards, Path("RUN"))
    facts |= {"driver": asdict(jobs), "detached": {"arrays": arrays, "command": command, "script": script}}
    facts["warnings"] = list(facts["driver"].pop("warnings"))
    each = f"{counted(jobs.jobs, 'job')} of {counted(jobs.workers_per_job, 'worker')} each"
    together = counted(math.ceil(jobs.jobs / jobs.elements), "job array")
    return [
        f"# {each}, by: {jobs.command}",
        *([f"# submitted together, as {together}"] if jobs.elements > 1 else []),
        *(f"# note: {remark}" for remark in jobs.remarks),
        jobs.script.rstrip(),
        "",
        f"# a detached run in RUN: {counted(shards, 'shard')}, {config.n_workers:,} at a time, by: {command}",
        f"# submitted together, as {counted(arrays, 'job array')}{'; the first:' if arrays > 1 else ''}",
        script,
    ]


@verb(
    _conf,
    click.option("--items", type=click.IntRange(1), required=True, help="How many items the job has."),
    click.option("--run", type=click.Path(exists=True), help="An earlier run of a few items."),
    click.option("--runner", metavar="MODULE:CLASS", help="Without an earlier run: run a few items here."),
    click.option("--provider", metavar="MODULE:CLASS", help="Its provider, made with CONF."),
    click.option("--within", type=click.FloatRange(0, min_open=True), help="Hours that the job may take."),
    click.option("--sample", type=click.IntRange(1), help=f"Items to run here without --run [{_SAMPLE}]."),
    as_json_option,
)
def size(conf: str, items: int, run: str | None, within: float | None, as_json: bool, **given: Any) -> None:
    """Say how long --items take with the workers of CONF, or how many workers do them --within a time.

    Prints the block to paste, with walltime and memory as measured.
    """
    from omegaconf import OmegaConf

    from espnet3.parallel.views import sizing
    from espnet3_parallel import importable

    config = read_block(conf)
    wanted = {what: name for what, name in given.items() if name is not None}
    if run is None:
        whole, sample = read_file(conf), min(items, wanted.pop("sample", _SAMPLE))
        names = importable.meant(whole, wanted, "; or an earlier run of it: --run FOLDER")
        measured = sizing.measured_here(*importable.loaded(whole, names), sample)
    elif wanted:
        raise click.UsageError("--run is an earlier run: leave out --runner and --provider, and --sample")
    else:
        measured = sizing.measured_by(a_run(run))
    backend = BACKENDS[config.env]
    there, most = sizing.placed(measured, backend), sizing.most_workers(backend)
    if within is None:
        chosen, why = sizing.size_for(there, items, config.n_workers), f"n_workers of {conf}"
    else:
        chosen, why = sizing.recommended(there, items, within * 3600, most), f"--within {within:g}"
    block = sizing.block_for(config, chosen, measured)
    if as_json:
        say(json.dumps({"size": asdict(chosen), "parallel": block}, indent=2, default=str))
        return
    took = f", up to {amount(measured.memory)} in a process" if measured.memory else ""
    text = (
        f"An item took {duration(measured.seconds)} (over {measured.items:,} items), a worker's start "
        f"{duration(measured.start)}, {duration(measured.env)} of it to build the env{took}. {items:,} items are "
        f"{duration(measured.seconds * items)} of work."
    )
    say(wrapped(text))
    say(f"\n{'workers':>8} {'done in':>10} {'worker hours':>13} {'start-up':>9}")
    for one in sizing.around(there, items, chosen, most):
        row = f"{one.workers:8,} {duration(one.wall):>10} {one.worker_hours:13,.2f} {one.start_share:9.0%}"
        say(f"{row}  <- {why}" if one.workers == chosen.workers else row)
    if there.start > measured.start:
        why = "it waits for a host and loads Python from a shared disk"
        say(f"\n{wrapped(f'A worker there is taken to start in {duration(there.start)}: {why}.')}")
    say(f"\n{OmegaConf.to_yaml(OmegaConf.create({'parallel': block}))}", end="")
