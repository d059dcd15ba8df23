"""The flags of `sbatch` and `qsub` as options of a block."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from espnet3.cli.migrate.block import Block
from espnet3.cli.migrate.kaldi import Entry, by_flag
from espnet3.parallel.errors import ConfigError

_LOGS = "log_directory says where jobs write their logs"
_WATCHED = "jobs are submitted and watched from here"

# of sbatch
_SBATCH_OPTIONS = {
    **dict.fromkeys(("p", "partition"), "queue"),
    **dict.fromkeys(("A", "account"), "account"),
    **dict.fromkeys(("J", "job-name"), "job_name"),
}
_SBATCH_OURS = {
    **dict.fromkeys(("o", "output", "e", "error", "open-mode"), _LOGS),
    **dict.fromkeys(("a", "array", "W", "wait", "parsable", "quiet", "d", "dependency"), _WATCHED),
    **dict.fromkeys(("D", "chdir"), "workers start in the folder of the run"),
    "export": "left out, so that jobs get all variables of the submitting shell, PYTHONPATH and the like too",
    "hold": "a held worker would never come",
}

# of qsub, which is one program of Grid Engine and another of PBS and Torque
_QSUB_OPTIONS = {
    "sge": {"-q": "queue", "-P": "project", "-N": "job_name"},
    "pbs": {"-q": "queue", "-A": "account", "-N": "job_name"},
}
_QSUB_OURS = {
    "sge": {**dict.fromkeys(("-o", "-e"), _LOGS), **dict.fromkeys(("-t", "-sync", "-hold_jid"), _WATCHED)},
    "pbs": {**dict.fromkeys(("-o", "-e", "-j"), _LOGS), **dict.fromkeys(("-J", "-t"), _WATCHED)},
}
# every job script has -cwd and -j y, and its shell in the first line
_QSUB_DONE = {"sge": ("-cwd", "-j", "-S"), "pbs": ("-S",)}
_SGE_MEMORY = ("mem_free", "ram_free", "h_vmem", "s_vmem", "virtual_free", "h_rss", "rmem", "mem")
_PBS_MEMORY = ("mem", "pmem", "vmem")
_CHUNK = re.compile(r"(\w+)=([^:]*)")
_OF_PBS = re.compile(r"(?:^|\s)-l\s*(?:\S*,)?(?:walltime|nodes|select|ncpus)=")


def read_sbatch(flags: Sequence[Entry], block: Block) -> None:
    """Take flags of sbatch, of which a later one replaces an earlier one of its name."""
    for given in flags:
        for flag, *values in by_flag(_words(given)):
            name, _, value = flag[2:].partition("=") if flag.startswith("--") else (flag[1:2], "", flag[2:])
            # a value in quotes may hold spaces; a bracket of a host list needs no quotes
            written = " ".join(shlex.quote(each) if " " in each else each for each in (flag, *values))
            _take_sbatch(name, value or " ".join(values), written, given.why, block)


def _take_sbatch(name: str, value: str, written: str, why: str, block: Block) -> None:
    match name:
        case "time" | "t":
            block.take_time(value, why, unit=60)
        case "mem" | "mem-per-cpu":
            block.take_memory(value, why, unit=1024**2, per_core=name == "mem-per-cpu")
        case "cpus-per-task" | "c":
            block.take_cores(value, why)
        case "ntasks" | "n" | "ntasks-per-node" | "nodes" | "N":
            if value != "1":
                reason = "a worker is one task on one node; trainer.num_nodes is for training"
                block.leave_out(written, why, reason)
        case _ if name in _SBATCH_OPTIONS:
            block.take(block.options, _SBATCH_OPTIONS[name], value, why)
        case _ if name not in _SBATCH_OURS:
            block.take(block.directives, name, written, why)
        case _ if written != "--export=ALL":  # which is how sbatch is without it
            block.leave_out(written, why, _SBATCH_OURS[name])


def read_qsub(flags: Sequence[Entry], block: Block) -> None:
    """Take flags of the qsub of Grid Engine; resources that only PBS and Torque have make it theirs."""
    if block.env.value == "sge" and any(_OF_PBS.search(each.value) for each in flags):
        block.env = Entry("pbs", f"{block.env.why}; its -l is that of PBS or Torque, not of Grid Engine")
    for given in flags:
        for name, *values in by_flag(_words(given)):
            _take_qsub(block.env.value, name, " ".join(values), given.why, block)


def _take_qsub(env: str, name: str, value: str, why: str, block: Block) -> None:
    written = f"{name} {value}".rstrip()
    if name in _QSUB_OPTIONS[env]:
        block.take(block.options, _QSUB_OPTIONS[env][name], value, why)
    elif name.startswith("-l"):  # -l mem_free=2G or -lmem_free=2G
        for each in (name[2:] or value).split(","):
            _take_resource(env, each, why, block)
    elif name in _QSUB_OURS[env]:
        block.leave_out(written, why, _QSUB_OURS[env][name])
    elif name == "-W" and value.startswith(("block", "depend")):
        block.leave_out(written, why, _WATCHED)
    elif name == "-tc" and env == "sge":
        block.at_once = Entry(value, why)
    elif name == "-v" and name in block.directives:  # variables of several stand in one
        before = block.directives[name]
        block.directives[name] = Entry(f"{before.value},{value}", f"{before.why}; {why}")
    elif name not in _QSUB_DONE[env]:
        if name == "-pe":
            block.take_cores(value.rpartition(" ")[2].partition("-")[0], why)
        block.take(block.directives, name, written, why)


def _take_resource(env: str, text: str, why: str, block: Block) -> None:
    name, _, amount = text.partition("=")
    if name == ("h_rt" if env == "sge" else "walltime"):
        block.take_time(amount, why, unit=1)
    elif env == "sge" and name in _SGE_MEMORY:
        block.take_memory(amount, why, per_core=True)  # it is counted for each slot of a parallel environment
        block.resources[name] = Entry(text, why)
    elif env == "sge":
        block.take(block.resources, name, text, why)
    elif name in _PBS_MEMORY:
        block.take_memory(amount, why, per_core=name == "pmem")
    elif name in ("ncpus", "ppn"):
        block.take_cores(amount, why)
    else:
        for part, number in _CHUNK.findall(amount) if name in ("select", "nodes") else ():
            if part in ("ncpus", "ppn"):
                block.take_cores(number, why)
            elif part == "mem":
                block.take_memory(number, why, per_core=False)
        block.take(block.resources, name, text, why)


def _words(given: Entry) -> list[str]:
    try:
        return shlex.split(given.value)
    except ValueError as error:
        raise ConfigError(f"{given.why}: {given.value!r}: {str(error).lower()}") from error
