"""A configuration in a YAML file, and `espnet3 plan`: its job script."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from espnet3.cli.output import explained, say
from espnet3.parallel.backends import BACKENDS, Kind
from espnet3.parallel.config import ParallelConfig, check_trainer, not_indented
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import counted, shown

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
    """Name a tab before the text of a line, if PyYAML stumbled over one; else ""."""
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


@click.command()
@conf_argument
@explained
def plan(conf: str) -> None:
    """Print the job script or manifest of CONF; nothing is submitted."""
    config = read_block(conf)
    row = BACKENDS[config.env]
    if row.kind is Kind.KUBERNETES:
        from espnet3.cli.kubernetes import planned as manifests

        say(manifests(config))
        return
    if row.scheduler is None:
        say(f"{config.n_workers} workers, {row.title}: no job script")
        return
    from espnet3.parallel.clusters.job_cluster import plan_jobs

    planned = plan_jobs(row, config)
    plural = "s" if planned.workers_per_job > 1 else ""
    say(f"# {planned.jobs} jobs of {planned.workers_per_job} worker{plural} each, by: {planned.command}")
    if planned.elements > 1:
        arrays = math.ceil(planned.jobs / planned.elements)
        say(f"# submitted together, as {counted(arrays, 'job array')}")
    say(planned.script.rstrip())
    for warning in planned.warnings:
        say(f"warning: {warning}; a run with a driver starts only on a machine that has it", file=sys.stderr)
