"""Job arrays of a batch scheduler: one submission, one query and one cancel command for all shards."""

from __future__ import annotations

import contextlib
import getpass
import inspect
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from espnet3.parallel.backends import load_cluster_class, row
from espnet3.parallel.backends.amounts import walltime_seconds
from espnet3.parallel.backends.detached_settings import DetachedSettings
from espnet3.parallel.backends.scheduler import Scheduler, SubmitBy
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.dask_compat import job_id_in, prologue_of
from espnet3.parallel.detached.launch.scripts import (
    JobArray,
    ScriptFacts,
    body,
    description,
    directives,
    job_arrays,
    script,
)
from espnet3.parallel.detached.layout import Layout, Plan
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.detached.surroundings import import_path, job_environment
from espnet3.parallel.errors import ConfigError, ParallelError, SubmissionError
from espnet3.parallel.ledger.files import make_folder, write_json, write_whole

FOLDER = "scheduler"  # scripts, task lists and what the scheduler prints
_PLAIN = re.compile(r"[\w./+-]+", re.ASCII)  # a path that no shell or scheduler expands
_SECONDS = 120.0  # a busy scheduler answers late
_SILENCE = 15.0  # seconds that a cancellation waits for a scheduler that answers with errors
_LOOK = 0.5  # seconds between queries while a cancelled array ends
_NOT_THE_JOBS = {"config_name"}  # the one parameter of the cluster that the job reads too


def start(
    layout: Layout, plan: Plan, shards: list[int], facts: dict[str, Any], earlier: dict[str, str]
) -> None:
    """Submit shards as job arrays, and note each element's id.

    Raises:
        ConfigError: The job's options are wrong.
        SubmissionError: The scheduler refused; what it had taken before is cancelled.
    """
    scheduler = _scheduler(plan.env)
    settings = DetachedSettings.of(plan.settings)
    folder = layout.folder / FOLDER
    make_folder(folder)
    most = (settings.array_limit or _site_limit(scheduler)) - scheduler.first + 1
    jobs: dict[str, str] = {}
    arrays: list[str] = []
    number = len(list(folder.glob("tasks.*.json")))
    try:
        for factor, group in _by_memory(shards, facts.get("raised", {})):
            job = make_job(plan, factor)
            for array in job_arrays(group, plan.n_workers, max(1, most)):
                tasks = folder / f"tasks.{number}.json"
                specs = [str(plan.spec(shard)) for shard in array.shards]
                write_json(tasks, {"first": scheduler.first, "specs": specs})
                script_facts = _script_facts(layout, plan, job, str(tasks), settings)
                command, stdin = _write(folder, number, scheduler, array, job, script_facts)
                said = _call(command, _start_folder(scheduler, folder), stdin)
                ids, whole = _ids(scheduler, array, job, said)
                arrays += whole
                jobs.update(zip(map(str, array.shards), ids, strict=True))
                number += 1
    except BaseException:
        if arrays:
            _cancel(make_job(plan), arrays, folder)
        raise
    layout.write_jobs({**facts, "arrays": arrays, "jobs": jobs, "earlier": {**earlier, **jobs}})


def _start_folder(scheduler: Scheduler, folder: Path) -> Path:
    """Return the folder to submit from: a scheduler records it, and some expand special characters in its name."""
    return Path("/") if scheduler.silent and not _PLAIN.fullmatch(str(folder)) else folder


def _scheduler(env: str) -> Scheduler:
    found = row(env).scheduler
    if found is None:
        raise ConfigError(f"env: {env} is not a batch scheduler")
    return found


def _by_memory(shards: list[int], raised: dict[str, float]) -> list[tuple[float, list[int]]]:
    """Group shards by how many times the memory they ask for."""
    groups: dict[float, list[int]] = {}
    for shard in shards:
        groups.setdefault(raised.get(str(shard), 1.0), []).append(shard)
    return sorted(groups.items())


def make_job(plan: Plan, memory_factor: float = 1.0) -> Any:
    """Return dask-jobqueue's job object, which writes the options into a header.

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
    options.pop("log_directory", None)  # its path would be unquoted in the header
    name = "espnet3-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(plan.specs).name)[:40]
    options.setdefault("job_name", name)
    if memory_factor != 1.0 and "memory" in options:
        from dask.utils import parse_bytes

        options["memory"] = f"{round(parse_bytes(options['memory']) * memory_factor)}B"
    try:
        return cluster.job_cls(scheduler="tcp://none", name=name, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"options of {plan.env}: {error}") from error


def _script_facts(
    layout: Layout, plan: Plan, job: Any, tasks: str, settings: DetachedSettings
) -> ScriptFacts:
    return ScriptFacts(
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
    folder: Path, number: int, scheduler: Scheduler, array: JobArray, job: Any, script_facts: ScriptFacts
) -> tuple[list[str], str | None]:
    """Write an array's script; return the command that submits it, and what it reads on standard input."""
    submit = shlex.split(job.submit_command)
    name = f"job.{number}.sh"
    if scheduler.submit_by is SubmitBy.DESCRIPTION:
        text = "\n".join([script_facts.shebang, body(scheduler, array, script_facts)])
        write_whole(folder / name, text.encode())
        silent = _start_folder(scheduler, folder) != folder
        text = description(scheduler, array, job.job_header_dict, script_facts, str(folder / name), silent)
        write_whole(folder / f"job.{number}.sub", text.encode())
        return [*submit, str(folder / f"job.{number}.sub")], None
    text = script(scheduler, array, job.job_header, script_facts)
    write_whole(folder / name, text.encode())
    (folder / name).chmod(0o700)
    if scheduler.submit_by is SubmitBy.ARGUMENTS:
        lines = directives(scheduler, array, job.job_header, script_facts)
        if _start_folder(scheduler, folder) != folder:
            lines += scheduler.silent
        words = [word for line in lines for word in shlex.split(line)]
        return [*submit, *words, shlex.quote(str(folder / name))], None
    if scheduler.submit_by is SubmitBy.STDIN:
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
            env={**job_environment(), "PWD": str(folder)},  # OAR reads the folder from this variable
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


