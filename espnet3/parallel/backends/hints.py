"""Where a name that is not accepted here belongs: other backends, `trainer`, or a slip of the pen.

What is accepted depends on this module only where the backend's package is not installed and its options cannot be
read: then a name of `trainer`, one of another scheduler and one that is nearly right are refused, and no others.
"""

from __future__ import annotations

from typing import Any

from espnet3.parallel.backends.backend import Backend
from espnet3.parallel.backends.signatures import allowed_options, has_option, installed, parameters
from espnet3.parallel.backends.table import BACKENDS
from espnet3.parallel.checks import is_whole
from espnet3.parallel.messages import did_you_mean, shown

TO_TRAINER = "belongs to trainer, not to parallel: move it to the trainer block"
TO_PARALLEL = "belongs to parallel, not to trainer: move it to the parallel block"

# Words for hints, read beside the live signature of lightning.Trainer or in its absence. The last
# two are keys of a recipe's configuration, not parameters of the Trainer.
_TRAINER_WORDS = {
    *("accelerator", "devices", "num_nodes", "strategy", "precision", "callbacks", "max_epochs", "max_steps"),
    *("accumulate_grad_batches", "gradient_clip_val", "sync_batchnorm", "use_distributed_sampler"),
    *("num_device", "trainer"),
}
_TRAINER_SIGNATURES = (
    "lightning.pytorch.trainer.trainer:Trainer.__init__",
    "pytorch_lightning.trainer.trainer:Trainer.__init__",
)
# Options of jobs that a block of another kind hardly means by anything else.
_TELLING = frozenset(
    {"queue", "account", "project", "walltime", "cores", "memory", "disk", "resource_spec", "shebang"}
    | {"job_extra_directives", "job_directives_skip", "job_script_prologue", "job_name", "log_directory"}
    | {"worker_extra_args"}
)
# What ESPnet2 scripts called it.
_RENAMED = {"nj": "n_workers", "inference_nj": "n_workers", "num_workers": "n_workers"}
_COMMAND = (
    "there is no such key: env chooses what starts the work (local for run.pl, sge for queue.pl, slurm for "
    "slurm.pl), and options hold what a job asks for"
)
_GPUS = (
    "there is no such key: GPUs come with the backend. Write env: local_gpu for those of this machine; a scheduler "
    'is asked for them under options, such as job_extra_directives: ["--gres=gpu:1"] of slurm'
)
_LOCK = (
    "there is no such key, and no need of it: a lock that an interrupted run has left is noticed by its heartbeat. "
    "Leave it out"
)
_REPLACED = {
    "allow_overwrite_lock": _LOCK,
    **dict.fromkeys(("train_cmd", "cuda_cmd", "decode_cmd", "cmd"), _COMMAND),
    **dict.fromkeys(("gpu_inference", "ngpu", "gpu"), _GPUS),
}

# What job scripts (#SBATCH --partition, --gres, --time) call it: an option of dask-jobqueue's, or something else.
_JOB_OPTIONS = {
    **dict.fromkeys(("partition", "partitions"), "queue"),
    **dict.fromkeys(("time", "timelimit", "time_limit", "time_min", "h_rt"), "walltime"),
    **dict.fromkeys(("mem", "mem_per_node", "h_vmem"), "memory"),
    **dict.fromkeys(("cpus_per_task", "cpus", "ncpus", "ppn"), "cores"),
    "job_cpu": "cores",
}
_JOB_WORKERS = ("ntasks", "tasks", "ntasks_per_node", "tasks_per_node")
_JOB_GPUS = ("gres", "gpus", "gpus_per_node", "gpus_per_task", "ngpus")
_JOB_FLAGS = ("qos", "constraint", "exclude", "nodelist", "reservation", "exclusive", "licenses", "requeue")


def is_trainer_key(name: str) -> bool:
    """Return whether a name is a setting of `lightning.Trainer` or of a recipe's training block."""
    return name in _TRAINER_WORDS or any(name in (parameters(ref) or ()) for ref in _TRAINER_SIGNATURES)


def remembered(row: Backend) -> frozenset[str]:
    """Return the options of a backend whose package is not installed; empty where its own signatures say them."""
    if installed(row.package) or not row.remembered:
        return frozenset()
    return row.remembered.union(*(parameters(one) or () for one in row.signatures)) - {*row.controlled}


def owners(name: str) -> tuple[str, ...]:
    """Return the backends that accept an option, in the order of the table."""
    return tuple(row.name for row in BACKENDS.values() if has_option(row, name) or name in remembered(row))


