"""Everything that is wrong with the options of a backend, as a list of sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from espnet3.parallel.backends.amounts import is_memory_limit, is_size, walltime_seconds
from espnet3.parallel.backends.backend import Backend, Kind
from espnet3.parallel.backends.hints import (
    TO_TRAINER,
    is_trainer_key,
    known_to_be_wrong,
    owners,
    unknown_option,
)
from espnet3.parallel.backends.job_text import BREAKS, breaks_lines, word_problem
from espnet3.parallel.backends.signatures import has_option, installed
from espnet3.parallel.checks import Flag, Location, Whole, is_number, problem
from espnet3.parallel.messages import did_you_mean, named, shown

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
    if row is None:
        if name == "n_workers":
            return "set n_workers beside env"
        return TO_TRAINER if is_trainer_key(name) and not owners(name) else ""
    if name in row.controlled:
        return f"not an option of {row.name}: {row.controlled[name]}"
    known = has_option(row, name)
    # None: the package is not installed. That is said when the cluster is built; until then an
    # option may be right, unless it is one of trainer, of another scheduler, or has a slip in it.
    if known or (known is None and not known_to_be_wrong(row, name)):
        return ""
    return unknown_option(row, name, value)


def _refused_value(row: Backend | None, name: str, options: Mapping[Any, Any]) -> str:
    value = options[name]
    if row is None or is_missing(value):
        return ""
    if name in _MAPPINGS and value is not None and not isinstance(value, Mapping):
        return f"must be a mapping of names to values, such as {name}: {{port: 0}}"
    if row.is_local and value is not None:
        return _refused_locally(name, value)
    if row.kind is Kind.SSH:
        from espnet3.parallel.backends.ssh_hosts import refused_ssh_option

        return refused_ssh_option(options, name)
    if row.scheduler is not None and value is not None:
        return _refused_by_scheduler(row.scheduler, row.name, name, value)
    if row.kind is Kind.KUBERNETES and value is not None:
        return _refused_by_kubernetes(name, value)
    return ""


def _refused_locally(name: str, value: Any) -> str:
    if name in ("threads_per_worker", "nthreads"):
        return Whole(least=1, example=f"{name}: 4").refusal(value)
    if name == "processes":
        return Flag().refusal(value)
    if name == "memory_limit" and not is_memory_limit(value):
        return (
            "write a size with its unit, such as memory_limit: 4GB, a share such as 0.5, auto, or 0 for none"
        )
    if name in _TEXTS and not isinstance(value, str):
        return f"must be text, not {type(value).__name__}"
    if name == "local_directory":
        return Location().refusal(value)
    if name == "resources" and not isinstance(value, Mapping):
        return "must be a mapping of names to numbers, such as resources: {licence: 1}"
    if name == "security" and not (isinstance(value, bool) or hasattr(value, "require_encryption")):
        return "must be true, false or a distributed.Security; as a rule security beside env is what is meant"
    return _refused_variables(value) if name == "env" else ""


_TEXTS = ("host", "interface", "protocol")


def _refused_variables(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "must be a mapping of variables to values, such as env: {OMP_NUM_THREADS: 1}"
    for name, text in value.items():
        if not str(name) or "=" in str(name) or "\0" in str(name) + str(text):
            return f"no variable can be called or hold {shown(f'{name}={text}')}: a name has no =, and nothing a NUL"
    return ""


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
    if name == "job_extra_directives" and scheduler.submit_by is SubmitBy.DESCRIPTION:
        return "" if isinstance(value, Mapping) else f"must be a mapping for {env}: {{name: value}}"
    if name in _LISTS and not isinstance(value, list):
        return f"must be a list: {name}: [{shown(value, name)}]"
    words = {"worker_extra_args": value, "python": [value], "worker_command": [value]}.get(name, ())
    return next(filter(None, map(word_problem, words)), "")


def _refused_by_kubernetes(name: str, value: Any) -> str:
    if name == "name" and not (isinstance(value, str) and _KUBE_NAME.fullmatch(value) and len(value) <= 50):
        return "must be lower-case letters, digits and hyphens, 50 at most, beginning with a letter"
    if name == "create_mode" and getattr(value, "value", value) not in _KUBE_MODES:
        return f"must be one of {', '.join(_KUBE_MODES)}.{did_you_mean(value, _KUBE_MODES)}"
    if name == "resources":
        kinds = value.items() if isinstance(value, Mapping) else [("", None)]
        if any(kind not in ("limits", "requests") or not isinstance(each, Mapping) for kind, each in kinds):
            return "must be such as resources: {requests: {cpu: 1}, limits: {memory: 16Gi}}"
    if name == "env" and not isinstance(value, (Mapping, list)):
        return "must be a mapping of names to values, or a list of {name: ..., value: ...}"
    return _refused_in_pod(name, value)


def _refused_in_pod(name: str, value: Any) -> str:
    if name in _POD_LISTS and not (
        isinstance(value, list) and all(isinstance(one, Mapping) for one in value)
    ):
        return f"must be a list of mappings, as in a pod: {name}: [{_POD_LISTS[name]}]"
    if name == "volume_mounts" and any(not str(one.get("mountPath", "")).startswith("/") for one in value):
        return f"each needs a mountPath that begins with a slash, such as {_POD_LISTS[name]}"
    if name in _POD_MAPPINGS and not isinstance(value, Mapping):
        return f"must be a mapping, such as {name}: {_POD_MAPPINGS[name]}"
    if name == "image_pull_secrets":
        texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return "" if texts else "must be a list of names of secrets, such as image_pull_secrets: [registry]"
    if name == "image_pull_policy" and value not in _PULLS:
        return f"must be one of {', '.join(_PULLS)}.{did_you_mean(value, _PULLS)}"
    if name in ("service_account", "python", "image", "namespace") and not isinstance(value, str):
        return f"must be text, not {type(value).__name__}"
    return ""


_POD_LISTS = {
    "volumes": "{name: data, persistentVolumeClaim: {claimName: data}}",
    "volume_mounts": "{name: data, mountPath: /data}",
    "tolerations": "{key: gpu, operator: Exists}",
}
_POD_MAPPINGS = {"node_selector": "{gpu: a100}", "security_context": "{runAsUser: 1000, fsGroup: 1000}"}
_PULLS = ("Always", "IfNotPresent", "Never")


_KUBE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_KUBE_MODES = ("CREATE_ONLY", "CREATE_OR_CONNECT", "CONNECT_ONLY")

_MAPPINGS = ("scheduler_options", "worker_options")

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
    """Whether the site's jobqueue.yaml or environment gives a required option.

    dask-jobqueue reads there what its constructor is not given, so the configuration may be right
    without it. dask is imported for this, and only here: for a configuration that would otherwise
    be refused.
    """
    if not installed("dask_jobqueue"):
        return False
    from dask import config

    section = options.get("config_name") or row.name
    return config.get(f"jobqueue.{section}.{name}", None) is not None
