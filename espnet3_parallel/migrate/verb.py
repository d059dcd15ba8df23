"""`espnet3-parallel migrate`: settings of Kaldi's and ESPnet2's scripts as a `parallel` block."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import click

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import ConfigError
from espnet3_parallel.migrate import kaldi
from espnet3_parallel.migrate.block import Block
from espnet3_parallel.migrate.kaldi import Call, Entry, OptionsFile, Script, is_computed
from espnet3_parallel.output import verb

# the command of a stage is the first of these that is assigned
_COMMANDS = {"inference": ("decode_cmd", "train_cmd", "cmd"), "data": ("train_cmd", "decode_cmd", "cmd")}
_STAGE = "What the block is for: inference takes decode_cmd (cuda_cmd on GPUs), data takes train_cmd."
_ON_GPU = ("cuda_cmd", *_COMMANDS["inference"])
_NUMBERS = {"inference": ("inference_nj", "nj"), "data": ("nj",)}
_NJ = Entry(32, "what asr.sh takes where nothing is said; --nj sets it")
_MACHINES = ".queue/machines"  # the hosts of ssh.pl
_PATH_SH = (
    "path.sh, which each job sourced first: workers use the Python that starts them; what else path.sh sets up "
    "(modules, variables) goes to options.job_script_prologue, a list of shell lines"
)


@verb(
    click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False)),
    click.option("--nj", type=click.IntRange(min=1), help="Number of jobs, as in run.sh."),
    click.option("--inference_nj", type=click.IntRange(min=1), help="The same of inference alone."),
    click.option("--gpu_inference", type=bool, help="Whether inference runs on GPUs."),
    click.option("--cmd_backend", help="Which part of ESPnet2's cmd.sh to read: local, slurm, ..."),
    click.option("--stage", type=click.Choice(list(_COMMANDS)), default="inference", help=_STAGE),
    click.option("--output", "-o", type=click.File("x", "utf-8", lazy=True), help="Write a new file."),
)
def migrate(files: tuple[str, ...], stage: str, output: TextIO | None, **given: object) -> None:
    """Turn Kaldi's or ESPnet2's scheduler settings into a parallel block.

    FILES are cmd.sh, the files of options that its scripts read (conf/slurm.conf, conf/queue.conf, ...), and, where
    they say the numbers of jobs, run.sh or asr.sh. Each line of the block says where it came from; at the end stands
    what has no equivalent.
    """
    fixed = {
        name: Entry(str(value).lower() if isinstance(value, bool) else str(value), f"--{name} {value}")
        for name, value in given.items()
        if value is not None
    }
    if "nj" in fixed:  # a typed number wins over an inference_nj of a file
        fixed.setdefault("inference_nj", fixed["nj"])
    print(_migrated(files, fixed, stage), end="", file=output)


def _migrated(files: Sequence[str], fixed: Mapping[str, Entry], stage: str) -> str:
    from omegaconf import OmegaConf

    texts = {path: _text(path) for path in files}
    scripts = [path for path in texts if path.endswith(".sh")]
    if not scripts:
        raise ConfigError("none of the files is a shell script: name cmd.sh too")
    script = Script(fixed)
    for path in scripts:
        script.read(path, texts.pop(path))
    call = _choose_call(script, stage)
    env = Entry(call.env, f'{call.said.why}, {call.variable}="{call.said.value}"')
    block = Block(env, _choose_jobs(script, stage), script.notes, call.options.get("max_jobs_run"))
    folder = os.path.dirname(scripts[0])
    if call.env == "local":
        _fill_local(block, call)
    elif call.env == "ssh":
        _fill_ssh(block, call, texts, folder)
    else:
        _fill_scheduler(block, call, _choose_options(call, texts, folder, block.notes))
    if block.at_once is not None:
        jobs, most = block.n_workers, _positive(block.at_once, "--max-jobs-run")
        if most < jobs.value:
            why = f"--max-jobs-run {most} of {block.at_once.why}, for {jobs.value} jobs ({jobs.why})"
            block.n_workers = Entry(most, why)
    text = block.text(f"For the stage {stage}, from {', '.join(files)}")
    try:
        ParallelConfig.parse(OmegaConf.create(text).parallel)
    except ConfigError as error:
        raise ConfigError(f"{env.why}: a value is refused; change it in this text:\n{text}{error}") from error
    return text


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")  # comments may be in Latin-1


def _choose_call(script: Script, stage: str) -> Call:
    variables = script.variables
    on_gpu = variables.get("gpu_inference") if stage == "inference" else None
    if on_gpu is not None and on_gpu.value.lower() not in ("true", "1"):
        on_gpu = None
    wanted = _COMMANDS[stage] if on_gpu is None else _ON_GPU
    found = [name for name in wanted if name in variables]
    if not found:
        others = ", ".join(name for name in variables if name.endswith("cmd"))
        there = f"there is {others}" if others else "no command is assigned at all"
        left = "".join(f" {note}." for note in script.notes)
        raise ConfigError(f"none of {', '.join(wanted)} is assigned in the shell scripts; {there}.{left}")
    said = variables[found[0]]
    if is_computed(said.value):
        raise ConfigError(f"{said.why}: {found[0]}={said.value!r}: only a shell computes it; write its value")
    call = kaldi.read_call(found[0], said)
    if on_gpu is not None and ("gpu" not in call.options or call.options["gpu"].value == "0"):
        call.options["gpu"] = Entry("1", on_gpu.why)
    training = variables.get("cuda_cmd")
    if training is not None and call.variable != "cuda_cmd":
        lost = f'cuda_cmd="{training.value}" ({training.why})'
        script.notes.append(f"{lost}, for training: set trainer.devices and trainer.num_nodes")
    return call


def _choose_jobs(script: Script, stage: str) -> Entry:
    for name in _NUMBERS[stage]:
        said = script.variables.get(name)
        if said is not None and not is_computed(said.value):
            why = said.why if said.why.startswith("--") else f"{said.why}, {name}"
            return Entry(_positive(said, name), why)
    return _NJ


def _positive(said: Entry, name: str) -> int:
    if not said.value.isdigit() or not int(said.value):
        raise ConfigError(f"{said.why}: {name} = {said.value!r}: must be a positive whole number")
    return int(said.value)


def _found(wanted: str, texts: Mapping[str, str], folder: str) -> tuple[str, str] | None:
    wanted = os.path.expandvars(wanted)
    beside = os.path.normpath(os.path.join(folder, wanted))
    named = [path for path in texts if os.path.basename(path) == os.path.basename(wanted)]
    for path in sorted(named, key=lambda path: os.path.normpath(path) != beside):
        return path, texts[path]
    return (os.path.join(folder, wanted), _text(beside)) if os.path.isfile(beside) else None


def _choose_options(call: Call, texts: Mapping[str, str], folder: str, notes: list[str]) -> OptionsFile:
    wanted, own = kaldi.OPTIONS_FILES[call.env]
    named = call.options.get("config")
    found = _found(wanted if named is None else named.value, texts, folder)
    if found is None and named is not None:
        raise ConfigError(f"{named.why}: --config {named.value}: no such file; name the file here too")
    if found is None and len(texts) == 1:
        (found,) = texts.items()
        notes.append(f"{found[0]}: read in place of {wanted} of {call.script}")
    if found is not None:
        return kaldi.read_options(*found)
    notes.append(f"{wanted} is not there: {call.script}'s own defaults are taken for it")
    return kaldi.read_options(f"{call.script}'s own defaults", own, numbered=False)


def _fill_scheduler(block: Block, call: Call, file: OptionsFile) -> None:
    flags = kaldi.flags_of(call, file, block.notes)
    program = os.path.basename(file.command.value[0])
    needed = "sbatch" if call.env == "slurm" else "qsub"
    if program != needed:
        raise ConfigError(
            f"{file.command.why}: the submit command is {program}, and {call.script} ({call.said.why}) needs {needed}: "
            f"name {kaldi.OPTIONS_FILES[call.env][0]}, or change the command"
        )
    block.read(flags)
    block.notes.append(_PATH_SH)


def _fill_local(block: Block, call: Call) -> None:
    gpus, threads = call.options.pop("gpu", None), call.options.pop("num_threads", None)
    most = "no more than the machine has processors"
    if gpus is not None and gpus.value != "0":
        block.env = Entry("local_gpu", f"{block.env.why} and --gpu {gpus.value}")
        most = "at most the GPUs of the machine"
    block.n_workers = Entry(block.n_workers.value, f"{block.n_workers.why}; {most}")
    if threads is not None:
        block.options["threads_per_worker"] = Entry(_positive(threads, "--num-threads"), threads.why)
    elif block.env.value == "local":
        block.options["threads_per_worker"] = Entry(1, f"a job of {call.script} works on one item at a time")
    _note_ignored(block, call)


def _fill_ssh(block: Block, call: Call, texts: Mapping[str, str], folder: str) -> None:
    found = _found(_MACHINES, texts, folder)
    if found is None:
        raise ConfigError(f"{call.said.why}: ssh.pl reads its hosts from {_MACHINES}: name that file too")
    hosts = [Entry("localhost", "where the scheduler of the workers runs; ssh must reach it too")]
    for number, line in enumerate(found[1].splitlines(), 1):
        if host := line.partition("#")[0].strip():
            hosts.append(Entry(host, f"{found[0]}:{number}"))
    block.lists["hosts"] = hosts
    _note_ignored(block, call)


def _note_ignored(block: Block, call: Call) -> None:
    for name, each in call.options.items():
        if name not in ("config", "max_jobs_run"):
            block.leave_out(kaldi.dashed(name, each.value), each.why, f"{call.script} ignored it")
    if call.flags:
        block.leave_out(" ".join(call.flags), call.said.why, f"{call.script} ignored it")
