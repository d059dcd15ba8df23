"""The script of a job, for workers on nodes and for detached shards: its shell, interpreter, walltime and directives.

#!shell         an option of the block, else the site's setting (`asked`)
directives      dask-jobqueue's own, and `shell_directive`; `avoiding` joins nodes, `output_problems` looks for folders
prologue        the user's own lines, in the user's own shell
command         our lines, as that shell reads them (`commands`), with the words of the interpreter (`python_words`);
                each word is quoted (`quoted_word`): `$NAME` is still expanded on the node, nothing else is
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import site
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.parallel.backends import Backend, row
from espnet3.parallel.backends.backend import asked, parameters
from espnet3.parallel.backends.check import clock, walltime_seconds
from espnet3.parallel.backends.scheduler import Scheduler, SubmitBy
from espnet3.parallel.errors import ConfigError

# Makes dask-jobqueue's job of a block, with other values of some options, and keeps it: it is asked for several times
Make = Callable[..., Any]
_OTHER_SHELLS = ("csh", "tcsh", "fish")  # read neither `export NAME=value` nor `$((1 + 2))`
_PATH = "PYTHONPATH"
_VARIABLE = r"(\$(?:[A-Za-z0-9_]+|\{[A-Za-z0-9_]+\}))"
_VARIABLE_PART = re.compile(r"[%$]")
PLAIN = re.compile(r"[\w./+-]+", re.ASCII)  # a path that no shell or scheduler expands
# a directive is cut there, or the scheduler puts something in its place
_NOT_IN_DIRECTIVES = re.compile(r"[\s'\"%$\\]")
# the options of dask-jobqueue's cluster itself; the others, and those that both take, go to each job
_CLUSTER = "dask_jobqueue.core:JobQueueCluster.__init__"
_SHARED = ("interface", "protocol", "config_name")


def of_each_job(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a block that dask-jobqueue's job takes, without those of its cluster."""
    for_cluster = set(parameters(_CLUSTER) or ()) - set(_SHARED)
    return {name: value for name, value in options.items() if name not in for_cluster}


def python_words(row: Backend, options: Mapping[str, Any], cwd: str) -> list[str]:
    """Return the words that start a job's Python: `apptainer exec my.sif python` is four, the path of a file is one.

    A relative path is one from the submitter's folder: jobs start in another one.
    """
    given = str(asked(row, options, "python") or sys.executable)
    first, *others = [given] if os.path.exists(os.path.join(cwd, given)) else shlex.split(given)
    first = os.path.expanduser(first)
    return [first if os.sep not in first or first.startswith("$") else os.path.join(cwd, first), *others]


def scheduler_of(env: str) -> Scheduler:
    """Return the record of a batch scheduler."""
    found = row(env).scheduler
    if found is None:
        raise ConfigError(f"env: {env} is not a batch scheduler")
    return found


def quoted_word(text: str) -> str:
    """Return text as one word of a shell, in which only variables such as `$TMPDIR` and `${USER}` are expanded."""
    if shlex.quote(text) == text:
        return text
    parts = re.split(_VARIABLE, text)
    parts[::2] = [re.sub(r'([\\"$`])', r"\\\1", part) for part in parts[::2]]  # between the variables
    return f'"{"".join(parts)}"'


def _shell(scheduler: Scheduler, script: str) -> str:
    line = script.split("\n", 1)[0]
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    pattern = rf"(?m)^{re.escape(scheduler.mark)} *-S *(\S+)"
    chosen = re.findall(pattern, script) if scheduler.shell_line else []
    return str((chosen or words or ["/bin/sh"])[0])


def import_path() -> str | None:
    """Return the folder that a job's PYTHONPATH must hold to find this package; None where it is installed."""
    root = str(Path(__file__).resolve().parents[3])
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    return None if root in map(os.path.abspath, installed) else root


def export_path() -> list[str]:
    """Return the line of sh that sets the PYTHONPATH of a job; none where this package is installed."""
    root = import_path()
    return [] if root is None else [f"export {_PATH}={shlex.quote(root)}${{{_PATH}:+:${_PATH}}}"]


