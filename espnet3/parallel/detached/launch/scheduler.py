"""Job arrays of a batch scheduler: one submission for all shards, one question for all, one cancel."""

from __future__ import annotations

import contextlib
import getpass
import inspect
import json
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

from espnet3.parallel.backends import load_cluster_class, row
from espnet3.parallel.backends.amounts import walltime_seconds
from espnet3.parallel.backends.arrays import Array
from espnet3.parallel.backends.detached_settings import DetachedSettings
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.dask_compat import job_id_in, prologue_of
from espnet3.parallel.detached.launch.scripts import (
    Chunk,
    Surface,
    body,
    chunks,
    condor_description,
    directives,
    script,
)
from espnet3.parallel.detached.layout import Layout, Plan
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.detached.surroundings import import_path, job_environment
from espnet3.parallel.errors import ConfigError, ParallelError, SubmissionError
from espnet3.parallel.ledger.files import make_folder, write_json, write_whole

FOLDER = "scheduler"  # scripts, task lists and what the scheduler prints
_PLAIN = re.compile(r"[\w./+-]+", re.ASCII)  # a path that means itself in every shell
_SECONDS = 120.0  # a scheduler that is busy answers late
_LOOK = 0.5  # seconds between two questions while a cancelled array ends
_NOT_THE_JOBS = {"config_name"}  # of the cluster's own parameters the one that the job reads too


def start(
    layout: Layout, plan: Plan, shards: list[int], facts: dict[str, Any], earlier: dict[str, str]
) -> None:
    """Submit shards as job arrays, and note each element's id.

    Raises:
        ConfigError: The job's options are wrong.
        SubmissionError: The scheduler refused; what it had taken before is cancelled.
    """
    array = _array(plan.env)
    settings = DetachedSettings.of(plan.settings)
    folder = layout.folder / FOLDER
    make_folder(folder)
    most = (settings.array_limit or _site_limit(array)) - array.first + 1
    jobs: dict[str, str] = {}
    arrays: list[str] = []
    number = len(list(folder.glob("tasks.*.json")))
    try:
        for factor, group in _by_memory(shards, facts.get("raised", {})):
            job = make_job(plan, factor)
            for chunk in chunks(group, plan.n_workers, max(1, most)):
                tasks = folder / f"tasks.{number}.json"
                specs = [str(plan.spec(shard)) for shard in chunk.shards]
                write_json(tasks, {"first": array.first, "specs": specs})
                surface = _surface(layout, plan, job, str(tasks), settings)
                command, stdin = _write(folder, number, array, chunk, job, surface)
                said = _call(command, _start_folder(array, folder), stdin)
                ids, whole = _ids(array, chunk, job, said)
                arrays += whole
                jobs.update(zip(map(str, chunk.shards), ids, strict=True))
                number += 1
    except BaseException:
        if arrays:
            _cancel(make_job(plan), arrays, folder)
        raise
    layout.write_jobs({**facts, "arrays": arrays, "jobs": jobs, "earlier": {**earlier, **jobs}})


def _start_folder(array: Array, folder: Path) -> Path:
    """Return where to submit from: the scheduler notes the folder, and some expand what is in its name."""
    return Path("/") if array.silent and not _PLAIN.fullmatch(str(folder)) else folder


def _array(env: str) -> Array:
    array = row(env).array
    if array is None:
        raise ConfigError(f"env: {env} is no batch scheduler")
    return array


def _by_memory(shards: list[int], raised: dict[str, float]) -> list[tuple[float, list[int]]]:
    """Group shards by how many times the memory they ask for."""
    groups: dict[float, list[int]] = {}
    for shard in shards:
        groups.setdefault(raised.get(str(shard), 1.0), []).append(shard)
    return sorted(groups.items())


