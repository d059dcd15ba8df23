"""Everything that is wrong with the options of a backend, as a list of sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from espnet3.parallel.backends.amounts import is_memory_limit, is_size, walltime_seconds
from espnet3.parallel.backends.backend import Backend, Kind
from espnet3.parallel.backends.hints import surely_wrong, unknown_option
from espnet3.parallel.backends.job_text import BREAKS, breaks_lines, word_problem
from espnet3.parallel.backends.loading import has_option, installed
from espnet3.parallel.checks import Fits, Flag, Location, Whole, is_number, names_of, problem
from espnet3.parallel.checks import Kind as Sort
from espnet3.parallel.messages import named, shown

if TYPE_CHECKING:
    from espnet3.parallel.backends.scheduler import Scheduler

# OmegaConf's mark of a value that is still to be given; that it is missing is said elsewhere.
MISSING = "???"


def is_missing(value: Any) -> bool:
    """Whether a value is the mark of a missing one."""
    return isinstance(value, str) and value == MISSING


def option_problems(row: Backend | None, options: Mapping[Any, Any]) -> list[str]:
    """Return what is wrong with `options`: where, the value, why and the fix, one string each."""
    problems = []
    for name, value in options.items():
        reason = _refused_name(row, name, value) or _refused_value(row, name, options)
        if reason:
            problems.append(problem(f"options.{named(name)}", value, reason))
    return problems if row is None else [*problems, *_missing(row, options)]


def _refused_name(row: Backend | None, name: Any, value: Any) -> str:
    if not isinstance(name, str):
        return f"the name of an option is text, not {type(name).__name__}: put it in quotes"
    if row is not None and name in row.controlled:
        return f"not an option of {row.name}: {row.controlled[name]}"
    if row is not None:
        known = has_option(row, name)
        # None: the package is not installed, which is said when the cluster is built; the option may be right
        if known or (known is None and not surely_wrong(row, name)):
            return ""
    return unknown_option(row, name, value)


def _refused_value(row: Backend | None, name: str, options: Mapping[Any, Any]) -> str:
    value = options[name]
    if row is None or is_missing(value):
        return ""
    if row.kind is Kind.SSH:
        from espnet3.parallel.backends.ssh_hosts import refused_ssh_option

        if reason := refused_ssh_option(options, name):
            return reason
    if value is None:
        return ""
    if row.scheduler is not None:
        return _refused_by_scheduler(row.scheduler, row.name, name, value)
    sort = (_OF_PODS if row.kind is Kind.KUBERNETES else _OF_DASK).get(name)
    return "" if sort is None else sort.refusal(value)


def _is(kind: type | tuple[type, ...]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _are_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, Mapping) for one in value)


def _are_resources(value: Any) -> bool:
    """Whether they are limits and requests: Kubernetes would leave out another word without an error."""
    return (
        isinstance(value, Mapping)
        and not set(value) - {"limits", "requests"}
        and all(isinstance(each, Mapping) for each in value.values())
    )


def _are_variables(value: Any) -> bool:
    return isinstance(value, Mapping) and not any(
        not str(name) or "=" in str(name) or "\0" in f"{name}{text}" for name, text in value.items()
    )


_MAPPINGS: dict[str, Sort] = {
    name: Fits(_is(Mapping), f"a mapping of names to values, such as {name}: {{port: 0}}")
    for name in ("scheduler_options", "worker_options")
}
_THREADS = Whole(least=1, example="threads_per_worker: 4")
_OF_DASK: dict[str, Sort] = {
    **_MAPPINGS,
    "threads_per_worker": _THREADS,
    "nthreads": _THREADS,
    "processes": Flag(),
    "memory_limit": Fits(
        is_memory_limit,
        "a size with its unit, such as memory_limit: 4GB, a share such as 0.5, auto, or 0 for none",
    ),
    **dict.fromkeys(("host", "interface", "protocol"), Fits(_is(str), "text")),
    "local_directory": Location(),
    "resources": Fits(_is(Mapping), "a mapping of names to numbers, such as resources: {licence: 1}"),
    "security": Fits(
        lambda value: isinstance(value, bool) or hasattr(value, "require_encryption"),
        "true, false or a distributed.Security; as a rule security beside env is what is meant",
    ),
    "env": Fits(
        _are_variables,
        "a mapping of variables to values, such as env: {OMP_NUM_THREADS: 1}; a name has no =, and nothing a NUL",
    ),
}
_MODES = ("CREATE_ONLY", "CREATE_OR_CONNECT", "CONNECT_ONLY")
# Fields of pods that are read here; the API server checks the rest itself.
_OF_PODS: dict[str, Sort] = {
    **_MAPPINGS,
    "create_mode": Fits(
        lambda value: getattr(value, "value", value) in _MODES, f"one of {', '.join(_MODES)}"
    ),
    "resources": Fits(_are_resources, "such as resources: {requests: {cpu: 1}, limits: {memory: 16Gi}}"),
    "image_pull_secrets": names_of("secrets"),
    "env": Fits(_is((Mapping, list)), "a mapping of names to values, or a list of {name: ..., value: ...}"),
    **{
        name: Fits(_is(Mapping), f"a mapping, such as {name}: {example}")
        for name, example in (("node_selector", "{gpu: a100}"), ("security_context", "{runAsUser: 1000}"))
    },
    **{
        name: Fits(_are_mappings, f"a list of mappings, as in a pod: {name}: [{example}]")
        for name, example in (
            ("volumes", "{name: data, persistentVolumeClaim: {claimName: data}}"),
            ("volume_mounts", "{name: data, mountPath: /data}"),
            ("tolerations", "{key: gpu, operator: Exists}"),
        )
    },
}


def _refused_by_scheduler(scheduler: Scheduler, env: str, name: str, value: Any) -> str:
    from espnet3.parallel.backends.scheduler import SubmitBy  # loaded with the row

    # the lines of a prologue are the user's own, except where it is one value of a description
    own_lines = name == "job_script_prologue" and scheduler.submit_by is not SubmitBy.DESCRIPTION
    if not own_lines and breaks_lines(value):
        return BREAKS
    if name == "walltime":
        example = _clock(value if is_number(value) else 0, seconds=scheduler.writes_seconds)
        if is_number(value):
            return (
                "YAML has read a time as a number, as it does with 4:00:00; write it in quotes: "
                f'walltime: "{example}"'
            )
        if walltime_seconds(value, minutes_last=scheduler.minutes_last) is None:
            return f'not a time; write it as walltime: "{example}", or as 90m, 4h, 2 days'
    if name in ("memory", "disk") and not is_size(value):
        number = isinstance(value, (int, str)) and str(value).strip().isdigit()
        return f"write it with its unit: {name}: {value if number else 16}GB"
    if name in ("cores", "processes", "job_cpu", "ncpus"):
        return Whole(least=1, example=f"{name}: 4").refusal(value)
    if name in _MAPPINGS:
        return _MAPPINGS[name].refusal(value)
    if name == "job_extra_directives" and scheduler.submit_by is SubmitBy.DESCRIPTION:
        return "" if isinstance(value, Mapping) else f"must be a mapping for {env}: {{name: value}}"
    if name in _LISTS and not isinstance(value, list):
        return f"must be a list: {name}: [{shown(value, name)}]"
    words = {"worker_extra_args": value, "python": [value], "worker_command": [value]}.get(name, ())
    return next(filter(None, map(word_problem, words)), "")


# dask-jobqueue would take a text apart into its letters.
_LISTS = ("job_extra_directives", "job_script_prologue", "worker_extra_args", "job_directives_skip")


def _clock(value: float, *, seconds: bool) -> str:
    """Write the number that YAML 1.1 made of a time in base 60 as that time."""
    if not math.isfinite(value) or value <= 0:
        return "04:00:00" if seconds else "04:00"
    left, last = divmod(int(value), 60)
    return f"{left // 60:02d}:{left % 60:02d}:{last:02d}" if seconds else f"{left:02d}:{last:02d}"


def _missing(row: Backend, options: Mapping[Any, Any]) -> list[str]:
    return [
        f"options.{name} is missing: {row.name} requires it, such as {example}"
        for name, example in row.required.items()
        if options.get(name) is None and not (row.scheduler and _set_by_site(row, options, name))
    ]


def _set_by_site(row: Backend, options: Mapping[Any, Any], name: str) -> bool:
    """Whether the site's jobqueue.yaml or environment gives a required option, as dask-jobqueue reads it there.

    dask is imported for this, and only here: for a configuration that would otherwise be refused.
    """
    if not installed("dask_jobqueue"):
        return False
    from dask import config

    section = options.get("config_name") or row.name
    return config.get(f"jobqueue.{section}.{name}", None) is not None
