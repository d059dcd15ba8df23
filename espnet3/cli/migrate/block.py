"""The block: which env, how many workers, and what each one asks for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from espnet3.cli.migrate.calls import Call, flags_of
from espnet3.cli.migrate.options_file import OptionsFile
from espnet3.cli.migrate.origin import Setting, mistake
from espnet3.cli.migrate.qsub import is_pbs, read_pbs, read_sge
from espnet3.cli.migrate.sbatch import read_sbatch
from espnet3.cli.migrate.wanted import Entry, Wanted, size_text

_READERS = {"slurm": read_sbatch, "sge": read_sge, "pbs": read_pbs}
_PROGRAMS = {"slurm": "sbatch", "sge": "qsub", "pbs": "qsub"}
_GUESSES = {
    "cores": Entry(1, "nothing asks for more (--num-threads)"),
    "memory": Entry("4GiB", "a guess, since nothing asks for memory (--mem): set what your model takes"),
    "walltime": Entry(
        "04:00:00", "a guess, since nothing asks for a time: workers that reach it are replaced"
    ),
}
# Torque's word for a number of cores of a node stands in `nodes`, PBS's in `select`: both say it all
_WHOLE = ("select", "nodes")
_PATH_SH = (
    "path.sh, which each job sourced first: workers use the Python that starts them; what else path.sh sets up "
    "(modules, variables) goes to options.job_script_prologue, a list of shell lines"
)


@dataclass(slots=True)
class Block:
    """A `parallel` block whose values say where they came from.

    Attributes:
        env: The backend.
        n_workers: How many workers.
        options: What each asks for, in the order in which it is printed; a list holds an entry for each of its items.
        notes: What has no equivalent, in a sentence each.
    """

    env: Entry
    n_workers: Entry
    options: dict[str, Entry | list[Entry]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def make_block(
    call: Call, jobs: Entry, file: OptionsFile | None = None, hosts: Sequence[Setting] = ()
) -> Block:
    """Return the block for a command."""
    why = f'{call.setting.origin}, {call.variable}="{call.setting.value}"'
    limit = call.options.get("max_jobs_run")
    wanted = Wanted(at_once=Entry(limit.value, str(limit.origin)) if limit else None)
    if call.script.env == "local":
        return _local(call, jobs, why, wanted)
    if call.script.env == "ssh":
        return _ssh(call, jobs, why, wanted, hosts)
    assert file is not None
    flags = flags_of(call, file, wanted.notes)
    env = call.script.env
    if env == "sge" and is_pbs(flags):
        env, why = "pbs", f"{why}; its -l is that of PBS or Torque, not of Grid Engine"
    _check_program(call, file, env)
    _READERS[env](flags, wanted)
    block = Block(Entry(env, why), _workers(jobs, wanted, call), notes=wanted.notes)
    _size(wanted, block)
    block.options.update(wanted.options)
    _GATHER[env](wanted, block)
    block.options.setdefault("walltime", _GUESSES["walltime"])
    order = ["queue", "account", "project", "job_name", "cores", "memory", "resource_spec", "walltime"]
    order = [name for name in order if name in block.options]
    block.options = {name: block.options[name] for name in (*order, *block.options)}
    gpus = call.options.get("gpu")
    if gpus is not None and gpus.value != "0" and not _asks_for_gpus(block.options.values()):
        block.notes.append(
            f"--gpu {gpus.value} ({gpus.origin}): {file.name} does not say how this scheduler is asked for "
            'GPUs; add it to options.job_extra_directives, such as "--gres=gpu:1" of SLURM'
        )
    block.notes.append(_PATH_SH)
    return block


def _workers(jobs: Entry, wanted: Wanted, call: Call) -> Entry:
    """Return the number of workers: that of the jobs, or of those that may run at a time."""
    if wanted.at_once is None:
        return jobs
    value = wanted.at_once.value
    if not value.isdigit() or not int(value):
        raise mistake(call.setting.origin, f"--max-jobs-run {value}: must be a positive whole number")
    if int(value) >= jobs.value:
        return jobs
    return Entry(
        int(value), f"--max-jobs-run {value} of {wanted.at_once.why}, for {jobs.value} jobs ({jobs.why})"
    )


def _check_program(call: Call, file: OptionsFile, env: str) -> None:
    program = os.path.basename(file.command.value.split()[0])
    if program != _PROGRAMS[env]:
        raise mistake(
            file.command.origin,
            f"the submit command is {program}, but {call.variable} = {call.setting.value!r} ({call.setting.origin}) "
            f"needs {_PROGRAMS[env]}: give the file that {call.script.name} reads ({call.script.file}), or change "
            "the command",
        )


def _size(wanted: Wanted, block: Block) -> None:
    cores = wanted.cores or _GUESSES["cores"]
    block.options["cores"] = cores
    memory = wanted.memory
    if memory is None:
        block.options["memory"] = _GUESSES["memory"]
    elif wanted.memory_per_core and cores.value > 1:
        each = size_text(memory.value)
        block.options["memory"] = Entry(
            size_text(memory.value * cores.value), f"{memory.why}: {each} for each of {cores.value} cores"
        )
    else:
        block.options["memory"] = Entry(size_text(memory.value), memory.why)


def _gather_slurm(wanted: Wanted, block: Block) -> None:
    _directives(list(wanted.directives.values()), block)


def _gather_sge(wanted: Wanted, block: Block) -> None:
    if wanted.resources:
        block.options["resource_spec"] = _joined(wanted.resources.values(), ",")
    _directives(list(wanted.directives.values()), block)


def _gather_pbs(wanted: Wanted, block: Block) -> None:
    """Fill in resources: PBS is given its own words where they say more than cores and memory do."""
    rest = dict(wanted.resources)
    whole = [rest.pop(name) for name in _WHOLE if name in rest]
    gpus = rest.pop("ngpus", None)
    if whole:
        block.options["resource_spec"] = _joined(whole, ",")
        if wanted.memory is not None and ":mem=" not in whole[0].value:
            rest["mem"] = Entry(f"mem={wanted.memory.value // 1024**2}mb", wanted.memory.why)
    elif gpus is not None:
        cores, memory = wanted.cores or _GUESSES["cores"], wanted.memory
        chunk = f"select=1:ncpus={cores.value}:{gpus.value}"
        if memory is not None:
            size = memory.value * (cores.value if wanted.memory_per_core else 1)
            chunk += f":mem={size // 1024**2}mb"
        block.options["resource_spec"] = Entry(chunk, f"{gpus.why}; the rest is cores and memory")
    lines = [*wanted.directives.values(), *(Entry(f"-l {each.value}", each.why) for each in rest.values())]
    _directives(lines, block)


_GATHER = {"slurm": _gather_slurm, "sge": _gather_sge, "pbs": _gather_pbs}


def _joined(entries: Iterable[Entry], sign: str) -> Entry:
    entries = list(entries)
    whys = list(dict.fromkeys(each.why for each in entries))
    return Entry(sign.join(each.value for each in entries), "; ".join(whys))


def _directives(entries: list[Entry], block: Block) -> None:
    if entries:
        block.options["job_extra_directives"] = entries


def _asks_for_gpus(values: Iterable[Entry | list[Entry]]) -> bool:
    entries = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return any(word in str(each.value) for each in entries for word in ("gpu", "gres", "cuda"))


def _local(call: Call, jobs: Entry, why: str, wanted: Wanted) -> Block:
    """Return the block of run.pl, which ignores all options but two."""
    options = dict(call.options)
    gpus = options.pop("gpu", Setting("0", call.setting.origin))
    threads = options.pop("num_threads", None)
    for name in ("max_jobs_run", "config"):
        options.pop(name, None)
    on_gpu = gpus.value != "0"
    workers = _workers(jobs, wanted, call)
    bound = "at most the GPUs of the machine" if on_gpu else "no more than the machine has processors"
    if workers is jobs:
        workers = Entry(jobs.value, f"{jobs.why}; {bound}")
    if on_gpu:
        why = f"{why} and --gpu {gpus.value}"
    block = Block(Entry("local_gpu" if on_gpu else "local", why), workers)
    if threads is not None:
        block.options["threads_per_worker"] = Entry(_whole(threads, call, "num_threads"), str(threads.origin))
    elif not on_gpu:
        block.options["threads_per_worker"] = Entry(
            1, f"a job of {call.script.name} works on one item at a time"
        )
    ignored = [f"--{name.replace('_', '-')} {each.value}" for name, each in options.items()]
    ignored += [call.flags] if call.flags else []
    for text in ignored:
        more = (
            "; memory_limit under options holds a worker to its memory" if text.startswith("--mem ") else ""
        )
        block.notes.append(f"{text} ({call.setting.origin}): {call.script.name} ignored it{more}")
    return block


def _ssh(call: Call, jobs: Entry, why: str, wanted: Wanted, hosts: Sequence[Setting]) -> Block:
    if not hosts:
        raise mistake(
            call.setting.origin,
            f"{call.variable} = {call.setting.value!r}: ssh.pl reads its hosts from {call.script.file}, which is not "
            "beside this file; name it on the command line too",
        )
    block = Block(Entry("ssh", why), _workers(jobs, wanted, call))
    first = Entry("localhost", "where the scheduler of the workers runs; ssh must reach it too")
    block.options["hosts"] = [first, *(Entry(host.value, str(host.origin)) for host in hosts)]
    for name, each in call.options.items():
        if name not in ("max_jobs_run", "config"):
            block.notes.append(f"--{name.replace('_', '-')} {each.value} ({each.origin}): ssh.pl ignored it")
    return block


def _whole(setting: Setting, call: Call, name: str) -> int:
    if not setting.value.isdigit() or not int(setting.value):
        raise mistake(
            setting.origin, f"{call.variable}: --{name.replace('_', '-')} {setting.value}: must be 1 or more"
        )
    return int(setting.value)
