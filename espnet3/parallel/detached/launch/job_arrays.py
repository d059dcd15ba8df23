"""Job arrays of a batch scheduler: one submission, one query and one cancel command for all shards."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from espnet3.parallel.backends import load_cluster_class, row
from espnet3.parallel.backends.backend import asked
from espnet3.parallel.backends.scheduler import NO_SUCH_JOB, Scheduler, SubmitBy, check_ids
from espnet3.parallel.config import DetachedSettings, ParallelConfig
from espnet3.parallel.detached.launch import asking
from espnet3.parallel.detached.launch.asking import FOLDER, Submitted
from espnet3.parallel.detached.layout import DONE, Layout, Plan, parts
from espnet3.parallel.errors import ConfigError, ParallelError, SubmissionError, of_options
from espnet3.parallel.jobs import commands as queue
from espnet3.parallel.jobs import script as job_script
from espnet3.parallel.jobs.script import quoted_word, scheduler_of
from espnet3.parallel.ledger.files import make_folder, write_json, write_whole
from espnet3.parallel.messages import printable, warn_caller

_LOOK = 0.5  # seconds between queries while a cancelled array ends
_REFUSED = 30.0  # seconds beyond the grace in which jobs whose cancellation was refused may end all the same
_AGAIN = 10.0  # seconds until what is still listed is cancelled again
_SHOWN = 10  # jobs that an error names
_LIMITS = (
    "Where a site limits the jobs of a user, or the elements of an array, ask for fewer: detached.shards is how many "
    "there are, n_workers how many run at a time, detached.array_limit the largest index of an array"
)
_STARTS = 20  # starts of one element: one that always dies at its start must end some time


def start(layout: Layout, plan: Plan, shards: list[int], raised: dict[str, float]) -> None:
    """Submit shards as job arrays, and note each element's id."""
    scheduler = scheduler_of(plan.env)
    settings = DetachedSettings(**plan.settings)
    folder = layout.folder / FOLDER
    make_folder(folder)
    if not asking.submitted(layout, plan.env):
        asking.note_place(scheduler, folder)
    # a scheduler records the folder to submit from, and some expand special characters in its name
    cwd = layout.template().surroundings.cwd
    logs = asked(row(plan.env), plan.options, "log_directory")
    output = Path(job_script.log_folder(Path(cwd, os.path.expanduser(str(logs))))) if logs else folder
    from_here = partial(asking.ask, folder=folder)
    most, why = _given_limit(settings, scheduler) or queue.array_limit(scheduler, from_here)
    silent = () if job_script.PLAIN.fullmatch(str(output)) else scheduler.silent
    taken: list[Submitted] = []
    try:
        for factor, part, at_once in parts(shards, raised, plan.n_workers, most):
            job = make_job(plan, factor)
            number, tasks = layout.write_tasks(folder, part, scheduler.first)
            array = Array(plan, job, len(part), at_once, cwd, tasks, settings.requeue)
            command, stdin, files, head = _submission(folder / f"job.{number}.sh", array, silent)
            for file, text in files.items():
                write_whole(file, text.encode(), mode=0o700 if file.suffix == ".sh" else 0o600)
            # output goes to files of the folder that it is submitted from
            ask = partial(asking.ask, command, folder, Path("/") if silent else output, stdin=stdin)
            count = None if array.alone else array.n
            ids = queue.submit(scheduler, ask, count, job.job_id_regexp)
            jobs = dict(zip(map(str, part), ids, strict=True))
            check_ids(jobs)
            taken.append(Submitted(plan.env, jobs, scheduler.names_in(head), str(output) if logs else ""))
            write_json(folder / f"array.{number}.json", asdict(taken[-1]))
    except SubmissionError as error:
        error.hint = error.hint or f"{why}. {_LIMITS}"
        if not taken:
            raise
        print(
            f"{sum(len(one.jobs) for one in taken)} of {len(shards)} shards were submitted, and the run goes on with "
            f"them; when they have ended, `{layout.retrying}` submits the others. {error}",
            file=sys.stderr,
            flush=True,
        )
    except BaseException:
        if taken:
            _say_left(_cancel(taken, folder))
        raise
    layout.note_jobs({shard: element for one in taken for shard, element in one.jobs.items()}, raised)


