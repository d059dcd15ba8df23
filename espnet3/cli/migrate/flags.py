"""What the flags of `sbatch` and `qsub` are called here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from espnet3.cli.migrate.block import Block
from espnet3.cli.migrate.kaldi import Entry
from espnet3.parallel.errors import ConfigError

_LOGS = "log_directory says where jobs write their logs"
_WATCHED = "jobs are submitted and watched from here"

# of sbatch: short flags, flags without a value, and those that are left out
_LONG = dict(
    re.findall(
        r"(\w)=(\S+)",
        "A=account a=array c=cpus-per-task D=chdir d=dependency e=error H=hold i=input J=job-name N=nodes n=ntasks "
        "O=overcommit o=output p=partition Q=quiet q=qos s=oversubscribe t=time W=wait",
    )
)
_ALONE = re.compile(
    "contiguous|exclusive|hold|no-requeue|overcommit|oversubscribe|parsable|quiet|requeue|spread-job|use-min-nodes|wait"
)
_SBATCH_OPTIONS = {"partition": "queue", "account": "account", "job-name": "job_name"}
_SBATCH_OURS = {
    **dict.fromkeys(("output", "error", "open-mode"), _LOGS),
    **dict.fromkeys(("array", "wait", "parsable", "quiet", "dependency"), _WATCHED),
    "chdir": "workers start in the folder of the run",
    "export": "left out, so that jobs get all variables of the submitting shell, PYTHONPATH and the like too",
    "hold": "a held worker would never come",
}

# of qsub, which is one program of Grid Engine and another of PBS and Torque
_QSUB_ALONE = ("-V", "-cwd", "-notify", "-terse", "-soft", "-hard", "-h")
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


def is_pbs(flags: Iterable[Entry]) -> bool:
    """Whether flags of qsub ask for what Grid Engine does not have."""
    return any(_OF_PBS.search(each.value) for each in flags)


def read_sbatch(flags: Iterable[Entry], block: Block) -> None:
    """Take flags of sbatch, of which a later one replaces an earlier one of its name."""
    for why, name, value, written in _of_sbatch(flags):
        match name:
            case "partition" | "account" | "job-name":
                block.take(block.options, _SBATCH_OPTIONS[name], value, why)
            case "time":
                block.take_time(value, why, unit=60)
            case "mem" | "mem-per-cpu":
                block.take_memory(value, why, unit=1024**2, per_core=name == "mem-per-cpu")
            case "cpus-per-task":
                block.take_cores(value, why)
            case "ntasks" | "ntasks-per-node" | "nodes":
                if value != "1":
                    block.leave_out(
                        written, why, "a worker is one task on one node; trainer.num_nodes is for training"
                    )
            case _ if name not in _SBATCH_OURS:
                block.take(block.directives, name, written, why)
            case _ if written != "--export=ALL":  # which is how sbatch is without it
                block.leave_out(written, why, _SBATCH_OURS[name])


def _of_sbatch(flags: Iterable[Entry]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the origin, the long name and the value of each flag, and how it was written."""
    for given in flags:
        rest = iter(_words(given))
        for word in rest:
            if word.startswith("--"):
                name, sign, value = word[2:].partition("=")
            else:
                name, sign, value = _LONG.get(word[1:2], word[1:2]), word[2:], word[2:]
            written = [word]
            if not sign and not _ALONE.fullmatch(name):
                value = next(rest, "")
                written.append(value)
            # a value in quotes may hold spaces; a bracket of a host list needs no quotes
            yield (
                given.why,
                name,
                value,
                " ".join(shlex.quote(each) if " " in each else each for each in written),
            )


def read_qsub(env: str, flags: Iterable[Entry], block: Block) -> None:
    """Take flags of the qsub of Grid Engine, or of PBS and Torque."""
    for why, name, value in _of_qsub(flags):
        written = f"{name} {value}".rstrip()
        if name in _QSUB_OPTIONS[env]:
            block.take(block.options, _QSUB_OPTIONS[env][name], value, why)
        elif name == "-l":
            for each in value.split(","):
                _take_resource(env, each, why, block)
        elif name in _QSUB_OURS[env]:
            block.leave_out(written, why, _QSUB_OURS[env][name])
        elif name == "-W" and value.startswith(("block", "depend")):
            block.leave_out(written, why, _WATCHED)
        elif env == "sge" and name == "-tc":
            block.at_once = Entry(value, why)
        elif name not in _QSUB_DONE[env]:
            _take_directive(name, value, why, block)


def _take_directive(name: str, value: str, why: str, block: Block) -> None:
    """Keep a flag of qsub as a line of the job script; variables of several -v stand in one."""
    before = block.directives.get(name)
    if name == "-v" and before is not None:
        block.directives[name] = Entry(f"{before.value},{value}", f"{before.why}; {why}")
        return
    if name == "-pe":
        block.take_cores(value.rpartition(" ")[2].partition("-")[0], why)
    block.take(block.directives, name, f"{name} {value}".rstrip(), why)


def _of_qsub(flags: Iterable[Entry]) -> Iterator[tuple[str, str, str]]:
    """Yield the origin, the name and the value of each flag; `smp 4` is the value of `-pe smp 4`."""
    for given in flags:
        rest = iter(_words(given))
        for word in rest:
            if word in _QSUB_ALONE:
                yield given.why, word, ""
            elif word == "-pe":
                yield given.why, word, f"{next(rest, '')} {next(rest, '')}".strip()
            elif word.startswith("-l") and len(word) > 2:
                yield given.why, "-l", word[2:]
            else:
                yield given.why, word, next(rest, "")


def _take_resource(env: str, text: str, why: str, block: Block) -> None:
    """Take one of the resources that `-l` asks for."""
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