def _ids(scheduler: Scheduler, array: JobArray, job: Any, said: str) -> tuple[list[str], list[str]]:
    """Return the id of each element, and what the cancel command takes for all of them."""
    if not scheduler.element:
        ids = re.findall(scheduler.element_ids, said)
        if len(ids) != len(array.shards):
            raise ParallelError(f"{len(array.shards)} jobs were submitted, and the scheduler said:\n{said}")
        return ids, ids
    try:
        number = job_id_in(job, said).split(".")[0]
    except ValueError as error:
        raise ParallelError(f"the scheduler's answer holds no job id:\n{said}") from error
    alone = len(array.shards) == 1 and scheduler.single is not None
    if alone:
        return [number], [number]
    elements = range(scheduler.first, scheduler.first + len(array.shards))
    ids = [scheduler.element.format(job=number, index=index) for index in elements]
    return ids, [scheduler.cancel.format(job=number)]


def _site_limit(scheduler: Scheduler) -> int:
    """Return the largest index that the site allows in an array."""
    if scheduler.site_limit is None:
        return scheduler.most
    command, pattern = scheduler.site_limit
    found = re.search(pattern, _call(list(command), Path.cwd()), re.MULTILINE)
    return scheduler.most if found is None else int(found[1]) - 1


def query(layout: Layout, jobs: dict[str, str]) -> dict[int, tuple[JobState, str]]:
    """Return what the queue lists of jobs, by shard, with one query; jobs it does not list are left out.

    Raises:
        OSError: It does not answer.
    """
    scheduler = _scheduler(layout.plan().env)
    try:
        said = _call(scheduler.query(getpass.getuser(), elements=True), layout.folder)
    except SubmissionError as error:
        raise OSError(f"{error.command}: {error.stderr.strip()}") from error
    listed = {job: (JobState(view.meaning.shard), view.note) for job, view in scheduler.read(said).items()}
    found = {int(shard): listed[job] for shard, job in jobs.items() if job in listed}
    gone = {shard: job for shard, job in jobs.items() if job not in listed or not listed[job][0].alive}
    return {**found, **_starved(scheduler, layout.folder / FOLDER, gone)}


def _starved(scheduler: Scheduler, folder: Path, jobs: dict[str, str]) -> dict[int, tuple[JobState, str]]:
    """Return which of these jobs were killed for want of memory, by the report in their output.

    The queue may call such a job failed, or no longer list it.
    """
    found = {}
    for shard, element in jobs.items() if scheduler.printed else ():
        job, index = scheduler.parts_of(element)
        file = folder / scheduler.printed.format(job=job, index=index)
        with contextlib.suppress(OSError):  # it never started, or its output was removed
            said = re.search(f".*(?:{scheduler.starved}).*", file.read_text(errors="replace"))
            if said is not None:
                found[int(shard)] = (JobState.OUT_OF_MEMORY, said[0].strip())
    return found


def cancel(layout: Layout, plan: Plan, grace: float) -> None:
    """Cancel all arrays of the last submission with one command, and wait until they have left the queue.

    Raises:
        ParallelError: The scheduler still lists some, or does not say what it lists.
    """
    jobs = layout.jobs()
    arrays = jobs.get("arrays", [])
    if not arrays:
        return
    refused = _cancel(make_job(plan), arrays, layout.folder)
    told = f" ({refused})" if refused else ""
    again = (
        f"Jobs of {' '.join(arrays)} that start or run end by themselves, because {layout.stop} tells them to; "
        "`espnet3 cancel` again when the scheduler answers, to take the others from its queue"
    )
    begin = time.monotonic()
    answered = begin
    while True:
        try:
            left = any(state.alive for state, _ in query(layout, jobs["jobs"]).values())
        except OSError as error:  # a busy scheduler refuses a query now and then
            if time.monotonic() > answered + _SILENCE:
                raise ParallelError(
                    f"whether the jobs have left the queue is not known{told}, because the scheduler answered with "
                    f"an error: {error}\n{again}"
                ) from error
        else:
            if not left:
                return
            answered = time.monotonic()
            if answered > begin + grace + _SECONDS:
                raise ParallelError(f"the scheduler still lists jobs after their cancellation{told}. {again}")
        time.sleep(_LOOK)


def _cancel(job: Any, arrays: list[str], folder: Path) -> str:
    """Cancel arrays; return what the scheduler had against it: some refuse where an element has just ended."""
    command = [*shlex.split(job.cancel_command), *arrays]
    try:
        _call(command, folder)
    except SubmissionError as error:
        how = "could not be started" if error.exit_code is None else f"ended with {error.exit_code}"
        refused = f"{error.command} {how}: {error.stderr.strip() or '(it printed nothing)'}"
        print(f"while cancelling: {refused}", file=sys.stderr, flush=True)
        return refused
    return ""


def walltime(config: ParallelConfig) -> float | None:
    """Return the seconds that a job may take by its options; None where they set no limit."""
    value = config.options.get("walltime")
    if value is None:
        return None
    return walltime_seconds(value, minutes_last=_scheduler(config.env).minutes_last)


def check(config: ParallelConfig) -> None:
    """Raise if the scheduler's package is missing, or its job's options are wrong."""
    options = json.loads(json.dumps(dict(config.options), default=str))
    make_job(Plan("", [0], "check", [], config.env, 1, options, {}, ""))