def _given_limit(settings: DetachedSettings, scheduler: Scheduler) -> tuple[int, str] | None:
    if settings.array_limit is None:
        return None
    given = f"detached.array_limit is {settings.array_limit}"
    return max(1, settings.array_limit - scheduler.first + 1), given


def planned(config: ParallelConfig, n_shards: int, run: Path) -> tuple[int, str, str]:
    """Return how many arrays a detached run in a folder would be, and the command and the script of the first one."""
    plan, job = _job_of(config, run.name)
    scheduler = scheduler_of(config.env)
    settings = DetachedSettings(**plan.settings)
    most, _ = _given_limit(settings, scheduler) or (scheduler.usual_array, "")
    arrays = parts(range(n_shards), {}, plan.n_workers, most)
    jobs = run / "detached" / FOLDER
    _, first, at_once = arrays[0]
    array = Array(plan, job, len(first), at_once, os.getcwd(), jobs / "tasks.0.json", settings.requeue)
    command, stdin, files, _ = _submission(jobs / "job.0.sh", array)
    words = [*command, *(["<", "job.0.sh"] if stdin else [])]
    # a description stands before the script that it names
    return len(arrays), " ".join(words), "\n".join(text.rstrip() for text in reversed(files.values()))


def _job_of(config: ParallelConfig, name: str) -> tuple[Plan, Any]:
    options = json.loads(json.dumps(dict(config.options), default=str))
    plan = Plan("", [0], name, config.env, config.n_workers, options, dict(config.detached))
    return plan, make_job(plan)


def make_job(plan: Plan, memory_factor: float = 1.0) -> Any:
    """Return dask-jobqueue's job object, which writes the options into a header."""
    backend = row(plan.env)
    cluster: Any = load_cluster_class(backend)
    options = job_script.of_each_job(plan.options)
    options.pop("log_directory", None)  # jobs are submitted from it: in the header its path would be unquoted
    name = "espnet3-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(plan.specs).name)[:40]
    options.setdefault("job_name", name)
    memory = asked(backend, options, "memory")
    import dask
    from dask.utils import parse_bytes

    if memory_factor != 1.0 and memory is not None:
        options["memory"] = f"{round(parse_bytes(memory) * memory_factor)}B"
    job_script.set_walltime(backend, options)
    section = options.get("config_name") or plan.env
    with of_options(plan.env), dask.config.set({f"jobqueue.{section}.log-directory": None}):
        job = cluster.job_cls(scheduler="tcp://none", name=name, **options)
    job.shebang, job.job_name = str(job.shebang or "#!/bin/sh"), str(job.job_name)
    return job


def _submission(
    file: Path, array: Array, silent: Sequence[str] = ()
) -> tuple[list[str], str, dict[Path, str], str]:
    # the command and its standard input, the files that it reads, and the text with the directives
    job, scheduler = array.job, scheduler_of(array.plan.env)
    submit = shlex.split(job.submit_command)
    if scheduler.submit_by is SubmitBy.DESCRIPTION:
        text, described = description(array, str(file), silent), file.with_suffix(".sub")
        files = {file: "\n".join([job.shebang, body(array, job.shebang)]), described: text}
        return [*submit, str(described)], "", files, text
    text = script(array)
    if scheduler.submit_by is SubmitBy.ARGUMENTS:
        lines = [*directives(array), *silent]
        words = [*(word for line in lines for word in shlex.split(line)), shlex.quote(str(file))]
        return [*submit, *words], "", {file: text}, "\n".join(f"{scheduler.mark} {each}" for each in lines)
    if scheduler.submit_by is SubmitBy.STDIN:
        return submit, text, {file: text}, text
    return [*submit, str(file)], "", {file: text}, text


def cancel(layout: Layout, grace: float) -> None:
    """Cancel every array that the run ever submitted, and wait until the scheduler says that they have ended."""
    for env in dict.fromkeys(array.env for array in asking.submitted(layout)):
        _cancel_all(layout, env, grace)


