"""`espnet3 doctor`: check a configuration without submitting anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

import click

from espnet3.cli.configs import has_block, read_block, read_file
from espnet3.cli.folders import Folder, arrived, existing, marked, reply
from espnet3.cli.importable import Facts, differences, look, look_as_job
from espnet3.cli.showing import say, wrapped
from espnet3.parallel.backends import BACKENDS, Backend, Kind, load_cluster_class
from espnet3.parallel.backends.gpus import chosen_gpus
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.local.alone import own_processes
from espnet3.parallel.messages import counted
from espnet3.parallel.parallel import get_client, parallel_map
from espnet3_parallel import layer
from espnet3_parallel.layer import Finding

_INDENT = 13  # of the lines that follow a finding's first: its text begins there


@click.command()
@click.argument("conf", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option("--runner", metavar="MODULE:CLASS", help="Import this runner as a job would.")
@click.option("--provider", metavar="MODULE:CLASS", help="Import this provider as a job would.")
@click.option(
    "--folder",
    "folders",
    metavar="DIR",
    multiple=True,
    help="A folder that workers must see; may be repeated.",
)
@click.option(
    "--start",
    is_flag=True,
    help="Start one worker: it runs an item, imports the classes and looks at the folders.",
)
@click.option(
    "--same-answer",
    is_flag=True,
    help="Run the runner on a few items in this process, on workers, in batches and detached, and compare.",
)
@click.option(
    "--items",
    type=click.IntRange(2),
    default=12,
    show_default=True,
    help="With --same-answer: how many items, from index 0 on.",
)
def doctor(
    conf: str | None,
    runner: str | None,
    provider: str | None,
    folders: tuple[str, ...],
    start: bool,
    same_answer: bool,
    items: int,
) -> None:
    """Show which espnet3.parallel is in use; check CONF without submitting anything."""
    findings: list[Finding] = []

    def tell(good: bool | None, text: str) -> None:
        findings.append(Finding(good, text))
        text = str(findings[-1])
        say(wrapped(text, _INDENT) if sys.stdout.isatty() else text)

    for found in layer.findings(layer.in_use()):
        tell(found.good, found.text)
    wanted = {
        what: given for what, given in (("runner", runner), ("provider", provider)) if given is not None
    }
    if conf is not None and (has_block(conf) or not same_answer):
        try:
            config = read_block(conf)
        except ParallelError as error:
            tell(False, str(error))
            sys.exit(1)
        tell(True, f"{conf}: env {config.env}, {config.n_workers} workers, {len(config.options)} options")
        _look_at_block(config, wanted, folders, start, tell)
    if same_answer:
        from espnet3.cli.answers import try_answers

        try_answers(None if conf is None else read_file(conf), wanted, items, tell)
    wrong = sum(each.good is False for each in findings)
    done = sum(each.good is not None for each in findings)
    left = f", {len(findings) - done} not made" if done < len(findings) else ""
    say(f"{counted(done, 'check')}, {wrong} wrong{left}")
    sys.exit(1 if wrong else 0)


def _look_at_block(
    config: ParallelConfig,
    wanted: dict[str, str],
    folders: Sequence[str],
    start: bool,
    tell: Callable[[bool | None, str], None],
) -> None:
    row = BACKENDS[config.env]
    good = True

    def tell_on(is_good: bool | None, text: str) -> None:
        nonlocal good
        good = good and is_good is not False
        tell(is_good, text)

    try:
        if row.kind is not Kind.GPU or not own_processes(config):
            load_cluster_class(row)
            tell_on(True, f"package {row.package} is installed")
        if row.scheduler is not None:
            _look_at_scheduler(row, config, tell_on)
        if row.kind is Kind.GPU:
            _look_at_gpus(config, tell_on)
        if row.kind is Kind.KUBERNETES:
            from espnet3.cli.kubernetes import look_at_kubernetes

            look_at_kubernetes(config, tell_on)
    except ParallelError as error:
        tell_on(False, str(error))
    here = _look_at_code(config, wanted, tell_on)
    # jobs start in the current folder, write their logs there and import what is there; a pod has its image
    paths = _look_at_folders([*([] if row.kind is Kind.KUBERNETES else [os.getcwd()]), *folders], tell_on)
    if start and good:
        _start_one(config, wanted, paths, here, tell)
    else:
        if not row.is_local:
            tell(None, f"that workers see {' and '.join([*paths, sys.executable])}: --start asks one")
        tell(None, "a worker that starts and runs an item: espnet3 doctor --start does it")


def _look_at_scheduler(
    row: Backend, config: ParallelConfig, tell: Callable[[bool | None, str], None]
) -> None:
    from espnet3.parallel.clusters.job_cluster import plan_jobs

    assert row.scheduler is not None
    planned = plan_jobs(row, config)
    tell(True, f"the job script can be made (espnet3 plan prints it); {planned.jobs} jobs")
    for warning in planned.warnings:
        tell(False, warning)
    command = planned.command.split()[0]
    if shutil.which(command) is None:
        tell(
            None,
            f"the scheduler: {command} is not on the PATH, so jobs cannot be submitted from this machine",
        )
        return
    tell(True, f"{command} is {shutil.which(command)}")
    query = row.scheduler.query()
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        tell(False, f"{' '.join(query)}: {error}")
        return
    said = (done.stderr or done.stdout).strip().splitlines()
    tell(
        done.returncode == 0,
        f"{query[0]} answers" if done.returncode == 0 else f"{' '.join(query)}: {said[:3]}",
    )


def _look_at_folders(folders: Sequence[str], tell: Callable[[bool | None, str], None]) -> list[str]:
    """Check that folders can be written to here; return those to ask a worker about."""
    paths = []
    for folder in folders:
        path = existing(folder)
        missing = "" if os.path.isdir(folder) else f"; {folder} is not there yet"
        try:
            with marked([path]):
                tell(True, f"{path} can be written to{missing}")
        except OSError as error:  # os.access would say yes to root, and on a full disk
            tell(False, f"{path} cannot be written to: {error.strerror}{missing}")
        paths.append(path)
    return list(dict.fromkeys(paths))


def _look_at_gpus(config: ParallelConfig, tell: Callable[[bool | None, str], None]) -> None:
    chosen = chosen_gpus(config.options, config.n_workers)
    tell(True, f"{len(chosen)} GPUs are visible: {', '.join(chosen)}")


def _look_at_code(
    config: ParallelConfig, wanted: dict[str, str], tell: Callable[[bool | None, str], None]
) -> Facts:
    """Import runner and provider here and as a job would, and compare the two; return the facts of this process."""
    # sys.path begins with this command's folder; a user's script would have its own, usually the current one
    sys.path.insert(0, os.getcwd())
    here = look(wanted)
    for what, file in here.files.items():
        tell(True, f"the {what} {wanted[what]} can be imported: {file}")
    for wrong in here.wrong:
        tell(False, wrong)
    if not wanted:
        tell(None, "that runner and provider can be imported: --runner MODULE:CLASS --provider MODULE:CLASS")
    python = config.options.get("python") or config.options.get("remote_python")
    if python is None or here.wrong:
        return here
    elsewhere = BACKENDS[config.env].kind in (Kind.SSH, Kind.KUBERNETES)
    if elsewhere or not os.path.isabs(str(python)):
        tell(None, f"{python}: it belongs to the machines of the workers; --start asks it there")
        return here
    there = look_as_job(str(python), wanted)
    if isinstance(there, str):
        tell(False, f"the jobs' Python: {there}")
        return here
    wrongs = [*there.wrong, *differences(here, there)]
    for wrong in wrongs:
        tell(False, f"the jobs' Python {python}: {wrong}")
    if not wrongs:
        tell(True, f"the jobs' Python {python} fits: {there.python}, {_shown(there)}")
    return here


def _start_one(
    config: ParallelConfig,
    wanted: dict[str, str],
    paths: list[str],
    here: Facts,
    tell: Callable[[bool | None, str], None],
) -> None:
    one = ParallelConfig.parse({**dict(config), "n_workers": 1, "adapt": None})
    try:
        with marked(paths) as folders:
            with get_client(one):
                where, there, replies = parallel_map(_where, [(wanted, folders)])[0]
            seen = [said or arrived(folder) for folder, said in zip(folders, replies, strict=True)]
    except (ParallelError, OSError) as error:
        tell(False, f"no item could be run: {error}")
        return
    tell(True, f"one item ran on {where}")
    wrongs = [*there.wrong, *differences(here, there)]
    for wrong in wrongs:
        tell(False, f"on the worker: {wrong}")
    if not wrongs:
        tell(True, f"the worker fits: Python {there.python}, {_shown(there)}, in {there.cwd}")
    for path, wrong in zip(paths, seen, strict=True):
        if wrong:
            tell(
                False,
                f"the worker does not see {path}: {wrong}; take a folder on a disk that all hosts share",
            )
        else:
            tell(True, f"the worker sees {path}")


def _shown(facts: Facts) -> str:
    return ", ".join(f"{package} {number}" for package, number in facts.versions.items())


def _where(asked: tuple[dict[str, str], list[Folder]]) -> tuple[str, Facts, list[str]]:
    import socket

    wanted, folders = asked
    return f"{socket.gethostname()}, process {os.getpid()}", look(wanted), [reply(each) for each in folders]
