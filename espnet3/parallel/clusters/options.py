"""The options of a `parallel` block in the form that dask-jobqueue takes, completed for this machine."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import dask
import psutil

from espnet3.parallel.backends.backend import Backend, asked
from espnet3.parallel.backends.machine import asks_for_gpus
from espnet3.parallel.clusters.security import PRELOAD, SCRATCH_VARIABLE
from espnet3.parallel.dask_compat import worker_arguments
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.jobs import script
from espnet3.parallel.jobs.script import quoted_word, scheduler_of
from espnet3.parallel.local.forking import SCRATCH
from espnet3.parallel.messages import did_you_mean

_START = 20  # seconds until a job's worker is up, from when its lifetime counts
_LAST_CALL = 0.1  # part of the walltime, at most five minutes, that a worker has to finish its last items


def _scheduler_options(row: Backend, options: dict[str, Any]) -> dict[str, Any]:
    site = asked(row, {**options, "scheduler_options": None}, "scheduler_options") or {}
    return {**site, **(options.get("scheduler_options") or {})}


def problems_here(row: Backend, options: dict[str, Any]) -> list[str]:
    """Return a sentence for each option with which no worker would come: an interface, an argument, a folder."""
    return [
        *_interface_problems(row, options),
        *_worker_argument_problems(row, options),
        *script.output_problems(scheduler_of(row.name), asked(row, options, "job_extra_directives", [])),
    ]


def _interface_problems(row: Backend, options: dict[str, Any]) -> list[str]:
    # the scheduler has the interface of the workers, which are elsewhere, unless its own options say where it listens
    own = _scheduler_options(row, options)
    wanted = {"options.scheduler_options.interface": own.get("interface")}
    if own.get("interface") is None and own.get("host") is None:
        wanted = {"options.interface": asked(row, options, "interface")}
    there = psutil.net_if_addrs()
    return [
        f"{where} = {name!r}: this machine has no such network interface.{did_you_mean(name, there)} "
        f"It has {', '.join(sorted(there))}"
        for where, name in wanted.items()
        if name is not None and name not in there
    ]


def _worker_argument_problems(row: Backend, options: dict[str, Any]) -> list[str]:
    # in a job Dask's worker would refuse them as well, but without a name: it takes what it does not know for
    # arguments of the module that this library preloads
    extra = asked(row, options, "worker_extra_args", [])
    command = asked(row, options, "worker_command")
    words = [word for text in extra for word in shlex.split(str(text))]
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    known = worker_arguments(command)
    if not known or "--preload" in names:  # a module that is preloaded may have options of its own
        return []
    return [
        f"options.worker_extra_args: {name!r} is no option of Dask's worker.{did_you_mean(name, known)} "
        "`dask worker --help` lists them"
        for name in names
        if name not in known
    ]


def prepare(row: Backend, options: dict[str, Any]) -> str | None:
    """Complete the options of a batch scheduler in place; return the folder made for the jobs' logs, if one was."""
    given = partial(asked, row, options)
    # Dask's default is port 8787 on every interface
    options["scheduler_options"] = {"dashboard_address": "127.0.0.1:0", **_scheduler_options(row, options)}
    options["processes"] = given("processes") or 1

    extra = _worker_words(row, options, given)
    options["worker_extra_args"] = [quoted_word(word) for text in extra for word in shlex.split(str(text))]
    python = " ".join(map(quoted_word, script.python_words(row, options, os.getcwd())))
    prologue = list(given("job_script_prologue", []))
    # in the shell's place the worker gets the signals; a scheduler that tracks processes by their parents loses
    # a worker whose shell has ended. The user's own trap needs the shell
    options["python"] = python if any("trap" in str(line) for line in prologue) else f"exec {python}"
    for name in ("interface", "protocol", "local_directory", "death_timeout"):
        if (text := given(name)) is not None:
            options[name] = quoted_word(str(text))
    if options.get("worker_command") is not None:
        options["worker_command"] = " ".join(map(quoted_word, shlex.split(str(options["worker_command"]))))

    directives, shebang = given("job_extra_directives", []), str(given("shebang") or "")
    if not isinstance(directives, Mapping):  # the keeper adds the nodes to avoid
        own = script.shell_directive(scheduler_of(row.name), shebang, directives)
        options["job_extra_directives"] = [*own, *directives]
    here = shlex.quote(os.getcwd())
    # jobs of some schedulers start in the home folder; a node without this folder may not need it
    scratch = [] if given("local_directory") else [f"{own_scratch()} || exit 1"]
    options["job_script_prologue"] = [f"cd {here} || true", *prologue, *script.export_path(), *scratch]
    return _log_folder(row, options, given("log_directory") or None)


