"""Job scripts: from facts to text, by pure functions that golden files check."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espnet3.parallel.backends.arrays import Array

_STARTS = 20  # of one element: one that dies at its start must not go on for ever


@dataclass(frozen=True, slots=True)
class Chunk:
    """The elements of one array.

    Attributes:
        number: Which of the run's arrays it is; its files are called after it.
        shards: The shard of each element.
        limit: Elements at a time.
    """

    number: int
    shards: tuple[int, ...]
    limit: int


def chunks(shards: Sequence[int], n_workers: int, most: int) -> list[Chunk]:
    """Cut shards into arrays of at most `most` elements, which share the workers.

    Args:
        shards: The shards to run.
        n_workers: Jobs at a time, over all arrays; each array runs one at least.
        most: Elements an array may have.
    """
    cuts = [tuple(shards[at : at + most]) for at in range(0, len(shards), most)]
    each, more = divmod(n_workers, max(1, len(cuts)))
    return [Chunk(number, cut, max(1, each + (number < more))) for number, cut in enumerate(cuts)]


@dataclass(frozen=True, slots=True)
class Surface:
    """What a job's script says beside its directives.

    Attributes:
        name: The job's name.
        shebang: Its first line.
        prologue: The user's own lines.
        folder: Where it starts.
        python: The interpreter.
        import_path: What PYTHONPATH needs; None: nothing.
        tasks: The file that lists the specs.
        requeue: Whether it may queue itself again.
    """

    name: str
    shebang: str
    prologue: tuple[str, ...]
    folder: str
    python: str
    import_path: str | None
    tasks: str
    requeue: bool


def directives(array: Array, chunk: Chunk, header: str, surface: Surface) -> list[str]:
    """Return the directives of an array, in order, each without the scheduler's mark.

    Args:
        array: The scheduler's facts.
        chunk: The elements.
        header: The header that dask-jobqueue makes of the options.
        surface: Names and paths.
    """
    lines = [line.removeprefix(array.mark).strip() for line in header.splitlines() if line.strip()]
    if array.directive.startswith("-J") and "{name}" in array.directive:
        lines = [line for line in lines if not line.startswith("-J")]  # LSF: the name holds the array
    if len(chunk.shards) == 1 and array.single is not None:
        lines += array.single
    else:
        lines.append(_filled(array.directive, array, chunk, surface.name))
    return [*lines, *array.extra, *(array.rerun if surface.requeue else ())]


def _filled(template: str, array: Array, chunk: Chunk, name: str) -> str:
    last = array.first + len(chunk.shards) - 1
    return template.format(
        first=array.first,
        last=last,
        count=len(chunk.shards),
        limit=chunk.limit,
        name=re.sub(r"\W", "_", name, flags=re.ASCII),  # Moab takes no other letters before an array
    )


def body(array: Array, chunk: Chunk, surface: Surface) -> str:
    """Return what a job does: the user's prologue, and a worker in place of the shell.

    Signals reach the worker because it takes the shell's place.
    """
    alone = len(chunk.shards) == 1 and array.single is not None
    index = str(array.first) if alone else f'"{array.variable}"'
    words = [shlex.quote(surface.python), "-m", "espnet3.parallel.worker"]
    if surface.requeue and array.requeue and not alone:
        words += ["--requeue", shlex.quote(array.requeue)]
    elif surface.requeue and array.again:
        words += ["--again", str(array.again)]
    words += ["--tasks", shlex.quote(surface.tasks), index]
    lines = [*filter(None, surface.prologue), f"cd {shlex.quote(surface.folder)} || exit 1"]
    if surface.import_path is not None:
        lines.append(f"export PYTHONPATH={shlex.quote(surface.import_path)}${{PYTHONPATH:+:$PYTHONPATH}}")
    return "\n".join([*lines, f"exec {' '.join(words)}"]) + "\n"


def script(array: Array, chunk: Chunk, header: str, surface: Surface) -> str:
    """Return the script of an array, directives and all."""
    lines = [surface.shebang or "#!/bin/sh", ""]
    if not array.as_arguments:
        lines += [f"{array.mark} {line}" for line in directives(array, chunk, header, surface)]
    return "\n".join([*lines, "", body(array, chunk, surface)])


def condor_description(
    array: Array, chunk: Chunk, header: Mapping[str, Any], surface: Surface, file: str, silent: bool = False
) -> str:
    """Return HTCondor's submit description, which names the script instead of being one.

    Args:
        array: The scheduler's facts.
        chunk: The elements.
        header: The attributes that dask-jobqueue makes of the options.
        surface: Names and paths.
        file: The script.
        silent: Its folder has a name that HTCondor would expand.
    """
    quoted = file.replace("'", "''").replace('"', '""').replace("$", "$(DOLLAR)")
    own = {
        "batch_name": surface.name,
        "executable": "/bin/sh",
        "arguments": f"\"'{quoted}' $(Process)\"",
        "output": "out-$(Cluster)_$(Process).txt",
        "error": "out-$(Cluster)_$(Process).txt",
        "log": "log-$(Cluster).txt",
        "should_transfer_files": "NO",
        "max_materialize": chunk.limit,
    }
    if silent:
        for line in array.silent:
            key, _, value = line.partition(" = ")
            own[key] = value
    if surface.requeue:
        own["on_exit_remove"] = (
            f"(ExitBySignal == False && ExitCode != {array.again}) || NumJobStarts >= {_STARTS}"
        )
    kept = {key: value for key, value in header.items() if key.lower() not in own and key != "LogDirectory"}
    lines = [f"{key} = {value}" for key, value in {**kept, **own}.items()]
    return "\n".join([*lines, _filled(array.directive, array, chunk, surface.name)]) + "\n"
