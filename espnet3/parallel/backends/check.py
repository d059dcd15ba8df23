"""Everything wrong with the options of a backend, and the right place of an unknown key."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from espnet3.parallel.backends import BACKENDS, PER_HOST, STRATEGIES, Backend, Kind
from espnet3.parallel.backends.backend import allowed_options, asked, has_option, installed, parameters
from espnet3.parallel.checks import FLAG, Fits, Location, Sort, Whole, is_number, lists, problem
from espnet3.parallel.messages import did_you_mean, named, shown

if TYPE_CHECKING:
    from espnet3.parallel.backends.scheduler import Scheduler

TO_TRAINER = "belongs to trainer, not to parallel: move it to the trainer block"
TO_PARALLEL = "belongs to parallel, not to trainer: move it to the parallel block"

# Parameters of lightning.Trainer, which takes seconds to import, and two keys of a recipe's configuration.
OF_TRAINER = {
    *("accelerator", "strategy", "devices", "num_nodes", "precision", "logger", "callbacks", "fast_dev_run"),
    *("max_epochs", "min_epochs", "max_steps", "min_steps", "max_time", "limit_train_batches", "profiler"),
    *("limit_val_batches", "limit_test_batches", "limit_predict_batches", "overfit_batches", "benchmark"),
    *("val_check_interval", "check_val_every_n_epoch", "num_sanity_val_steps", "log_every_n_steps"),
    *("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "accumulate_grad_batches"),
    *("gradient_clip_val", "gradient_clip_algorithm", "deterministic", "inference_mode", "detect_anomaly"),
    *("use_distributed_sampler", "barebones", "sync_batchnorm", "reload_dataloaders_every_n_epochs"),
    *("default_root_dir", "num_device", "trainer"),
}
# Options of other envs, for a key beside `env`: their packages are not imported for each key of a user's own.
_OF_OTHERS = {
    *("queue", "account", "project", "walltime", "cores", "memory", "disk", "resource_spec", "shebang"),
    *("job_extra_directives", "job_directives_skip", "job_script_prologue", "job_name", "log_directory"),
    *("worker_extra_args", "hosts", "connect_options", "remote_python", "image", "namespace"),
}
# words of ESPnet2 and of job scripts, with their equivalents here
_NUMBER_OF_WORKERS = ("nj", "inference_nj", "num_workers", "ntasks")
_RENAMED = {"partition": "queue", "time": "walltime", "mem": "memory", "cpus_per_task": "cores"}
_TWINS = {"account": "project", "project": "account"}  # one option of two names, by the scheduler
_COMMAND = (
    "there is no such key: env chooses what starts the work (local for run.pl, sge for queue.pl, slurm for "
    "slurm.pl), and options hold what a job asks for"
)
_GPUS = (
    "there is no such key: GPUs come with the backend. Write env: local_gpu for those of this machine; a scheduler "
    'is asked for them under options, such as job_extra_directives: ["--gres=gpu:1"] of slurm'
)
_BATCHES = (
    "there is no such key: it is an argument of a runner, and stands beside model in inference.yaml; a training has "
    "dataloader: {train: {batch_size: ...}}"
)
_MEANT = {  # names that mean something else or nothing here, and the fix
    **dict.fromkeys(OF_TRAINER, TO_TRAINER),
    **{name: f"{TO_TRAINER}, as strategy: {name}" for name in STRATEGIES},
    **{name: f"it is called {meant} here, under options" for name, meant in _RENAMED.items()},
    **dict.fromkeys(_NUMBER_OF_WORKERS, "it is called n_workers here, beside env"),
    **dict.fromkeys(("train_cmd", "cuda_cmd", "decode_cmd", "cmd"), _COMMAND),
    **dict.fromkeys(("gpu_inference", "ngpu", "num_gpus", "n_gpus", "gpu", "gpus", "gres"), _GPUS),
    "batch_size": _BATCHES,
}
MISSING = "???"  # OmegaConf's mark of a missing value, which `ParallelConfig` has reported already


def is_missing(value: Any) -> bool:
    """Return whether a value is the mark of a missing one."""
    return isinstance(value, str) and value == MISSING


def option_problems(row: Backend | None, options: Any) -> list[str]:
    """Return the mistakes in `options`, one string each: place, value, reason and fix."""
    if is_missing(options):
        return []
    if not isinstance(options, dict):
        refusal = f"must be a mapping of option names to values, not {type(options).__name__}"
        return [problem("options", options, f"{refusal}; write options: {{}} for none")]
    problems = []
    for name, value in options.items():
        reason = _refused_name(row, name) or _refused_value(row, name, options)
        if reason:
            problems.append(problem(f"options.{named(name)}", value, reason))
    if row is None:
        return problems
    for name, example in row.required.items():
        if (asked(row, options, name) if installed(row.package) else options.get(name)) is None:
            problems.append(f"options.{name} is missing: {row.name} requires it, such as {example}")
    return problems


def _refused_name(row: Backend | None, name: Any) -> str:
    if not isinstance(name, str):
        return f"the name of an option is text, not {type(name).__name__}: put it in quotes"
    if row is None:
        return "set n_workers beside env" if name == "n_workers" else _MEANT.get(name, "")
    if name in row.controlled:
        return f"not an option of {row.name}: {row.controlled[name]}"
    if has_option(row, name):
        return ""
    if name in _MEANT:
        return _MEANT[name]
    # without its package the option may be right, and building the cluster names the package
    is_open = any(parameters(reference) is None for reference in row.signatures)
    instead = _instead(row, name)
    if (not is_open or name in _OF_OTHERS) and (others := _owners(name)):
        return f"belongs to {others}, not to {row.name}{instead}"
    if is_open:
        return ""
    guess = did_you_mean(name, allowed_options(row))
    takes = "" if guess or instead else f". It takes the parameters of {row.cluster.replace(':', '.')}"
    lines = "; job_extra_directives has other directives" if takes and row.scheduler else ""
    return f"unknown option of {row.name}{instead or takes}{lines}.{guess}"


def is_option(name: Any) -> bool:
    """Return whether a name is an option of some env."""
    return isinstance(name, str) and (name in _OF_OTHERS or bool(_owners(name)))


def _instead(row: Backend | None, name: str) -> str:
    other = _TWINS.get(name)
    if row is None or row.scheduler is None or other is None or not has_option(row, other):
        return ""
    return f"; under {row.name} it is called {other}"


def _owners(name: str) -> str:
    return ", ".join(each.name for each in BACKENDS.values() if has_option(each, name))


def unknown_key(row: Backend | None, name: str, value: Any, known: tuple[str, ...]) -> str:
    """Return the mistake in a key beside `env`, and the fix; "" for a key that resembles no known name."""
    if row is not None and name in row.controlled:
        return f"unknown key: {row.controlled[name]}"
    if row is not None and has_option(row, name):
        return f"belongs under options: write options: {{{name}: {shown(value, name)}}}"
    if name in _OF_OTHERS:
        not_here = f", not of {row.name}" if row else ""
        return f"belongs under options of {_owners(name) or 'another env'}{not_here}{_instead(row, name)}"
    if name in _MEANT:
        return _MEANT[name]
    guess = did_you_mean(name, known)
    if not guess and row is not None:
        guess = did_you_mean(name, allowed_options(row)).replace("?", ", under options?")
    return f"unknown key.{guess} Known: {', '.join(known)}" if guess else ""


def misplaced_in_trainer(name: str, known: tuple[str, ...]) -> str:
    """Return the right place of a key of `parallel` in a `trainer` block; "" for another key."""
    meant = "n_workers" if name in _NUMBER_OF_WORKERS else name
    if meant not in (*known, "parallel") and name not in _OF_OTHERS:
        return ""
    renamed = f", where it is called {meant}" if name != meant else ""
    return f"{TO_PARALLEL}{', under options' if name in _OF_OTHERS else ''}{renamed}"


def _refused_value(row: Backend | None, name: str, options: Mapping[Any, Any]) -> str:
    value, hosts = options[name], options.get("hosts") or []
    if row is None or value is None or value is MISSING:
        return ""
    if row.scheduler is not None:
        return _refused_by_scheduler(row.scheduler, name, value)
    sort = (_OF_PODS if row.kind is Kind.KUBERNETES else _OF_DASK).get(name)
    if sort is not None and (refusal := sort.refusal(value)):
        return refusal
    per_host = name in PER_HOST and isinstance(value, list) and isinstance(hosts, list)
    if per_host and len(value) not in (1, len(hosts)):
        return (
            f"the list has {len(value)} entries for {len(hosts)} hosts: write one for each host, in the order of "
            "hosts, or a single one for all"
        )
    return ""


def _is(kind: type | tuple[type, ...]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _is_or_lists(kind: type) -> Callable[[Any], bool]:
    return lambda value: lists(kind)(value if isinstance(value, list) else [value])


def _are_variables(value: Any) -> bool:
    return isinstance(value, Mapping) and not any(
        not str(name) or "=" in str(name) or "\0" in f"{name}{text}" for name, text in value.items()
    )


# patterns are texts: `re` compiles one at its first use, for which no start waits
_ENDLESS = ("unlimited", "infinite", "infinity")
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_WORDS = r"(\d+(?:\.\d+)?)\s*(d(?:ays?)?|h(?:ours?|rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)(?![a-z])"
_SIZE = r"(\d+(?:\.\d+)?(?:e\d+)?)\s*(?:([kmgtp])(i?))?b?"


def walltime_seconds(value: Any, *, minutes_last: bool = False) -> float | None:
    """Return the seconds of a walltime such as "04:00:00", "1-12:00:00", "90m", "2 days" or "UNLIMITED" (infinity)."""
    text = str(value).strip().lower()
    if text in _ENDLESS:
        return math.inf
    if re.fullmatch(r"\d+-(\d+:){0,2}\d+|(\d+:){1,3}\d+", text):
        numbers = [int(number) for number in re.split("[-:]", text)]
        if "-" in text:  # SLURM: days-hours[:minutes[:seconds]]
            numbers = [*numbers, 0, 0][:4]
        elif minutes_last and len(numbers) == 2:
            numbers.append(0)
        return sum(n * w for n, w in zip(reversed(numbers), (1, 60, 3600, 86400), strict=False))
    found = re.findall(_WORDS, text)
    if found and not re.sub(r"[\s,]|and", "", re.sub(_WORDS, "", text)):
        return round(sum(float(number) * _UNITS[unit[0]] for number, unit in found))
    return None


def clock(seconds: float, *, writes_seconds: bool = True) -> str:
    """Write seconds as "HH:MM:SS", or as "HH:MM" (rounded up) without `writes_seconds`."""
    seconds = int(seconds)
    if not writes_seconds:
        minutes = -(-seconds // 60)
        return f"{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def size_in_bytes(text: str) -> int:
    """Return the bytes of a size such as "4GB" or "4 GiB"; 0 for another text."""
    found = re.fullmatch(_SIZE, text.strip(), re.IGNORECASE)
    if found is None:
        return 0
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** "bkmgtp".index((unit or "b").lower()))


def is_size(value: Any) -> bool:
    """Return whether it is a size in bytes, such as "32GB" or 34359738368."""
    if is_number(value):
        return bool(value >= 1 << 20)  # "memory: 32" means 32 bytes to Dask alone
    return isinstance(value, str) and size_in_bytes(value) > 0 and not value.strip().isdigit()


def is_memory_limit(value: Any) -> bool:
    """Return whether it is a limit of a local worker's memory: a size, a share of all memory, "auto", or 0 for none."""
    if isinstance(value, str):
        text = value.strip().lower()
        return text in ("auto", "0") or is_size(text) or (text.isdigit() and is_size(int(text)))
    return is_number(value) and (0 <= value <= 1 or is_size(value))


