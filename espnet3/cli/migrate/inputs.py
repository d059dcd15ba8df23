"""The files of a migration: which are scripts, files of options or lists of hosts, and which counts for what."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from espnet3.cli.migrate.calls import Call, read_call
from espnet3.cli.migrate.options_file import OptionsFile, read_options
from espnet3.cli.migrate.origin import Origin, Setting, mistake
from espnet3.cli.migrate.shell import Script, read_script
from espnet3.cli.migrate.wanted import Entry
from espnet3.parallel.errors import ConfigError

_STAGES = {"inference": ("decode_cmd", "train_cmd", "cmd"), "data": ("train_cmd", "decode_cmd", "cmd")}
STAGES = tuple(_STAGES)
_ON_GPU = ("cuda_cmd", "decode_cmd", "train_cmd", "cmd")
_NJ = 32  # of ESPnet2's asr.sh, both nj and inference_nj
_OPTIONS_LINE = re.compile(r"^\s*(?:command\s|option\s|default\s+\S+=)", re.MULTILINE)
_YES = {"true": True, "false": False, "1": True, "0": False}


@dataclass(slots=True)
class Inputs:
    """What was read.

    Attributes:
        variables: What the shell scripts assign; a later script's values win.
        computed: Variables that only a shell can compute.
        options: The files of options.
        hosts: The machines of ssh.pl.
        folder: The folder of the first shell script: its file names begin there.
        notes: What was left out, in a sentence each.
    """

    variables: dict[str, Setting] = field(default_factory=dict)
    computed: dict[str, Setting] = field(default_factory=dict)
    options: list[OptionsFile] = field(default_factory=list)
    hosts: list[Setting] = field(default_factory=list)
    folder: str = ""
    notes: list[str] = field(default_factory=list)


def read_inputs(paths: Iterable[str], fixed: Mapping[str, Setting]) -> Inputs:
    """Read files of any of the three kinds."""
    found = Inputs()
    scripts: list[Script] = []
    for path in paths:
        text = _text(path)
        if os.path.basename(path) == "machines":
            found.hosts += _hosts(path, text)
        elif path.endswith(".conf") or (not path.endswith(".sh") and _OPTIONS_LINE.search(text)):
            found.options.append(read_options(path, text.splitlines()))
        else:
            if not scripts:
                found.folder = os.path.dirname(path)
            scripts.append(read_script(path, text, fixed))
    if not scripts:
        raise ConfigError(
            "none of the files is a shell script: name cmd.sh too, which says what runs the jobs"
        )
    for script in scripts:
        found.variables.update(script.variables)
        found.computed.update(script.computed)
        found.notes += script.notes
    return found


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _hosts(path: str, text: str) -> list[Setting]:
    return [
        Setting(line.strip(), Origin(path, number))
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]


def choose_call(inputs: Inputs, stage: str) -> Call:
    """Return the command that does a stage's work, with the `--gpu 1` that asr.sh adds for `gpu_inference`."""
    on_gpu = stage == "inference" and _gpu_inference(inputs)
    wanted = _ON_GPU if on_gpu else _STAGES[stage]
    for name in wanted:
        if name in inputs.computed:
            found = inputs.computed[name]
            raise mistake(
                found.origin, f"{name} = {found.value!r}: only a shell can compute it; write its value"
            )
        if name in inputs.variables:
            call = read_call(name, inputs.variables[name])
            if on_gpu and call.options.get("gpu", Setting("0", call.setting.origin)).value == "0":
                call.options["gpu"] = Setting("1", inputs.variables["gpu_inference"].origin)
            _note_training(inputs, name)
            return call
    others = [name for name in inputs.variables if name.endswith("cmd")]
    there = f"there is {', '.join(others)}" if others else "no command is assigned at all"
    left = f" Left out: {' '.join(inputs.notes)}" if inputs.notes else ""
    raise ConfigError(f"none of {', '.join(wanted)} is assigned in the shell scripts; {there}.{left}")


def _note_training(inputs: Inputs, chosen: str) -> None:
    training = inputs.variables.get("cuda_cmd")
    if training is not None and chosen != "cuda_cmd":
        inputs.notes.append(
            f'cuda_cmd="{training.value}" ({training.origin}), for training: GPUs and nodes of a training are '
            "trainer.devices and trainer.num_nodes"
        )


def _gpu_inference(inputs: Inputs) -> bool:
    setting = inputs.variables.get("gpu_inference")
    if setting is None:
        return False
    if setting.value.lower() not in _YES:
        raise mistake(setting.origin, f"gpu_inference = {setting.value!r}: must be true or false")
    return _YES[setting.value.lower()]


def choose_jobs(inputs: Inputs, stage: str) -> Entry:
    """Return how many jobs a stage has: `inference_nj` or `nj`, whichever is said, or asr.sh's own 32."""
    for name in ("inference_nj", "nj") if stage == "inference" else ("nj",):
        setting = inputs.variables.get(name)
        if setting is None:
            continue
        if not setting.value.isdigit() or not int(setting.value):
            raise mistake(setting.origin, f"{name} = {setting.value!r}: must be a positive whole number")
        file = bool(setting.origin.line)
        return Entry(
            int(setting.value), f"{setting.origin}, {name}" if file else f"{setting.origin} {setting.value}"
        )
    return Entry(_NJ, "what asr.sh takes where nothing is said; --nj sets it")


def choose_options(inputs: Inputs, call: Call) -> OptionsFile | None:
    """Return the options of a command's script, from the file that it would read."""
    if not call.script.own:
        return None
    named = call.options.get("config")
    wanted = named.value if named else call.script.file
    path = os.path.expandvars(wanted)
    for file in inputs.options:
        if os.path.normpath(file.name) in (os.path.normpath(path), os.path.join(inputs.folder, path)):
            return file
    for file in inputs.options:
        if os.path.basename(file.name) == os.path.basename(path):
            return file
    beside = os.path.join(inputs.folder, path)
    if os.path.isfile(beside):
        return read_options(beside, _text(beside).splitlines())
    if named is not None:
        raise mistake(
            named.origin,
            f"{call.variable}: --config {wanted}: there is no {beside}; name the file on the command line",
        )
    if len(inputs.options) == 1:
        inputs.notes.append(
            f"{inputs.options[0].name}: read in place of {call.script.file} of {call.script.name}"
        )
        return inputs.options[0]
    inputs.notes.append(
        f"{call.script.file} is not there: {call.script.name}'s own defaults are taken for it"
    )
    return call.script.own_options()


def choose_hosts(inputs: Inputs, call: Call) -> list[Setting]:
    """Return the machines of ssh.pl: those of the given file, or of the one beside cmd.sh."""
    path = os.path.join(inputs.folder, call.script.file)
    if not inputs.hosts and call.script.env == "ssh" and os.path.isfile(path):
        return _hosts(path, _text(path))
    return inputs.hosts
