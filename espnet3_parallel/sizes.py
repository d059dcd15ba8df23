"""`espnet3-parallel size`: the number of workers of a bigger job, and its options."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.views import sizing
from espnet3.parallel.views.charts import amount, duration
from espnet3_parallel.configs import conf_argument, read_block, read_file
from espnet3_parallel.importable import loaded, meant
from espnet3_parallel.output import as_json_option, say, verb, wrapped
from espnet3_parallel.runs import a_run

_SAMPLE = 8  # items


@verb(
    conf_argument,
    click.option("--items", type=click.IntRange(1), required=True, help="How many items the job has."),
    click.option("--run", type=click.Path(exists=True), help="An earlier run of a few items."),
    click.option("--runner", metavar="MODULE:CLASS", help="Without an earlier run: run a few items here."),
    click.option("--provider", metavar="MODULE:CLASS", help="Its provider, made with CONF."),
    click.option(
        "--within", type=click.FloatRange(0, min_open=True), help="Hours for which to choose the workers."
    ),
    click.option("--sample", type=click.IntRange(1), help=f"Items to run here without --run [{_SAMPLE}]."),
    as_json_option,
)
def size(
    conf: str,
    items: int,
    run: str | None,
    within: float | None,
    sample: int | None,
    as_json: bool,
    **classes: str | None,
) -> None:
    """Say how long --items take with the workers of CONF, or how many workers do them --within a time.

    Prints the block to paste, with walltime and memory as measured.
    """
    config = read_block(conf)
    wanted = {what: name for what, name in classes.items() if name is not None}
    if run is None:
        whole = read_file(conf)
        names = meant(whole, wanted, "; or an earlier run of it: --run FOLDER")
        measured = sizing.measured_here(*loaded(whole, names), min(items, sample or _SAMPLE))
    elif wanted or sample:
        raise click.UsageError("--run is an earlier run: leave out --runner and --provider, and --sample")
    else:
        measured = sizing.measured_by(Path(os.path.abspath(a_run(run))))
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
    say(
        wrapped(
            f"An item took {duration(measured.seconds)} (over {measured.items:,} items), a worker's start "
            f"{duration(measured.start)}, {duration(measured.env)} of it to build the env{took}. {items:,} items are "
            f"{duration(measured.seconds * items)} of work."
        )
    )
    say(f"\n{'workers':>8} {'done in':>10} {'worker hours':>13} {'start-up':>9}")
    for one in sizing.around(there, items, chosen, most):
        row = f"{one.workers:8,} {duration(one.wall):>10} {one.worker_hours:13,.2f} {one.start_share:9.0%}"
        say(f"{row}  <- {why}" if one.workers == chosen.workers else row)
    if there.start > measured.start:
        why = "it waits for a host and loads Python from a shared disk"
        say(f"\n{wrapped(f'A worker there is taken to start in {duration(there.start)}: {why}.')}")
    from omegaconf import OmegaConf

    say(f"\n{OmegaConf.to_yaml(OmegaConf.create({'parallel': block}))}", end="")