_MAPPINGS: dict[str, Sort] = {
    name: Fits(_is(Mapping), f"a mapping of names to values, such as {name}: {{port: 0}}")
    for name in ("scheduler_options", "worker_options")
}
_OF_DASK: dict[str, Sort] = {
    **_MAPPINGS,
    **dict.fromkeys(("threads_per_worker", "nthreads"), Whole(least=1, example="threads_per_worker: 4")),
    "processes": FLAG,
    "memory_limit": Fits(
        is_memory_limit,
        "a size with its unit, such as memory_limit: 4GB, a share such as 0.5, auto, or 0 for none",
    ),
    **dict.fromkeys(("host", "interface", "protocol"), Fits(_is(str), "text")),
    "local_directory": Location(),
    "preload": Fits(_is_or_lists(str), "a module, or a list of them, such as preload: [my_tables]"),
    "resources": Fits(_is(Mapping), "a mapping of names to numbers, such as resources: {licence: 1}"),
    "env": Fits(
        _are_variables,
        "a mapping of variables to values, such as env: {OMP_NUM_THREADS: 1}; a name has no =, and nothing a NUL",
    ),
    "hosts": Fits(
        lambda value: value != [] and lists(str)(value),
        "a list of host names, such as [node1, node2]; the first runs the scheduler",
    ),
    "connect_options": Fits(_is_or_lists(Mapping), "a mapping, or a list with one for each host"),
    "remote_python": Fits(_is_or_lists(str), "the path of a Python, or a list with one for each host"),
}
# Fields of pods that are read here; the API server checks the rest itself.
_OF_PODS: dict[str, Sort] = {
    **_MAPPINGS,
    "resources": Fits(
        lambda value: isinstance(value, Mapping) and all(map(_is(Mapping), value.values())),
        "such as resources: {requests: {cpu: 1}, limits: {memory: 16Gi}}",
    ),
    "image_pull_secrets": Fits(lists(str), "a list of names of secrets"),
    "env": Fits(_is((Mapping, list)), "a mapping of names to values, or a list of {name: ..., value: ...}"),
    "volume_mounts": Fits(
        lists(Mapping), "a list of mappings, as in a pod: volume_mounts: [{name: data, mountPath: /data}]"
    ),
}
_LISTS = {"job_extra_directives", "job_script_prologue", "worker_extra_args", "job_directives_skip"}
_LISTS |= {"submit_command_extra", "cancel_command_extra"}
_IS_TEXT = Fits(lambda value: not isinstance(value, (Mapping, list, tuple)), "text or a number")
_OF_JOBS: dict[str, Sort] = {
    **_MAPPINGS,
    **dict.fromkeys(("memory", "disk"), Fits(is_size, "a size with its unit, such as 16GB")),
    **dict.fromkeys(("cores", "processes", "job_cpu", "ncpus"), Whole(least=1, example="4")),
    **dict.fromkeys(
        _LISTS,
        Fits(
            lambda value: isinstance(value, list) and not any(map(_IS_TEXT.must_be, value)),
            "a list of texts (dask-jobqueue would take a text apart, and YAML reads `- a: b` as a mapping)",
        ),
    ),
}