def make_job(plan: Plan, memory_factor: float = 1.0) -> Any:
    """Return dask-jobqueue's object of a job: it knows how the options are written in a header.

    Args:
        plan: Its backend and options.
        memory_factor: How many times the memory to ask for.

    Raises:
        ConfigError: An option is wrong.
    """
    backend = row(plan.env)
    cluster: Any = load_cluster_class(backend)
    base = next(cls for cls in cluster.__mro__ if cls.__name__ == "JobQueueCluster")
    own = set(inspect.signature(base.__init__).parameters) - _NOT_THE_JOBS
    options = {name: value for name, value in plan.options.items() if name not in own}
    options.pop("log_directory", None)  # its path would stand unquoted in the header
    name = "espnet3-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(plan.specs).name)[:40]
    options.setdefault("job_name", name)
    if memory_factor != 1.0 and "memory" in options:
        from dask.utils import parse_bytes

        options["memory"] = f"{round(parse_bytes(options['memory']) * memory_factor)}B"
    try:
        return cluster.job_cls(scheduler="tcp://none", name=name, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"options of {plan.env}: {error}") from error


def _surface(layout: Layout, plan: Plan, job: Any, tasks: str, settings: DetachedSettings) -> Surface:
    return Surface(
        name=str(job.job_name),
        shebang=str(job.shebang or "#!/bin/sh"),
        prologue=prologue_of(job),
        folder=str(layout.folder / FOLDER),
        python=plan.python,
        import_path=import_path(),
        tasks=tasks,
        requeue=settings.requeue,
    )


def _write(
    folder: Path, number: int, array: Array, chunk: Chunk, job: Any, surface: Surface
) -> tuple[list[str], str | None]:
    """Write an array's script; return the command that submits it, and what it reads on standard input."""
    submit = shlex.split(job.submit_command)
    name = f"job.{number}.sh"
    if not array.mark:
        text = "\n".join([surface.shebang, body(array, chunk, surface)])
        write_whole(folder / name, text.encode())
        silent = _start_folder(array, folder) != folder
        description = condor_description(
            array, chunk, job.job_header_dict, surface, str(folder / name), silent
        )
        write_whole(folder / f"job.{number}.sub", description.encode())
        return [*submit, str(folder / f"job.{number}.sub")], None
    text = script(array, chunk, job.job_header, surface)
    write_whole(folder / name, text.encode())
    (folder / name).chmod(0o700)
    if array.as_arguments:
        lines = directives(array, chunk, job.job_header, surface)
        if _start_folder(array, folder) != folder:
            lines += array.silent
        words = [word for line in lines for word in shlex.split(line)]
        return [*submit, *words, shlex.quote(str(folder / name))], None
    if array.by_stdin:
        return submit, text
    return [*submit, name], None


