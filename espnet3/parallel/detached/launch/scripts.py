"""Job scripts: from facts to text, by pure functions that golden files check."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espnet3.parallel.backends.scheduler import Scheduler, SubmitBy

_STARTS = 20  # starts of one element: one that always dies at its start must end some time


@dataclass(frozen=True, slots=True)
class JobArray:
    """One job array of a run.

    Attributes:
        number: Its place among the arrays of the run; its files are named after it.
        shards: The shard of each element.
        limit: Elements at a time.
    """

    number: int
    shards: tuple[int, ...]
    limit: int


def job_arrays(shards: Sequence[int], n_workers: int, most: int) -> list[JobArray]:
    """Cut shards into arrays of at most `most` elements, which share the workers."""
    cuts = [tuple(shards[at : at + most]) for at in range(0, len(shards), most)]
    each, more = divmod(n_workers, max(1, len(cuts)))
    return [JobArray(number, cut, max(1, each + (number < more))) for number, cut in enumerate(cuts)]


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """What a job's script holds beside its directives.

    Attributes:
        name: The job's name.
        shebang: Its first line.
        cwd: Where the user's own lines are run: the submitter's folder, as in a driver's jobs.
        prologue: These lines.
        folder: Where the worker starts.
        python: The interpreter.
        import_path: What PYTHONPATH needs; None: nothing.
        tasks: The file that lists the specs.
        requeue: Whether a job may queue itself again.
    """

    name: str
    shebang: str
    cwd: str
    prologue: tuple[str, ...]
    folder: str
    python: str
    import_path: str | None
    tasks: str
    requeue: bool


def directives(scheduler: Scheduler, array: JobArray, header: str, facts: ScriptFacts) -> list[str]:
    """Return the directives of an array, in order, each without the scheduler's mark."""
    lines = [line.removeprefix(scheduler.mark).strip() for line in header.splitlines() if line.strip()]
    if scheduler.replaces:
        lines = [line for line in lines if not line.startswith(scheduler.replaces)]
    if len(array.shards) == 1 and scheduler.single is not None:
        lines += scheduler.single
    else:
        lines.append(scheduler.array_directive(facts.name, len(array.shards), array.limit))
    return [*lines, *scheduler.extra, *(scheduler.rerun if facts.requeue else ())]


def body(scheduler: Scheduler, array: JobArray, facts: ScriptFacts) -> str:
    """Return what a job does: the user's prologue, and a worker in place of the shell.

    Signals reach the worker because it takes the shell's place.
    """
    alone = len(array.shards) == 1 and scheduler.single is not None
    index = str(scheduler.first) if alone else f'"{scheduler.index}"'
    words = [shlex.quote(facts.python), "-m", "espnet3.parallel.worker"]
    if facts.requeue and scheduler.requeue and not alone:
        words += ["--requeue", shlex.quote(scheduler.requeue)]
    elif facts.requeue and scheduler.again:
        words += ["--again", str(scheduler.again)]
    words += ["--tasks", shlex.quote(facts.tasks), index]
    # the worker says what is wrong where the submitter's folder is not there
    lines = [f"cd {shlex.quote(facts.cwd)} || true", *filter(None, facts.prologue)]
    lines.append(f"cd {shlex.quote(facts.folder)} || exit 1")
    if facts.import_path is not None:
        lines.append(f"export PYTHONPATH={shlex.quote(facts.import_path)}${{PYTHONPATH:+:$PYTHONPATH}}")
    return "\n".join([*lines, f"exec {' '.join(words)}"]) + "\n"


def script(scheduler: Scheduler, array: JobArray, header: str, facts: ScriptFacts) -> str:
    """Return the script of an array, directives and all."""
    lines = [facts.shebang or "#!/bin/sh", ""]
    if scheduler.submit_by is not SubmitBy.ARGUMENTS:
        lines += [f"{scheduler.mark} {line}" for line in directives(scheduler, array, header, facts)]
    return "\n".join([*lines, "", body(scheduler, array, facts)])


def description(
    scheduler: Scheduler,
    array: JobArray,
    header: Mapping[str, Any],
    facts: ScriptFacts,
    file: str,
    silent: bool = False,
) -> str:
    """Return the description that is submitted in place of a script, and names the script."""
    for text, written in scheduler.quoting:
        file = file.replace(text, written)
    lines = [
        *scheduler.extra,
        *(scheduler.silent if silent else ()),
        *(scheduler.rerun if facts.requeue else ()),
    ]
    numbers = {"limit": array.limit, "again": scheduler.again, "starts": _STARTS}
    own = {}
    for line in lines:
        key, _, value = line.partition(" = ")
        own[key] = value.format(name=facts.name, script=file, **numbers)
    kept = {key: value for key, value in header.items() if key.lower() not in own and key != "LogDirectory"}
    written_lines = [f"{key} = {value}" for key, value in {**kept, **own}.items()]
    directive = scheduler.array_directive(facts.name, len(array.shards), array.limit)
    return "\n".join([*written_lines, directive]) + "\n"