def _cancel_all(layout: Layout, env: str, grace: float) -> None:
    scheduler, folder, arrays = scheduler_of(env), layout.folder / FOLDER, asking.submitted(layout, env)
    ever = asking.ids_of(arrays)
    every = {element for ids in ever.values() for element in ids}
    newest = [ids[-1] for shard, ids in ever.items() if not (layout.shard(int(shard)) / DONE).exists()]
    left = _cancel(arrays, folder)
    _say_left(left)
    again = (
        f"Jobs of {' '.join(array.whole[-1] for array in arrays)} that start or run end by themselves, because "
        f"{layout.stop} tells them to; `espnet3-parallel cancel` again when the scheduler answers, to take the others "
        "from its queue"
    )
    if left.foreign:
        raise ParallelError(
            f"not every job could be cancelled: {left}. Look for those of this run in the queue"
        )
    begin = called = time.monotonic()
    quiet = 0
    while True:
        living, unknown = _left(scheduler, folder, every, newest, proven=bool(left.refused))
        told = f" ({left})" if left.refused else ""
        now = time.monotonic()
        quiet = 0 if living else quiet + 1
        # once may have been too early, an array may be listed later than it was submitted; and what is not known yet
        # cannot be cancelled: that is tried once more
        if quiet >= 2 and not (left.refused and unknown and called == begin):
            return
        if living and now > begin + grace + (_REFUSED if left.refused else queue.SECONDS):
            raise ParallelError(f"the scheduler {living} after their cancellation{told}. {again}")
        if now > called + _AGAIN:
            refused = _cancel(arrays, folder).refused
            # where it was taken before, a refusal only says that it is under way
            left = queue.NotCancelled({}, {one: said for one, said in refused.items() if one in left.refused})
            called = now
        time.sleep(_LOOK)


def _left(
    scheduler: Scheduler, folder: Path, every: set[str], newest: list[str], *, proven: bool
) -> tuple[str, bool]:
    # the run's jobs still in the queue, or why it cannot be asked, as the end of "the scheduler ..."; and whether it
    # does not know some of them
    listing, known = queue.answers(scheduler, lambda command: asking.ask(command, folder), newest)
    unknown = any(view is NO_SUCH_JOB for view in known.values())
    listed = any(one in every and view.meaning.is_alive for one, view in listing.views.items())
    if listed or any(view.meaning.is_alive for view in known.values() if view is not None):
        return "still lists jobs", unknown
    if listing.failed:
        return f"answers with an error: {listing.problem}", unknown
    unclear = [one for one, view in known.items() if view is None]
    if not unclear or not (scheduler.questions or listing.problem or proven):
        return "", unknown  # where there is nothing to ask, twice not listed has to do
    said = f" ({listing.problem})" if listing.problem else ""
    return f"says nothing of the end of {', '.join(unclear[:_SHOWN])}{said}", unknown


def _cancel(arrays: Sequence[Submitted], folder: Path) -> queue.NotCancelled:
    jobs = {one: array.names for array in arrays for one in array.whole}
    scheduler, command = scheduler_of(arrays[0].env), arrays[0].cancel
    return queue.cancel(scheduler, lambda words: asking.ask(words, folder), command, jobs)


def _say_left(left: queue.NotCancelled) -> None:
    if left.foreign or left.refused:
        print(f"while cancelling: {printable(str(left))}", file=sys.stderr, flush=True)


def printed(layout: Layout, shards: Sequence[int]) -> dict[int, list[Path]]:
    """Return the scheduler's output files of the jobs of shards, in the order of their submission."""
    found: dict[int, list[Path]] = {shard: [] for shard in shards}
    for array in asking.submitted(layout):
        beside = [Path(array.output)] if array.output else []
        files = queue.Outputs(scheduler_of(array.env), [layout.folder / FOLDER, *beside])
        for shard in shards:
            if str(shard) in array.jobs:
                found[shard] += files.of(array.jobs[str(shard)])
    return {shard: list(dict.fromkeys(files)) for shard, files in found.items()}


def check(config: ParallelConfig) -> None:
    """Raise if the scheduler's package is missing, or options of its job are wrong or send it to another cluster."""
    plan, job = _job_of(config, "check")
    backend, scheduler, given = row(config.env), scheduler_of(config.env), plan.options
    queue.refuse_elsewhere(config.env, scheduler, job.submit_command, job.job_script())
    wrong = [*job_script.output_problems(scheduler, asked(backend, given, "job_extra_directives", []))]
    if logs := asked(backend, given, "log_directory"):
        wrong.append(job_script.log_folder_problem(backend, logs, detached=True))
    if any(wrong):
        raise ConfigError("\n".join(filter(None, wrong)))
    make = cache(lambda **changed: make_job(replace(plan, options={**given, **changed})))
    factor = DetachedSettings(**config.detached).retry_memory_factor
    for said in job_script.memory_stays(backend, given, make, factor):
        warn_caller(said)