def _call(command: list[str], folder: Path, stdin: str | None = None) -> str:
    """Run a command of the scheduler; return what it printed.

    Raises:
        SubmissionError: It failed.
    """
    shown = shlex.join(command)
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**job_environment(), "PWD": str(folder)},  # OAR believes this rather than the system
            input=stdin or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except OSError as error:
        raise SubmissionError(shown, None, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise SubmissionError(shown, None, f"it did not answer within {_SECONDS:g} s") from error
    if done.returncode != 0:
        raise SubmissionError(shown, done.returncode, done.stderr.strip() or done.stdout.strip())
    return done.stdout


def _ids(array: Array, chunk: Chunk, job: Any, said: str) -> tuple[list[str], list[str]]:
    """Return the id of each element, and what the cancel command takes for all of them."""
    if not array.element:
        ids = re.findall(r"OAR_JOB_ID=(\d+)", said)
        if len(ids) != len(chunk.shards):
            raise ParallelError(f"{len(chunk.shards)} jobs were submitted, and the scheduler said:\n{said}")
        return ids, ids
    try:
        number = job_id_in(job, said).split(".")[0]
    except ValueError as error:
        raise ParallelError(f"the scheduler's answer holds no job id:\n{said}") from error
    alone = len(chunk.shards) == 1 and array.single is not None
    if alone:
        return [number], [number]
    elements = range(array.first, array.first + len(chunk.shards))
    ids = [array.element.format(job=number, index=index) for index in elements]
    return ids, [array.cancel.format(job=number)]


def _site_limit(array: Array) -> int:
    """Return the largest index that the site allows in an array."""
    if array.site_limit is None:
        return array.most
    command, pattern = array.site_limit
    found = re.search(pattern, _call(list(command), Path.cwd()), re.MULTILINE)
    return array.most if found is None else int(found[1]) - 1


def query(layout: Layout, jobs: dict[str, str]) -> dict[int, tuple[JobState, str]]:
    """Return what the scheduler says of jobs, by shard, with one question; those it does not list are left out.

    Raises:
        OSError: It does not answer.
    """
    array = _array(layout.plan().env)
    command = [part.replace("{user}", getpass.getuser()) for part in array.query]
    try:
        said = _call(command, layout.folder)
    except SubmissionError as error:
        raise OSError(f"{error.command}: {error.stderr.strip()}") from error
    listed = read_queue(array, said)
    found = {int(shard): listed[job] for shard, job in jobs.items() if job in listed}
    gone = {shard: job for shard, job in jobs.items() if job not in listed or not listed[job][0].alive}
    return {**found, **_starved(array, layout.folder / FOLDER, gone)}


def _starved(array: Array, folder: Path, jobs: dict[str, str]) -> dict[int, tuple[JobState, str]]:
    """Return which of these jobs the scheduler says it has killed for want of memory, in what it prints.

    Its list may call such a job failed, or have forgotten it.
    """
    found = {}
    for shard, element in jobs.items() if array.printed else ():
        job, _, index = element.removesuffix("]").replace("[", "_").partition("_")
        file = folder / array.printed.format(job=job, index=index)
        with contextlib.suppress(OSError):  # never started, or cleared away
            said = re.search(f".*(?:{array.starved}).*", file.read_text(errors="replace"))
            if said is not None:
                found[int(shard)] = (JobState.OUT_OF_MEMORY, said[0].strip())
    return found


def read_queue(array: Array, said: str) -> dict[str, tuple[JobState, str]]:
    """Return what a scheduler's list says of each element: its state, and the scheduler's words."""
    found = {}
    for match in re.finditer(array.line, said, re.MULTILINE):
        parts = {name: (text or "").strip() for name, text in match.groupdict().items()}
        element = parts.get("id") or array.element.format(job=parts["job"], index=parts["index"])
        word = parts["word"]
        known = max((start for start in array.words if word.startswith(start)), key=len, default=None)
        state = JobState.PENDING if known is None else JobState(array.words[known])
        note = parts.get("note", "")
        found[element] = (state, word if note in ("", "None", "undefined") else f"{word}: {note}")
    return found


def cancel(layout: Layout, plan: Plan, grace: float) -> None:
    """Cancel all arrays of the last submission with one command, and wait until they have left the queue."""
    jobs = layout.jobs()
    arrays = jobs.get("arrays", [])
    if not arrays:
        return
    _cancel(make_job(plan), arrays, layout.folder)
    end = time.monotonic() + grace + _SECONDS
    while any(state.alive for state, _ in query(layout, jobs["jobs"]).values()):
        if time.monotonic() > end:
            raise ParallelError(
                f"the scheduler still lists jobs of {' '.join(arrays)} after their cancellation"
            )
        time.sleep(_LOOK)


def _cancel(job: Any, arrays: list[str], folder: Path) -> None:
    try:
        _call([*shlex.split(job.cancel_command), *arrays], folder)
    except ParallelError as error:
        # some refuse where an element has ended meanwhile; who waits for the queue sees what is left
        print(f"while cancelling: {error}", flush=True)


def walltime(config: ParallelConfig) -> float | None:
    """Return the seconds that a job may take by its options; None: they do not say."""
    value = config.options.get("walltime")
    return None if value is None else walltime_seconds(value, minutes_last=_array(config.env).minutes_last)


def check(config: ParallelConfig) -> None:
    """Raise if the scheduler's package is missing, or its job's options are wrong."""
    options = json.loads(json.dumps(dict(config.options), default=str))
    make_job(Plan("", [0], "check", [], config.env, 1, options, {}, ""))
