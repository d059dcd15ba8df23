"""`espnet3-parallel doctor`: check a configuration without submitting anything, or compare ways to run it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

import click

from espnet3.parallel.backends import BACKENDS, Backend, Kind, load_cluster_class
from espnet3.parallel.backends.machine import chosen_gpus
from espnet3.parallel.backends.scheduler import of_user
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import ParallelError, SubmissionError
from espnet3.parallel.functions.running import run
from espnet3.parallel.jobs.commands import run as run_command
from espnet3.parallel.local.fork_server import without_dask
from espnet3.parallel.messages import counted
from espnet3.parallel.records import ItemFailure
from espnet3.parallel.runner.hooks import writes_files
from espnet3.parallel.testing import same_answer as compare_answers
from espnet3_parallel import importable, layer
from espnet3_parallel.configs import read_block, read_file
from espnet3_parallel.layer import Finding
from espnet3_parallel.output import Tell, as_json_option, say, verb, wrapped


@verb(
    click.argument("conf", type=click.Path(exists=True, dir_okay=False), required=False),
    click.option("--runner", metavar="MODULE:CLASS", help="Import this runner as a job would."),
    click.option("--provider", metavar="MODULE:CLASS", help="Import this provider as a job would."),
    click.option("--folder", "folders", metavar="DIR", multiple=True, help="A folder that workers must see."),
    click.option("--start", is_flag=True, help="Start a worker, which imports the classes and sees folders."),
    click.option("--same-answer", "same", is_flag=True, help="Compare items run here, on workers, detached."),
    click.option("--items", type=click.IntRange(2), default=12, help="Of --same-answer."),
    as_json_option,
)
def doctor(
    conf: str | None, folders: Sequence[str], start: bool, same: bool, items: int, as_json: bool, **named: Any
) -> None:
    """Show which espnet3.parallel is in use; check CONF without submitting anything.

    Exit status: 0 nothing is wrong, 1 something is.
    """
    wanted = {what: named[what] for what in ("runner", "provider") if named[what] is not None}
    if conf is None and (start or folders or (wanted and not same)):
        raise click.UsageError("give a CONF: what it names is checked with its block")
    tell = _Told()
    tell.silent = as_json
    for found in layer.findings(layer.in_use()):
        tell(found.good, found.text)
    try:
        whole: Any = None if conf is None else read_file(conf)
        if same:
            wanted = importable.meant(whole, wanted)
        if conf is not None and not (same and "parallel" not in whole and "env" not in whole):
            config = read_block(conf, whole)
            workers, given = counted(config.n_workers, "worker"), counted(len(config.options), "option")
            tell(True, f"{conf}: env {config.env}, {workers}, {given}")
            _look_at_block(config, wanted, folders, start, tell)
        if same:
            _try_answers(whole, wanted, items, tell)
    except ParallelError as error:
        tell(False, str(error))
    done, wrong = sum(each.good is not None for each in tell), tell.wrong()
    if as_json:
        findings = [asdict(each) for each in tell]
        say(json.dumps({"checks": done, "wrong": wrong, "findings": findings}, indent=2))
    else:
        left = f", {len(tell) - done} not made" if done < len(tell) else ""
        say(f"{counted(done, 'check')}, {wrong} wrong{left}")
    sys.exit(1 if wrong else 0)


class _Told(list[Finding]):
    silent = False

    def __call__(self, good: bool | None, text: str) -> None:
        self.append(Finding(good, text))
        line = str(self[-1])
        if not self.silent:
            say(wrapped(line, 13) if sys.stdout.isatty() else line)  # where the first line's text begins

    def wrong(self, begin: int = 0) -> int:
        return sum(each.good is False for each in self[begin:])


def _look_at_block(
    config: ParallelConfig, wanted: dict[str, str], folders: Sequence[str], start: bool, tell: _Told
) -> None:
    row, begin = BACKENDS[config.env], len(tell)
    try:
        if not without_dask(config):
            load_cluster_class(row)
            tell(True, f"package {row.package} is installed")
        if row.scheduler is not None:
            _look_at_scheduler(row, config, tell)
        if row.kind is Kind.GPU:
            chosen = chosen_gpus(config.options, config.n_workers)
            tell(True, f"{len(chosen)} GPUs are visible: {', '.join(chosen)}")
        if row.kind is Kind.KUBERNETES:
            from espnet3_parallel.kubernetes import look_at_kubernetes

            look_at_kubernetes(config, tell)
    except ParallelError as error:
        tell(False, str(error))
    here = _look_at_code(config, wanted, tell)
    # jobs start in the current folder, write their logs there and import what is there; a pod has its image
    paths = _look_at_folders([*([] if row.kind is Kind.KUBERNETES else [os.getcwd()]), *folders], tell)
    asked = "a worker that starts and runs an item"
    if start and tell.wrong(begin):
        tell(None, f"{asked}: what is wrong above comes first")
    elif start:
        _start_one(config, wanted, paths, here, tell)
    else:
        if not row.is_local:
            python = config.options.get("python") or config.options.get("remote_python") or sys.executable
            tell(None, f"that workers see {' and '.join([*paths, str(python)])}: --start asks one")
        if row.kind is Kind.KUBERNETES:
            image = f"{config.options.get('image')}, and that it has this package"
            tell(None, f"that nodes can pull {image}: --start starts a pod of it")
        tell(None, f"{asked}: --start does it")


def _look_at_scheduler(row: Backend, config: ParallelConfig, tell: Tell) -> None:
    from espnet3.parallel.clusters.job_cluster import plan_jobs

    assert row.scheduler is not None
    planned = plan_jobs(row, config)
    tell(True, f"the job script can be made (espnet3-parallel plan prints it); {planned.jobs} jobs")
    for warning in planned.warnings:
        tell(False, warning)
    command = planned.command.split()[0]
    place = shutil.which(command)
    if place is None:
        tell(None, f"the scheduler: {command} is not on the PATH, so this machine cannot submit jobs")
        return
    tell(True, f"{command} is {place}")
    try:
        said = run_command(of_user(row.scheduler.listing), seconds=30)
        tell(said.status == 0, said.problem if said.status else f"{said.command.split()[0]} answers")
    except SubmissionError as error:  # the command's, and no word of jobs
        tell(False, f"{error.command}: {error.stderr}")


def _look_at_folders(folders: Sequence[str], tell: Tell) -> list[str]:
    paths = []
    for folder in folders:
        whole = Path(os.path.abspath(folder))
        path = str(next(each for each in (whole, *whole.parents) if each.is_dir()))
        missing = "" if os.path.isdir(folder) else f"; {folder} is not there yet"
        try:
            with importable.marked([path]):
                tell(True, f"{path} can be written to{missing}")
        except OSError as error:  # os.access would say yes to root, and on a full disk
            tell(False, f"{path} cannot be written to: {error.strerror}{missing}")
        paths.append(path)
    return list(dict.fromkeys(paths))


def _look_at_code(config: ParallelConfig, wanted: dict[str, str], tell: Tell) -> importable.Facts:
    importable.see_current_folder()
    here = importable.look(wanted)
    for what, file in here.files.items():
        tell(True, f"the {what} {wanted[what]} can be imported: {file}")
    for wrong in here.wrong:
        tell(False, wrong)
    if not wanted:
        tell(None, "that runner and provider can be imported: --runner MODULE:CLASS --provider MODULE:CLASS")
    python = str(config.options.get("python"))
    # a name would be looked up on the PATH of a job
    if BACKENDS[config.env].scheduler and os.path.isabs(python) and not here.wrong:
        name = f"the jobs' Python {python}"
        try:
            there = importable.look_as_job(python, wanted)
            _compare(here, there, name, f"{name} fits: {there.python}", tell)
        except (ParallelError, OSError, SubprocessError) as error:
            tell(False, f"the jobs' Python: {error}")
    return here


def _start_one(
    config: ParallelConfig, wanted: dict[str, str], paths: list[str], here: importable.Facts, tell: Tell
) -> None:
    own = {"processes": True} if BACKENDS[config.env].kind is Kind.LOCAL else {}
    one = {"n_workers": 1, "adapt": None, "options": {**config.options, **own}}
    try:
        with importable.marked(paths) as folders:
            block = {**dict(config), **one, "idle_timeout": 0}
            where, there, replies = run(_where, [(wanted, folders)], parallel=block, progress=False)[0]
            seen = [said or importable.arrived(folder) for folder, said in zip(folders, replies, strict=True)]
    except (ParallelError, OSError) as error:
        tell(False, f"no item could be run: {error}")
        return
    tell(True, f"one item ran on {where}")
    fits = f"the worker fits: Python {there.python}, in {there.cwd}"
    _compare(here, there, "on the worker", fits, tell)
    for path, wrong in zip(paths, seen, strict=True):
        lost = f"the worker does not see {path}: {wrong}; take a folder on a disk that all hosts share"
        tell(not wrong, lost if wrong else f"the worker sees {path}")


def _compare(here: importable.Facts, there: importable.Facts, name: str, fits: str, tell: Tell) -> None:
    wrongs = [*there.wrong, *importable.differences(here, there)]
    for wrong in wrongs:
        tell(False, f"{name}: {wrong}")
    if not wrongs:
        tell(True, ", ".join([fits, *(f"{package} {number}" for package, number in there.versions.items())]))


def _where(asked: tuple[dict[str, str], list[Path]]) -> tuple[str, importable.Facts, list[str]]:
    wanted, folders = asked
    place = f"{socket.gethostname()}, process {os.getpid()}"
    return place, importable.look(wanted), [importable.reply(each) for each in folders]


def _try_answers(whole: Any, wanted: dict[str, str], n_items: int, tell: Tell) -> None:
    runner_class, provider = importable.loaded(whole, wanted)
    detached = not writes_files(runner_class)
    batches = runner_class.batch_forward is not BaseRunner.batch_forward
    if not detached:
        tell(None, "its writer hooks: the results of forward are compared, before files are made of them")
        body = {name: getattr(runner_class, name) for name in ("forward", "batch_forward")}
        runner_class = type(runner_class.__name__, (BaseRunner,), body)
    sizes = (None, 1, 4) if batches else (None,)
    try:
        runner = runner_class(provider, progress=False, on_error="record", batch_size=1 if batches else None)
        results = compare_answers(runner, range(n_items), batch_sizes=sizes, detached=detached)
    except Exception as error:  # of the user's code, or of the runner about it
        differ = "not the same answer everywhere" if isinstance(error, AssertionError) else ""
        tell(False, f"{differ or type(error).__name__}: {error}")
        return
    ways = f"in this process, twice and backwards, on 2 and 3 workers{', in batches of 1 and 4' * batches}"
    said = f"{counted(n_items, 'item')}: the same answer {ways}{', as detached jobs' * detached}"
    failures = [result for result in results if isinstance(result, ItemFailure)]
    if failures:
        first = f"item {failures[0].index!r}: {failures[0].error_type}: {failures[0].message}"
        failed = f"{counted(len(failures), 'item')} of {n_items} failed, everywhere in the same way"
        said = f"{said}; {failed}; the first is {first}"
    tell(len(failures) < n_items, said)