_CONTROL = r"[\x00-\x1f\x7f\x85\u2028\u2029]"
_BREAKS = (
    "holds a line break or another control character, which would begin a line of its own in the job's script"
)


def _breaks_lines(value: Any) -> bool:
    if isinstance(value, str):
        return re.search(_CONTROL, value) is not None
    if isinstance(value, Mapping):
        return any(_breaks_lines(each) for pair in value.items() for each in pair)
    return isinstance(value, (list, tuple)) and any(map(_breaks_lines, value))


def _refused_by_scheduler(scheduler: Scheduler, name: str, value: Any) -> str:
    described = not scheduler.mark  # it reads a description, in which a prologue is one value
    if (described or name != "job_script_prologue") and _breaks_lines(value):
        return _BREAKS
    if name == "walltime":
        return _refused_walltime(scheduler, value)
    if name == "job_extra_directives" and described:
        return Fits(_is(Mapping), "a mapping: {name: value}").refusal(value)
    if refusal := _OF_JOBS.get(name, _IS_TEXT).refusal(value):
        return refusal
    words = {"worker_extra_args": value, "python": [value], "worker_command": [value]}.get(name, ())
    try:
        for text in words:
            shlex.split(str(text))
    except ValueError as error:
        return f"cannot be read as words of a shell: {str(error).lower()}"
    return ""


def _refused_walltime(scheduler: Scheduler, value: Any) -> str:
    unit = 1 if scheduler.writes_seconds else 60  # YAML 1.1 reads 4:00:00 in base 60
    seconds = unit * int(value) if is_number(value) and value > 0 else 4 * 3600
    example = f'walltime: "{clock(seconds, writes_seconds=scheduler.writes_seconds)}"'
    if is_number(value):
        return f"YAML has read a time as a number, as it does with 4:00:00; write it in quotes: {example}"
    found = walltime_seconds(value, minutes_last=scheduler.minutes_last)
    if found == math.inf and not scheduler.unlimited:
        return f"this scheduler has no word for a job without an end; write a time, such as {example}"
    if found is None:
        return f"not a time; write it as {example}, or as 90m, 4h, 2 days"
    return ""