def _job_word(row: Backend | None, name: str, value: Any) -> str:
    """Return how a word of job scripts is written as an option of a scheduler; "" where it is none."""
    if row is None or row.scheduler is None:
        return ""
    word, options = _plain(name), frozenset(allowed_options(row) or remembered(row))
    meant = _JOB_OPTIONS.get(word)
    if meant in options:
        both = word in ("cpus_per_task", "cpus") and "job_cpu" in options
        more = ", and job_cpu where --cpus-per-task is to be another number" if both else ""
        return f"it is called {meant} here: {meant}: {_example(meant, value)}{more}"
    if word in _JOB_WORKERS and options:
        return "the number of workers is n_workers, beside env; a job of several workers has processes: 4"
    if "job_extra_directives" not in options or word not in (*_JOB_GPUS, *_JOB_FLAGS, *_JOB_OPTIONS):
        return ""
    flag, gpu = row.scheduler.flag, row.scheduler.gpu
    if flag and word != "ngpus":
        text = word.replace("_", "-") if value is True else f"{word.replace('_', '-')}={value}"
        return (
            f'it is a line of job_extra_directives here: job_extra_directives: ["{flag.format(text=text)}"]'
        )
    if word in _JOB_GPUS and gpu:
        return f"a GPU is asked for by {gpu.partition(':')[0]} here: {gpu}"
    return f"it is a line of job_extra_directives here, as {row.name} writes it"


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _example(meant: str | None, value: Any) -> str:
    """Return the value as YAML has it; where it is no text, what one is like."""
    whole = is_whole(value)
    text = shown(value).strip("'\"") if isinstance(value, str) and value else ""
    if meant == "walltime":
        return f'"{text}"' if text else '"4:00:00"'
    if meant == "memory":  # a number alone is megabytes to most schedulers
        return f"{value}MB" if whole or text.isdigit() else text or "16GB"
    if meant == "cores":
        return str(value) if whole else "4"
    return text or "gpu"


def known_to_be_wrong(row: Backend, name: str) -> bool:
    """Whether an option of a backend that is not installed is one of another, or nearly one of its own."""
    words = remembered(row)
    if name in words:
        return False
    if is_trainer_key(name) or name in _REPLACED or _job_word(row, name, None):
        return True
    return (
        bool(owners(name) or did_you_mean(name, words)) if words else name in _TELLING and not row.scheduler
    )


def unknown_option(row: Backend, name: str, value: Any = None) -> str:
    """Return why an option that the row does not have is wrong, and what to do."""
    if told := _job_word(row, name, value):
        return f"unknown option of {row.name}: {told}"
    instead = f"; under {row.name} {row.instead[name]}" if name in row.instead else ""
    if name in _REPLACED:
        return _REPLACED[name]
    if others := owners(name):
        return f"belongs to {', '.join(others)}, not to {row.name}{instead}"
    if is_trainer_key(name):
        return TO_TRAINER
    guess = did_you_mean(name, allowed_options(row) or remembered(row))
    takes = "" if guess or instead else f". It takes the parameters of {row.cluster.replace(':', '.')}"
    return f"unknown option of {row.name}{instead or takes}.{guess}"


def unknown_key(row: Backend | None, name: str, value: Any, known: tuple[str, ...]) -> str:
    """Return why a key beside `env` is wrong, and what to do; empty where it is like no key that means anything."""
    if row is not None and name in row.controlled:
        return f"unknown key: {row.controlled[name]}"
    if name in _REPLACED:
        return _REPLACED[name]
    having = owners(name)
    if row is not None and row.name not in having and (told := _job_word(row, name, value)):
        return f"unknown key: under options {told}"
    if row is not None and row.name in having:
        return f"belongs under options: write options: {{{name}: {shown(value, name)}}}"
    if having:
        not_here = "" if row is None else f", not of {row.name}"
        return f"belongs under options of {', '.join(having)}{not_here}"
    if is_trainer_key(name):
        return TO_TRAINER
    if name in _RENAMED:
        return f"unknown key: it is called {_RENAMED[name]} here"
    if (meant := _JOB_OPTIONS.get(_plain(name))) in ("queue", "walltime"):
        return f"unknown key: it is called {meant} under options of {', '.join(owners(meant))}"
    guess = did_you_mean(name, known)
    if not guess and row is not None:
        guess = did_you_mean(name, allowed_options(row) or remembered(row)).replace("?", ", under options?")
    return f"unknown key.{guess} Known: {', '.join(known)}" if guess else ""


def misplaced_in_trainer(name: str, known: tuple[str, ...]) -> str:
    """Return why a key of a `trainer` block belongs to `parallel`, and what to do; empty where it does not."""
    if name in known:
        return TO_PARALLEL
    if name == "parallel":
        return "is a block of its own: move it out of the trainer block"
    if is_trainer_key(name):
        return ""
    if name in _RENAMED:
        return f"{TO_PARALLEL}, where it is called {_RENAMED[name]}"
    if name in _TELLING:
        return "belongs to parallel, not to trainer: move it to the parallel block, under options"
    return ""