def is_posix(scheduler: Scheduler, script: str) -> bool:
    """Return whether the shell of a script reads lines of sh; in place of a description's it is sh itself."""
    described = scheduler.submit_by is SubmitBy.DESCRIPTION
    return described or os.path.basename(_shell(scheduler, script)) not in _OTHER_SHELLS


def shell_directive(scheduler: Scheduler, shebang: str, directives: Sequence[Any]) -> list[str]:
    """Return the directive by which a script runs in the shell of its first line, where it would run in another one."""
    if not scheduler.shell_line or any(str(line).lstrip().startswith("-S") for line in directives):
        return []
    shell = _shell(scheduler, shebang)
    if not os.path.isabs(shell):
        usual = f"/bin/{shell}"
        shell = usual if os.path.exists(usual) else shutil.which(shell) or usual
    return [scheduler.shell_line.format(shell=shell)]


def commands(scheduler: Scheduler, script: str, lines: Sequence[str]) -> list[str]:
    """Return the last lines of a script, given in sh, as the shell of the script reads them."""
    return list(lines) if is_posix(scheduler, script) else [in_sh(lines)]


def read_by_shell(scheduler: Scheduler, script: str, first: str) -> str:
    """Return a worker's script with its last line, and ours above it, as its shell reads them."""
    lines = script.splitlines()
    at = len(lines) - 1
    while lines[at - 1].startswith((f"export {_PATH}=", first)):
        at -= 1
    return "\n".join([*lines[:at], *commands(scheduler, script, lines[at:])]) + "\n"


def in_sh(lines: Sequence[str]) -> str:
    """Return lines of sh as one command that every shell reads."""
    # csh looks for `!` in quotation marks too
    return f"exec /bin/sh -c {shlex.quote('; '.join(lines))}".replace("!", "'\\!'")


def set_walltime(row: Backend, options: dict[str, Any]) -> float | None:
    """Write the walltime as the scheduler reads it; return the seconds that a job has, None where none are known."""
    scheduler = row.scheduler
    value = asked(row, options, "walltime") if scheduler is not None and scheduler.has_walltime else None
    if scheduler is None or value is None:
        return None
    seconds = walltime_seconds(value, minutes_last=scheduler.minutes_last)
    if seconds is None:  # of the site, whose words are its own
        return None
    if scheduler.writes_seconds and re.fullmatch(r"\d+:\d+", str(value)):
        return seconds  # minutes and seconds to all of them
    if seconds == math.inf:
        options["walltime"] = scheduler.unlimited
        return None
    options["walltime"] = clock(seconds, writes_seconds=scheduler.writes_seconds)
    return seconds


