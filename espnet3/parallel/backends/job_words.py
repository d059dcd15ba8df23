"""What the words of job scripts (`#SBATCH --partition`, `--gres`, `--time`) are called among the options of a job."""

from __future__ import annotations

from typing import Any

from espnet3.parallel.messages import shown

_OPTIONS = {  # as written on a command line, with its option of dask-jobqueue
    **dict.fromkeys(("partition", "partitions"), "queue"),
    **dict.fromkeys(("time", "timelimit", "time_limit", "time_min", "h_rt"), "walltime"),
    **dict.fromkeys(("mem", "mem_per_node", "h_vmem"), "memory"),
    **dict.fromkeys(("cpus_per_task", "cpus", "ncpus", "ppn"), "cores"),
    "job_cpu": "cores",
}
_WORKERS = ("ntasks", "tasks", "ntasks_per_node", "tasks_per_node")
_GPUS = ("gres", "gpus", "gpus_per_node", "gpus_per_task", "ngpus")
_FLAGS = ("qos", "constraint", "exclude", "nodelist", "reservation", "exclusive", "licenses", "requeue")
_GPU_LINES = {
    "slurm": '["--gres=gpu:1"]',
    "sge": '["-l gpu=1"]',
    "lsf": "['-gpu \"num=1\"']",
    "htcondor": "{request_gpus: 1}",
}
_GPU_RESOURCES = {"pbs": "select=1:ncpus=4:mem=16GB:ngpus=1", "moab": "nodes=1:ppn=4:gpus=1"}


def option_of(name: str, options: frozenset[str]) -> str | None:
    """Return the option of a job that a word of job scripts means, where it has such an option.

    Args:
        name: As it is written, with hyphens or underscores.
        options: The options of a backend's jobs.
    """
    meant = _OPTIONS.get(_plain(name))
    return meant if meant in options else None


def in_options(env: str, name: str, value: Any, options: frozenset[str]) -> str:
    """Return how a word of job scripts is written as an option; "" where it is no such word.

    Args:
        env: The scheduler.
        name: The word, with hyphens or underscores.
        value: What it was given.
        options: The options of the scheduler's jobs.
    """
    word, meant = _plain(name), option_of(name, options)
    if meant is not None:
        more = (
            ", and job_cpu where --cpus-per-task is to be another number" if _has_both(word, options) else ""
        )
        return f"it is called {meant} here: {meant}: {_example(meant, value)}{more}"
    if word in _WORKERS:
        return "the number of workers is n_workers, beside env; a job of several workers has processes: 4"
    if word in _GPUS and env in _GPU_RESOURCES and "resource_spec" in options:
        return f'GPUs are part of resource_spec here: resource_spec: "{_GPU_RESOURCES[env]}"'
    if "job_extra_directives" not in options or word not in (*_GPUS, *_FLAGS, *_OPTIONS):
        return ""
    if env == "slurm":
        flag = "gres" if word == "ngpus" else word.replace("_", "-")
        text = flag if value is True else f"{flag}={value}"
        return f'it is a line of job_extra_directives here: job_extra_directives: ["--{text}"]'
    example = (
        f", such as job_extra_directives: {_GPU_LINES[env]}" if word in _GPUS and env in _GPU_LINES else ""
    )
    return f"it is a line of job_extra_directives here, as {env} writes it{example}"


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _has_both(word: str, options: frozenset[str]) -> bool:
    return word in ("cpus_per_task", "cpus") and "job_cpu" in options


def _example(meant: str, value: Any) -> str:
    """Return the value as YAML has it; where it is no text, what one is like."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if meant == "walltime":
        return f'"{value}"' if isinstance(value, str) else '"4:00:00"'
    if meant == "memory":  # a number alone is megabytes to most schedulers
        return f"{value}MB" if whole or (isinstance(value, str) and value.isdigit()) else _text(value, "16GB")
    if meant == "cores":
        return str(value) if whole else "4"
    return _text(value, "gpu")


def _text(value: Any, otherwise: str) -> str:
    return shown(value).strip("'\"") if isinstance(value, str) and value else otherwise