@dataclass(frozen=True, slots=True)
class Array:
    """The jobs of one submission."""

    plan: Plan
    job: Any  # dask-jobqueue's, with the options
    n: int  # its elements
    limit: int  # elements at a time
    cwd: str  # where the user's own lines are run: the submitter's folder, as in a driver's jobs
    tasks: Path  # the file that lists the shards, in the folder where the worker starts
    requeue: bool  # a job may queue itself again

    @property
    def alone(self) -> bool:
        """True for one job without an array around it."""
        return self.n == 1 and not scheduler_of(self.plan.env).array_of_one


def directives(array: Array) -> list[str]:
    """Return the directives of an array, in order, each without the scheduler's mark."""
    job, scheduler = array.job, scheduler_of(array.plan.env)
    header = filter(None, map(str.strip, job.job_header.splitlines()))
    lines = [line.removeprefix(scheduler.mark).strip() for line in header]
    if scheduler.replaces:
        lines = [line for line in lines if not line.startswith(scheduler.replaces)]
    lines += job_script.shell_directive(scheduler, job.shebang, lines)
    if not array.alone:
        lines.append(scheduler.array_directive(job.job_name, array.n, array.limit))
    return [*lines, *scheduler.extra, *(scheduler.rerun if array.requeue else ())]


def body(array: Array, head: str) -> str:
    """Return a job's commands behind the script's first lines: the user's prologue, and a worker in the shell's place.

    Signals reach the worker because it takes the shell's place.
    """
    plan, scheduler = array.plan, scheduler_of(array.plan.env)
    index = str(scheduler.first) if array.alone else f'"{scheduler.index}"'
    python = job_script.python_words(row(plan.env), plan.options, array.cwd)
    words = [quoted_word(word) if "$" in word else shlex.quote(word) for word in python]
    words += ["-m", "espnet3.parallel.worker"]
    if array.requeue and scheduler.requeue and not array.alone:
        words += ["--requeue", shlex.quote(scheduler.requeue)]
    elif array.requeue and scheduler.again:
        words += ["--again", str(scheduler.again)]
    words += ["--tasks", shlex.quote(str(array.tasks)), index]
    prologue = asked(row(plan.env), plan.options, "job_script_prologue") or ()
    # the worker says what is wrong where the submitter's folder is not there
    lines = [f"cd {shlex.quote(array.cwd)} || true", *filter(None, prologue)]
    lines.append(f"cd {shlex.quote(str(array.tasks.parent))} || exit 1")
    lines += job_script.commands(scheduler, head, [*job_script.export_path(), f"exec {' '.join(words)}"])
    return "\n".join(lines) + "\n"


def script(array: Array) -> str:
    """Return the script of an array, directives and all."""
    scheduler, lines = scheduler_of(array.plan.env), [array.job.shebang, ""]
    if scheduler.submit_by is not SubmitBy.ARGUMENTS:
        lines += [f"{scheduler.mark} {line}" for line in directives(array)]
    return "\n".join([*lines, "", body(array, "\n".join(lines))])


def description(array: Array, file: str, silent: Sequence[str] = ()) -> str:
    """Return the description that is submitted in place of a script, and names the script."""
    job, scheduler = array.job, scheduler_of(array.plan.env)
    for text, written in scheduler.quoting:
        file = file.replace(text, written)
    numbers = {"limit": array.limit, "again": scheduler.again, "starts": _STARTS}
    own = {}
    for line in (*scheduler.extra, *silent, *(scheduler.rerun if array.requeue else ())):
        key, _, value = line.partition(" = ")
        own[key] = value.format(name=job.job_name, script=file, **numbers)
    header = job.job_header_dict.items()
    kept = {key: value for key, value in header if key.lower() not in own and key != "LogDirectory"}
    lines = [f"{key} = {value}" for key, value in {**kept, **own}.items()]
    return "\n".join([*lines, scheduler.array_directive(job.job_name, array.n, array.limit)]) + "\n"
