"""A configuration in a YAML file, and `espnet3-parallel plan`: its job script."""

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
from espnet3.parallel.messages import counted, shown
from espnet3_parallel.output import as_json_option, say, verb

conf_argument = click.argument("conf", type=click.Path(exists=True, dir_okay=False))


def read_file(path: str) -> Any:
    """Return a YAML file as OmegaConf's mapping."""
    from omegaconf import OmegaConf

    if flat := not_indented(Path(path).read_text(encoding="utf-8", errors="replace")):
        raise ConfigError(f"{path}, {flat}")
    try:
        loaded: Any = OmegaConf.load(path)
    except Exception as error:  # PyYAML's errors have no base that can be named without importing it
        raise ConfigError(f"{path} cannot be read, or is not YAML: {_tab(path, error) or error}") from error
    if not isinstance(loaded, Mapping):
        raise ConfigError(f"{path} holds no mapping; it should have a block named parallel")
    return loaded


def _tab(path: str, error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return ""
    line = [*Path(path).read_text(encoding="utf-8").splitlines(), ""][mark.line]
    held = "\t" in line[: len(line) - len(line.lstrip())]
    return f"line {mark.line + 1} begins with a tab: indent it with spaces" if held else ""


def read_block(path: str, loaded: Any = None) -> ParallelConfig:
    """Return the `parallel` block of a YAML file, or the whole file if it is one."""
    from omegaconf.errors import OmegaConfBaseException

    loaded = read_file(path) if loaded is None else loaded
    try:
        block = loaded.get("parallel", loaded if "env" in loaded else None)
    except OmegaConfBaseException as error:  # an interpolation of something that is not there
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path}: parallel: {reason}; define it, or write the block") from error
    if block is None:
        names = ", ".join(map(str, loaded)) or "nothing"
        raise ConfigError(f"{path} has no block named parallel; it has {names}")
    if not isinstance(block, Mapping):
        example = "parallel: {env: local, n_workers: 4}"
        raise ConfigError(f"{path}: parallel = {shown(block)}: must be a block of lines, such as {example}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            check_trainer(loaded.get("trainer"))
            return ParallelConfig.parse(block)
        finally:
            for each in said:  # its own place would be a line of this program
                say(f"warning: {path}: {each.message}", file=sys.stderr)


@verb(conf_argument, as_json_option)
def plan(conf: str, as_json: bool) -> None:
    """Print the job scripts or manifests of CONF: of a run with a driver, and of a detached one in the folder RUN.

    Nothing is submitted.
    """
    config = read_block(conf)
    row = BACKENDS[config.env]
    shards = DetachedSettings.of(config.detached).shards or 4 * config.n_workers
    facts: dict[str, Any] = {
        "env": config.env,
        "n_workers": config.n_workers,
        "shards": shards,
        "warnings": [],
    }
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