def avoiding(scheduler: Scheduler, options: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
    """Return options whose jobs keep away from nodes, and from those that the user's own directives name."""
    own: list[str] = []

    def taken(found: re.Match[str]) -> str:
        own.extend(text.strip("\"'").replace("&!", scheduler.joint) for text in found.groups() if text)
        return ""

    def without(text: Any) -> str:
        return re.sub(scheduler.avoided, taken, str(text)).strip() if scheduler.avoided else str(text)

    kept = list(filter(None, map(without, options["job_extra_directives"])))
    if options.get("resource_spec") is not None:
        options = {**options, "resource_spec": without(options["resource_spec"]) or None}
    line = scheduler.avoid.format(nodes=scheduler.joint.join(dict.fromkeys([*own, *nodes])))
    return {**options, "job_extra_directives": [*kept, line]}


def output_problems(scheduler: Scheduler, directives: Any) -> Iterator[str]:
    """Yield a sentence for each directive that has output written to a folder which is not there."""
    if isinstance(directives, Mapping):
        given = [(f"{key} = {path}", str(path)) for key, path in directives.items()]
        given = [each for each in given if re.fullmatch(scheduler.output, each[0].split(" = ")[0])]
    else:
        pattern = rf"(?:^|\s)(?:{scheduler.output})(?:\s*=\s*|\s+|(?=[./\w]))[\"']?([^\s\"']+)"
        given = [(str(line), path) for line in directives for path in re.findall(pattern, str(line))]
    moved = re.search(r"(?:--chdir[= ]|(?<!\S)-[Dd] *)(\S+)", " ".join(map(str, directives)))
    for line, path in given:
        here = path if os.sep in path.partition(":")[0] else path.rpartition(":")[2]  # host:path
        folder = os.path.dirname(here)
        if variable := _VARIABLE_PART.search(folder):  # the scheduler puts a number there
            folder = os.path.dirname(folder[: variable.start()])
        folder = os.path.join(moved[1] if moved else "", os.path.expanduser(folder))
        if folder and not os.path.isdir(folder):
            yield (
                f"options.job_extra_directives: {line!r}: there is no folder {os.path.abspath(folder)}, and "
                "schedulers make none: such a job ends at its start without a word. Make the folder, or leave the "
                "directive out: log_directory is where output goes"
            )


def log_folder_problem(row: Backend, given: Any, *, detached: bool) -> str:
    """Return why jobs cannot write their output to a folder, for its name; empty: they can.

    A driver's jobs are told of it by a directive, and those of a detached run are submitted from it.
    """
    scheduler, folder = scheduler_of(row.name), os.path.abspath(os.path.expanduser(str(given or os.getcwd())))
    place = "options.log_directory" if given else "the current folder, where jobs write their logs"
    if detached:
        fits = not scheduler.silent or PLAIN.fullmatch(folder) is not None
        why = f"{row.name} expands other characters of {folder!r} than letters, digits and / . _ + - alone"
    else:
        told = not scheduler.worker_prints and scheduler.submit_by is not SubmitBy.DESCRIPTION
        fits = not told or not _NOT_IN_DIRECTIVES.search(folder)
        why = (
            f"{folder!r}: {row.name} cannot be told of a folder with a space, a quotation mark, or one of % $ \\ in "
            "its name"
        )
    return "" if fits else f"{place}: {why}; name another folder as options.log_directory"


def log_folder(wanted: Any) -> str:
    """Return the folder of `log_directory`, which is made where it is missing."""
    folder = os.path.abspath(os.path.expanduser(str(wanted)))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise ConfigError(
            f"options.log_directory = {folder!r}: jobs cannot write their logs there: {error.strerror}; name a folder "
            "that you may write to and that the nodes see"
        ) from error
    return folder


def defaults(row: Backend, options: Mapping[str, Any], make: Make) -> list[str]:
    """Return what a block leaves to others: the walltime, and amounts that no directive of its job holds."""
    said = []
    section = options.get("config_name") or row.name
    walltime = asked(row, options, "walltime")
    if scheduler_of(row.name).has_walltime and options.get("walltime") is None and walltime is not None:
        said.append(f"walltime is {walltime}, by jobqueue.{section}.walltime: options have none")
    unsaid = [name for name in ("cores", "memory") if not _is_requested(row, options, name, make)]
    if unsaid:
        said.append(
            f"the scheduler is not asked for {' and '.join(unsaid)}, which only Dask reads: resource_spec or "
            "job_extra_directives ask for more, in the site's own words"
        )
    return said


def memory_stays(row: Backend, options: Mapping[str, Any], make: Make, factor: float | None) -> list[str]:
    """Return why memory does not grow by `factor` with each retry; none: it does, or shall not."""
    if factor is None or _is_requested(row, options, "memory", make):
        return []
    why = "the jobs ask for memory in other words than options.memory, such as those of resource_spec, which stay"
    return [f"detached.retry_memory_factor = {factor:g} has no effect: {why}"]


def _is_requested(row: Backend, options: Mapping[str, Any], name: str, make: Make) -> bool:
    # more of an amount that reaches the directives changes them
    amount = asked(row, options, name)
    if amount is None:
        return True
    from dask.utils import parse_bytes

    more = amount * 2 if name == "cores" else f"{parse_bytes(amount) * 2}B"
    return _header(make) != _header(make, **{name: more})


def _header(make: Make, **changed: Any) -> str:
    with warnings.catch_warnings():  # given for the job itself
        warnings.simplefilter("ignore")
        job = make(**changed)
    described = getattr(job, "job_header_dict", None)
    return str(job.job_header if described is None else described)
