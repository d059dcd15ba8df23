"""The options of a `parallel` block in the form that dask-jobqueue takes, completed for this machine."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import dask
import psutil

from espnet3.parallel.backends.backend import Backend
from espnet3.parallel.backends.job_text import quoted_word, quoted_words, walltime_seconds, walltime_text
from espnet3.parallel.backends.machine import asks_for_gpus
from espnet3.parallel.backends.scheduler import Scheduler, SubmitBy
from espnet3.parallel.clusters.security import (
    PRELOAD,
    SCRATCH,
    RunCertificate,
    is_encrypted,
    make_certificate,
    warn_of_off,
)
from espnet3.parallel.dask_compat import worker_arguments
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean

logger = logging.getLogger(__name__)

_MACHINES = "this machine or the nodes"
# a directive is cut there, or the scheduler puts something in its place
_NOT_IN_DIRECTIVES = re.compile(r"[\s'\"%$\\]")
_LAST_CALL = 0.1  # part of the walltime, at most five minutes, that a worker has to finish its last items


def _site(row: Backend, options: dict[str, Any], name: str, default: Any = None) -> Any:
    section = options.get("config_name") or row.name
    return dask.config.get(f"jobqueue.{section}.{name.replace('_', '-')}", default)


def _asked(row: Backend, options: dict[str, Any], name: str, default: Any = None) -> Any:
    given = options.get(name)
    return _site(row, options, name, default) if given is None else given


def _scheduler_options(row: Backend, options: dict[str, Any]) -> dict[str, Any]:
    site = _site(row, options, "scheduler_options") or {}
    return {**site, **(options.get("scheduler_options") or {})}


def interface_problems(row: Backend, options: dict[str, Any]) -> list[str]:
    """Return a sentence for each network interface of the options that this machine lacks."""
    wanted = {
        "options.interface": _asked(row, options, "interface"),
        "options.scheduler_options.interface": _scheduler_options(row, options).get("interface"),
    }
    there = psutil.net_if_addrs()
    return [
        f"{where} = {name!r}: this machine has no such network interface.{did_you_mean(name, there)} "
        f"It has {', '.join(sorted(there))}"
        for where, name in wanted.items()
        if name is not None and name not in there
    ]


def worker_argument_problems(row: Backend, options: dict[str, Any]) -> list[str]:
    """Return a sentence for each of `worker_extra_args` that Dask's worker does not know.

    In a job it would refuse them as well, but without a name: it takes what it does not know for arguments of the
    module that this library preloads.
    """
    extra = _asked(row, options, "worker_extra_args", [])
    command = _asked(row, options, "worker_command")
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
    assert row.scheduler is not None
    asked = partial(_asked, row, options)
    # Dask's default is port 8787 on every interface
    scheduler = {"dashboard_address": "127.0.0.1:0", **_scheduler_options(row, options)}
    options["scheduler_options"] = scheduler
    options["processes"] = asked("processes") or 1

    extra = _worker_words(row.scheduler, options, asked)
    options["worker_extra_args"] = [word for text in extra for word in quoted_words(str(text))]
    python = str(asked("python") or sys.executable)
    # a path may have a space in it; anything else is words, such as a launcher's
    options["python"] = quoted_word(python) if os.path.exists(python) else " ".join(quoted_words(python))
    prologue = list(asked("job_script_prologue", []))
    if not any("trap" in str(line) for line in prologue):
        # in the shell's place the worker gets the signals; a scheduler that tracks processes by their parents loses
        # a worker whose shell has ended. The user's own trap needs the shell
        options["python"] = f"exec {options['python']}"
    for name in ("local_directory", "death_timeout"):
        if (text := asked(name)) is not None:
            options[name] = quoted_word(str(text))
    if options.get("worker_command") is not None:
        options["worker_command"] = " ".join(quoted_words(str(options["worker_command"])))

    if row.scheduler.avoid:  # the keeper adds the nodes to avoid
        options["job_extra_directives"] = list(asked("job_extra_directives", []))
    here = shlex.quote(os.getcwd())
    # jobs of some schedulers start in the home folder; a node without this folder may not need it
    options["job_script_prologue"] = [f"cd {here} || true", *prologue]
    if not asked("local_directory"):
        options["job_script_prologue"].append(f"{own_scratch()} || exit 1")
    return _log_folder(row, options, asked("log_directory") or None)


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
    return f"DASK_TEMPORARY_DIRECTORY={made} && export DASK_TEMPORARY_DIRECTORY"


def _worker_words(scheduler: Scheduler, options: dict[str, Any], asked: Callable[..., Any]) -> list[str]:
    """Return the words of a worker's command: the user's own, and ours where the user gives none."""
    extra = list(asked("worker_extra_args", []))

    def given(option: str) -> bool:
        return any(str(word).startswith(option) for word in extra)

    lifetime = _lifetime(scheduler, options, asked("walltime"))
    if lifetime is not None and not given("--lifetime"):
        extra += ["--lifetime", f"{lifetime}s", "--lifetime-stagger", f"{max(1, lifetime // 50)}s"]
    asks = [*asked("job_extra_directives", []), asked("resource_spec")]
    if not given("--nthreads") and asks_for_gpus(asks):
        extra += ["--nthreads", "1"]  # cores are for loading data: a model takes one batch of a GPU at a time
    if not given("--dashboard-address"):  # under a nanny Dask's default is every interface
        extra += ["--dashboard-address", "127.0.0.1:0"]
    if asked("nanny", True) is not False:
        extra += ["--preload-nanny", PRELOAD]
    return extra


def _lifetime(scheduler: Scheduler, options: dict[str, Any], walltime: Any) -> int | None:
    """Write the walltime as the scheduler reads it; return the seconds a worker takes new work."""
    if walltime is None or not scheduler.has_walltime:
        return None
    seconds = walltime_seconds(walltime, minutes_last=scheduler.minutes_last)
    if seconds is None:
        return None
    if options.get("walltime") is not None:
        options["walltime"] = walltime_text(
            walltime, minutes_last=scheduler.minutes_last, writes_seconds=scheduler.writes_seconds
        )
    return max(1, int(seconds - min(300, _LAST_CALL * seconds + 5)))


def _log_folder(row: Backend, options: dict[str, Any], wanted: Any) -> str | None:
    """Set the folder for the jobs' logs: the given one, or a new one in the current folder."""
    made = None
    try:
        if wanted is None:
            made = wanted = tempfile.mkdtemp(prefix=f"espnet3-{row.name}-", dir=os.getcwd())
        else:
            wanted = os.path.abspath(os.path.expanduser(str(wanted)))
            os.makedirs(wanted, mode=0o700, exist_ok=True)
        if not os.access(wanted, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        place = f"options.log_directory = {wanted!r}" if wanted else f"options.log_directory ({os.getcwd()})"
        raise ConfigError(
            f"{place}: jobs cannot write their logs there: {error.strerror}; name a folder that you may "
            "write to and that the nodes see"
        ) from error
    assert row.scheduler is not None
    try:
        check_log_folder(row, options.get("log_directory") or os.getcwd())
    except ConfigError:
        if made is not None:
            os.rmdir(made)
        raise
    options["log_directory"] = wanted
    if row.scheduler.worker_prints:
        skipped = _asked(row, options, "job_directives_skip", ())
        options["job_directives_skip"] = [*skipped, f"-e {wanted}/", f"-o {wanted}/"]
        line = row.scheduler.worker_prints.replace("{folder}", shlex.quote(wanted))
        options["job_script_prologue"] = [line, *options["job_script_prologue"]]
    if row.scheduler.worker_logs:
        own = [line.format(folder=wanted) for line in row.scheduler.worker_logs]
        options["job_extra_directives"] = [*own, *(options.get("job_extra_directives") or [])]
    return made


def check_log_folder(row: Backend, folder: Any) -> None:
    """Refuse a folder for logs whose name a directive cannot hold."""
    scheduler = row.scheduler
    assert scheduler is not None
    told = not scheduler.worker_prints and scheduler.submit_by is not SubmitBy.DESCRIPTION
    if told and _NOT_IN_DIRECTIVES.search(str(folder)):
        current = folder == os.getcwd()
        place = "the current folder, where jobs write their logs" if current else "options.log_directory"
        raise ConfigError(
            f"{place}: {str(folder)!r}: {row.name} cannot be told of a folder with a space, a quotation mark, or one "
            "of % $ \\ in its name; name another folder as options.log_directory"
        )


def secure(row: Backend, options: dict[str, Any], security: str) -> RunCertificate | None:
    """Add a certificate of the run to the options, unless security is off or the user gave one."""
    if options.get("security") is not None or options.get("protocol") is not None:
        if not is_encrypted(options):
            warn_of_off(_MACHINES)
        return None
    if security == "off":
        warn_of_off(_MACHINES)
        return None
    shared = _asked(row, options, "shared_temp_directory")
    certificate = make_certificate(shared and os.path.expanduser(os.path.expandvars(shared)))
    options.update(security=certificate.security, protocol="tls://")
    extra = options.get("worker_extra_args", [])
    options["worker_extra_args"] = [*extra, *certificate.words, "--preload", PRELOAD]
    return certificate