def scratch_base() -> str | None:
    """Return the folder that Dask's settings name for temporary files; what a client of ours has set there is in it."""
    base: str | None = dask.config.get("temporary-directory", None)
    return os.path.dirname(base) if base is not None and os.path.basename(base).startswith(SCRATCH) else base


def own_scratch() -> str:
    """Return a shell command that makes a folder for Dask's files, of mode 0700, and has Dask use it.

    Dask's own has a known name, and the account that made it first can exchange files in it. Backticks, since
    HTCondor takes `$(` for a macro of its own.
    """
    base = scratch_base()
    where = '"${TMPDIR:-/tmp}"' if base in (None, tempfile.gettempdir()) else quoted_word(str(base))
    made = f"`mktemp -d {where}/{SCRATCH}XXXXXXXXXX`"
    return f"{SCRATCH_VARIABLE}={made} && export {SCRATCH_VARIABLE}"


def _worker_words(row: Backend, options: dict[str, Any], given: Callable[..., Any]) -> list[str]:
    extra = list(given("worker_extra_args", []))

    def has(option: str) -> bool:
        return any(str(word).startswith(option) for word in extra)

    seconds = script.set_walltime(row, options)
    if seconds is not None and not has("--lifetime"):
        last_call = min(300, int(_START + _LAST_CALL * seconds))  # it varies, lest all workers leave at once
        lifetime = max(1, int(seconds) - last_call)
        extra += ["--lifetime", f"{lifetime}s", "--lifetime-stagger", f"{last_call // 5}s"]
    asks = [*given("job_extra_directives", []), given("resource_spec")]
    if not has("--nthreads") and asks_for_gpus(asks):
        extra += ["--nthreads", "1"]  # cores are for loading data: a model takes one batch of a GPU at a time
    if not has("--dashboard-address"):  # under a nanny Dask's default is every interface
        extra += ["--dashboard-address", "127.0.0.1:0"]
    if given("nanny", True) is not False:
        extra += ["--preload-nanny", PRELOAD]
    return extra


def _log_folder(row: Backend, options: dict[str, Any], wanted: Any) -> str | None:
    if problem := script.log_folder_problem(row, wanted, detached=False):
        raise ConfigError(problem)
    folder = script.log_folder(wanted or os.getcwd())
    made = tempfile.mkdtemp(prefix=f"espnet3-{row.name}-", dir=folder) if wanted is None else None
    options["log_directory"] = wanted = made or folder
    scheduler = scheduler_of(row.name)
    if scheduler.worker_prints:
        shebang = str(asked(row, options, "shebang") or "")
        lines = [f"{scheduler.mark} {each}" for each in options["job_extra_directives"]]
        if not script.is_posix(scheduler, "\n".join([shebang, *lines])):
            return made  # csh cannot send its own output elsewhere: the scheduler delivers it
        skipped = asked(row, options, "job_directives_skip", ())
        options["job_directives_skip"] = [*skipped, f"-e {wanted}/", f"-o {wanted}/"]
        line = scheduler.worker_prints.replace("{folder}", shlex.quote(wanted))
        options["job_script_prologue"] = [line, *options["job_script_prologue"]]
    if scheduler.worker_logs:
        own = [line.format(folder=wanted) for line in scheduler.worker_logs]
        options["job_extra_directives"] = [*own, *options["job_extra_directives"]]
    return made
