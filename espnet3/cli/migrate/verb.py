"""`espnet3 migrate`: settings of Kaldi's and ESPnet2's scripts as a `parallel` block."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from espnet3.cli.migrate.block import make_block
from espnet3.cli.migrate.inputs import (
    STAGES,
    choose_call,
    choose_hosts,
    choose_jobs,
    choose_options,
    read_inputs,
)
from espnet3.cli.migrate.origin import Origin, Setting
from espnet3.cli.migrate.writing import yaml_text
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import ConfigError


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--nj", type=click.IntRange(min=1), help="Number of jobs, as in run.sh.")
@click.option("--inference_nj", type=click.IntRange(min=1), help="The same of inference alone.")
@click.option("--gpu_inference", type=bool, help="Whether inference runs on GPUs.")
@click.option("--cmd_backend", help="Which part of ESPnet2's cmd.sh to read: local, slurm, ...")
@click.option(
    "--stage",
    type=click.Choice(STAGES),
    default=STAGES[0],
    show_default=True,
    help="What the block is for: inference takes decode_cmd (cuda_cmd on GPUs), data takes train_cmd.",
)
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write a new file instead of printing.")
def migrate(
    files: tuple[str, ...],
    nj: int | None,
    inference_nj: int | None,
    gpu_inference: bool | None,
    cmd_backend: str | None,
    stage: str,
    output: str | None,
) -> None:
    """Turn Kaldi's or ESPnet2's scheduler settings into a parallel block.

    FILES are cmd.sh, the files of options that its scripts read (conf/slurm.conf, conf/queue.conf, ...), and, where
    they say the numbers of jobs, run.sh or asr.sh. Each line of the block says where it came from; at the end stands
    what has no equivalent.
    """
    given = {
        "nj": nj,
        "inference_nj": inference_nj,
        "gpu_inference": gpu_inference,
        "cmd_backend": cmd_backend,
    }
    fixed = {
        name: Setting(str(value).lower() if isinstance(value, bool) else str(value), Origin(f"--{name}"))
        for name, value in given.items()
        if value is not None
    }
    if "nj" in fixed:  # what was typed wins over an inference_nj of a file
        fixed.setdefault("inference_nj", fixed["nj"])
    try:
        text = _migrated(files, fixed, stage)
        if output is None:
            print(text, end="")
            return
        with Path(output).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        print(f"{output} is there already: remove it, or name another file", file=sys.stderr)
        sys.exit(1)
    except (ConfigError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
    print(f"wrote {output}; espnet3 plan {output} prints its job script", file=sys.stderr)


def _migrated(files: tuple[str, ...], fixed: dict[str, Setting], stage: str) -> str:
    from omegaconf import OmegaConf

    inputs = read_inputs(files, fixed)
    inputs.variables.update({name: value for name, value in fixed.items() if name != "cmd_backend"})
    call = choose_call(inputs, stage)
    jobs = choose_jobs(inputs, stage)
    file = choose_options(inputs, call)
    block = make_block(call, jobs, file, choose_hosts(inputs, call))
    block.notes = [*inputs.notes, *block.notes]
    text = yaml_text(block, f"For the stage {stage}, from {', '.join(files)}")
    try:
        ParallelConfig.parse(OmegaConf.create(text).parallel)
    except ConfigError as error:
        raise ConfigError(
            f"{call.setting.origin}: what {call.variable} = {call.setting.value!r} asks for is refused here; change it "
            f"there, or in this text:\n{text}{error}"
        ) from error
    return text
