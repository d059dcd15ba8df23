"""The right place of a name that is not accepted: another backend, `trainer`, another key, or a slip of the pen."""

from __future__ import annotations

from typing import Any

from espnet3.parallel.backends.backend import Backend
from espnet3.parallel.backends.loading import allowed_options, has_option
from espnet3.parallel.backends.table import BACKENDS
from espnet3.parallel.messages import did_you_mean, shown

TO_TRAINER = "belongs to trainer, not to parallel: move it to the trainer block"
TO_PARALLEL = "belongs to parallel, not to trainer: move it to the parallel block"

# Parameters of lightning.Trainer, which takes seconds to import, and two keys of a recipe's configuration.
_TRAINER_WORDS = {
    *("accelerator", "strategy", "devices", "num_nodes", "precision", "logger", "callbacks", "fast_dev_run"),
    *("max_epochs", "min_epochs", "max_steps", "min_steps", "max_time", "limit_train_batches", "profiler"),
    *("limit_val_batches", "limit_test_batches", "limit_predict_batches", "overfit_batches", "benchmark"),
    *(
        "val_check_interval",
        "check_val_every_n_epoch",
        "num_sanity_val_steps",
        "log_every_n_steps",
        "plugins",
    ),
    *("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "accumulate_grad_batches"),
    *("gradient_clip_val", "gradient_clip_algorithm", "deterministic", "inference_mode", "detect_anomaly"),
    *("use_distributed_sampler", "barebones", "sync_batchnorm", "reload_dataloaders_every_n_epochs"),
    *("default_root_dir", "num_device", "trainer"),
}
# Options of jobs that a block of another kind hardly means by anything else.
_OF_JOBS = {
    *("queue", "account", "project", "walltime", "cores", "memory", "disk", "resource_spec", "shebang"),
    *("job_extra_directives", "job_directives_skip", "job_script_prologue", "job_name", "log_directory"),
    "worker_extra_args",
}
_OF_MACHINES = {"hosts", "connect_options", "remote_python", "image", "namespace", "node_selector"}
# Names of ESPnet2 scripts.
_RENAMED = {"nj": "n_workers", "inference_nj": "n_workers", "num_workers": "n_workers"}
_COMMAND = (
    "there is no such key: env chooses what starts the work (local for run.pl, sge for queue.pl, slurm for "
    "slurm.pl), and options hold what a job asks for"
)
_GPUS = (
    "there is no such key: GPUs come with the backend. Write env: local_gpu for those of this machine; a scheduler "
    'is asked for them under options, such as job_extra_directives: ["--gres=gpu:1"] of slurm'
)
_REPLACED = {
    "allow_overwrite_lock": "there is no such key, and no need of it: a lock that an interrupted run has left is "
    "noticed by its heartbeat. Leave it out",
    **dict.fromkeys(("train_cmd", "cuda_cmd", "decode_cmd", "cmd"), _COMMAND),
    **dict.fromkeys(("gpu_inference", "ngpu", "gpu"), _GPUS),
}
# Words of job scripts (#SBATCH --partition, --gres, --time): an option of dask-jobqueue, or a directive.
_JOB_OPTIONS = {
    "partition": "queue",
    **dict.fromkeys(("time", "time_limit", "h_rt"), "walltime"),
    **dict.fromkeys(("mem", "h_vmem"), "memory"),
    **dict.fromkeys(("cpus_per_task", "cpus", "ncpus", "ppn"), "cores"),
}
_JOB_WORKERS = ("ntasks", "ntasks_per_node")
_JOB_GPUS = ("gres", "gpus", "gpus_per_node", "ngpus")
_JOB_FLAGS = ("qos", "constraint", "exclude", "nodelist", "reservation", "exclusive")


def owners(name: str) -> tuple[str, ...]:
    """Return the backends that accept an option, in the order of the table."""
    return tuple(row.name for row in BACKENDS.values() if _may_own(row, name))


def _may_own(row: Backend, name: str) -> bool:
    has = has_option(row, name)
    return bool(row.scheduler and name in _OF_JOBS) if has is None else has


def surely_wrong(row: Backend, name: str) -> bool:
    """Whether a backend has no option of this name, its package being installed or not."""
    return name in _TRAINER_WORDS or name in _REPLACED or (row.scheduler is None and name in _OF_JOBS)


def unknown_option(row: Backend | None, name: str, value: Any) -> str:
    """Return why an option that the row does not have is wrong, and what to do; "" where that depends on the row."""
    if row is None:
        if name == "n_workers":
            return "set n_workers beside env"
        return TO_TRAINER if name in _TRAINER_WORDS and not owners(name) else ""
    if told := _job_word(row, name, value):
        return f"unknown option of {row.name}: {told}"
    if name in _REPLACED:
        return _REPLACED[name]
    instead = f"; under {row.name} {row.instead[name]}" if name in row.instead else ""
    if others := owners(name):
        return f"belongs to {', '.join(others)}, not to {row.name}{instead}"
    if name in _TRAINER_WORDS:
        return TO_TRAINER
    guess = did_you_mean(name, allowed_options(row))
    takes = "" if guess or instead else f". It takes the parameters of {row.cluster.replace(':', '.')}"
    return f"unknown option of {row.name}{instead or takes}.{guess}"


def unknown_key(row: Backend | None, name: str, value: Any, known: tuple[str, ...]) -> str:
    """Return why a key beside `env` is wrong, and what to do; empty where it is like no key that means anything."""
    if row is not None and name in row.controlled:
        return f"unknown key: {row.controlled[name]}"
    if name in _REPLACED:
        return _REPLACED[name]
    if name in _RENAMED:
        return f"unknown key: it is called {_RENAMED[name]} here"
    # a block with a key of its own imports no package but that of its env
    having = owners(name) if name in _OF_JOBS or name in _OF_MACHINES else ()
    if row is not None and (row.name in having or has_option(row, name)):
        return f"belongs under options: write options: {{{name}: {shown(value, name)}}}"
    if row is not None and (told := _job_word(row, name, value)):
        return f"unknown key: under options {told}"
    if having:
        not_here = "" if row is None else f", not of {row.name}"
        return f"belongs under options of {', '.join(having)}{not_here}"
    if name in _TRAINER_WORDS:
        return TO_TRAINER
    if (meant := _JOB_OPTIONS.get(name)) in ("queue", "walltime"):
        return f"unknown key: it is called {meant} under options of {', '.join(owners(meant))}"
    guess = did_you_mean(name, known)
    if not guess and row is not None:
        guess = did_you_mean(name, allowed_options(row)).replace("?", ", under options?")
    return f"unknown key.{guess} Known: {', '.join(known)}" if guess else ""


def misplaced_in_trainer(name: str, known: tuple[str, ...]) -> str:
    """Return why a key of a `trainer` block belongs to `parallel`, and what to do; empty where it does not."""
    if name in known:
        return TO_PARALLEL
    if name == "parallel":
        return "is a block of its own: move it out of the trainer block"
    if name in _RENAMED:
        return f"{TO_PARALLEL}, where it is called {_RENAMED[name]}"
    return f"{TO_PARALLEL}, under options" if name in _OF_JOBS else ""


def _job_word(row: Backend, name: str, value: Any) -> str:
    """Return how a word of job scripts is written as an option of a scheduler; "" for another word."""
    word = name.lstrip("-").replace("-", "_").lower()
    if row.scheduler is None:
        return ""
    meant = _JOB_OPTIONS.get(word)
    if meant is not None and has_option(row, meant):
        return f"it is called {meant} here: {meant}: {shown(value, name)}"
    if word in _JOB_WORKERS:
        return "the number of workers is n_workers, beside env; a job of several workers has processes: 4"
    if word in _JOB_GPUS and (not row.scheduler.flag or word == "ngpus"):
        return f"a GPU is asked for so here: {row.scheduler.gpu or 'a line of job_extra_directives'}"
    if meant is None and word not in (*_JOB_GPUS, *_JOB_FLAGS):
        return ""
    text = word.replace("_", "-") if value is True else f"{word.replace('_', '-')}={value}"
    line = f': job_extra_directives: ["{row.scheduler.flag.format(text=text)}"]' if row.scheduler.flag else ""
    return f"it is a line of job_extra_directives here{line}"
