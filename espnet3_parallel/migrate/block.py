"""A `parallel` block in the making, from the flags of `sbatch` and `qsub`: each value says where it came from."""

from __future__ import annotations

import json
import math
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from espnet3.parallel.backends.job_text import clock, walltime_seconds
from espnet3.parallel.errors import ConfigError
from espnet3_parallel.migrate.kaldi import Entry, by_flag

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_ENDLESS = ("0", "unlimited", "infinite", "infinity")
_ORDER = ("queue", "account", "project", "job_name", "cores", "memory", "resource_spec", "walltime")
_CORES = Entry(1, "nothing asks for more (--num-threads)")
_MEMORY = Entry("4GiB", "a guess, since nothing asks for memory (--mem): set what your model takes")
_WALLTIME = Entry("04:00:00", "a guess, since nothing asks for a time: workers that reach it are replaced")
# Torque's word for a number of cores of a node stands in `nodes`, PBS's in `select`: both say it all
_WHOLE = ("select", "nodes")

_PLAIN = re.compile(r"[A-Za-z][\w./@-]*|\d+[GM]iB")
_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
_COLUMN = 32  # where comments begin, unless the value is longer
_NOTE = textwrap.TextWrapper(110, initial_indent="# - ", subsequent_indent="#   ", break_long_words=False)


@dataclass(slots=True)
class Block:
    """A `parallel` block, gathered flag by flag."""

    env: Entry
    n_workers: Entry
    notes: list[str]  # flags without an equivalent
    at_once: Entry | None = None  # jobs that may run at a time
    options: dict[str, Entry] = field(default_factory=dict)
    lists: dict[str, list[Entry]] = field(default_factory=dict)  # options that are lists
    cores: Entry | None = None
    memory: Entry | None = None  # in bytes
    memory_per_core: bool = False
    resources: dict[str, Entry] = field(default_factory=dict)  # of qsub's `-l`: "name=value" by name
    directives: dict[str, Entry] = field(default_factory=dict)  # other lines of the job script, by flag

    def leave_out(self, flag: str, why: str, reason: str) -> None:
        """Note that a flag has no equivalent."""
        self.notes.append(f"{flag} ({why}): {reason}")

    def take(self, kept: dict[str, Entry], name: str, value: str, why: str) -> None:
        """Keep the last value of a name, and note the one that it replaces."""
        before = kept.get(name)
        if before is not None and before.value != value:
            said = f"{name} {before.value}" if kept is self.options else before.value
            self.leave_out(said, before.why, f"{value} replaces it ({why})")
        kept[name] = Entry(value, why)

    def take_time(self, value: str, why: str, *, unit: int) -> None:
        """Take a limit of time; a plain number counts units of so many seconds."""
        seconds = int(value) * unit if value.isdigit() else walltime_seconds(value)
        if value.lower() in _ENDLESS:
            self.leave_out(f"time {value}", why, "each worker has a time limit, and is replaced at its end")
        elif seconds is None or seconds <= 0:
            raise ConfigError(f"{why}: {value!r} is not a time; write it as 4:00:00")
        else:
            self.take(self.options, "walltime", clock(seconds), why)

    def take_memory(self, value: str, why: str, *, unit: int = 1, per_core: bool) -> None:
        """Take a size of memory; a plain number counts units of so many bytes."""
        found = _SIZE.fullmatch(value)
        if found is None:
            raise ConfigError(f"{why}: {value!r} is not a size of memory; write it as 4G or 500M")
        power = _POWERS.get(found[2].lower())
        size = math.ceil(float(found[1]) * (unit if power is None else 1024**power))
        if self.memory is not None and self.memory.value != size:
            said = f"memory of {_size_text(self.memory.value)}"
            self.leave_out(said, self.memory.why, f"{value} replaces it ({why})")
        if size == 0:
            self.leave_out(f"memory {value}", why, "set memory to what a worker needs")
            return
        self.memory = Entry(size, why)
        self.memory_per_core = per_core

    def take_cores(self, value: str, why: str) -> None:
        """Take a number of cores; of several the largest counts, since Kaldi hands flags over in no fixed order."""
        if not value.isdigit() or not int(value):
            raise ConfigError(f"{why}: {value!r} is not a number of cores; write 1 or more")
        if self.cores is None or int(value) > self.cores.value:
            self.cores = Entry(int(value), why)

    def complete(self) -> None:
        """Make options of the gathered values for a scheduler, with guesses for required ones."""
        cores, memory = self.cores or _CORES, self.memory
        if memory is not None and self.memory_per_core and self.cores is not None and self.cores.value > 1:
            why = f"{memory.why}: {_size_text(memory.value)} for each of {cores.value} cores"
            memory = Entry(memory.value * cores.value, why)
        self.options["cores"] = cores
        self.options["memory"] = _MEMORY if memory is None else Entry(_size_text(memory.value), memory.why)
        self.options.setdefault("walltime", _WALLTIME)
        resources = dict(self.resources)
        if self.env.value == "pbs":
            whole = self._whole(resources, cores, memory)
            for name, each in resources.items():
                self.directives[f"-l {name}"] = Entry(f"-l {each.value}", each.why)
            resources = whole
        if resources:
            spec = ",".join(each.value for each in resources.values())
            whys = dict.fromkeys(each.why for each in resources.values())
            self.options["resource_spec"] = Entry(spec, "; ".join(whys))
        if self.directives:
            self.lists["job_extra_directives"] = list(self.directives.values())

    def _whole(self, resources: dict[str, Entry], cores: Entry, memory: Entry | None) -> dict[str, Entry]:
        mem = "" if memory is None else f"mem={memory.value // 1024**2}mb"
        whole = {name: resources.pop(name) for name in _WHOLE if name in resources}
        gpus = resources.pop("ngpus", None)
        if whole and memory is not None and not any(":mem=" in each.value for each in whole.values()):
            resources["mem"] = Entry(mem, memory.why)
        elif gpus is not None and not whole:
            chunk = [f"select=1:ncpus={cores.value}", gpus.value, *([mem] if mem else [])]
            whole["select"] = Entry(":".join(chunk), f"{gpus.why}; the rest is cores and memory")
        return whole

    def text(self, head: str) -> str:
        """Return the block as YAML, with a comment on each line that says where it came from."""
        lines = [f"# {head}"]
        lines += [f"{text.ljust(_COLUMN)}  # {why}" if why else text for text, why in self._lines()]
        if self.notes:
            lines += ["", "# Notes, and what has no equivalent here:"]
            lines += [line for note in self.notes for line in _NOTE.wrap(note)]
        return "\n".join(lines) + "\n"

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "parallel:", ""
        yield f"  env: {_scalar(self.env.value)}", self.env.why
        yield f"  n_workers: {self.n_workers.value}", self.n_workers.why
        if self.options or self.lists:
            yield "  options:", ""
        for name in (*_ORDER, "threads_per_worker"):
            if name in self.options:
                yield f"    {name}: {_scalar(self.options[name].value)}", self.options[name].why
        for name, several in self.lists.items():
            yield f"    {name}:", ""
            for each in several:
                yield f"      - {_scalar(each.value)}", each.why


def _size_text(size: int) -> str:
    for unit, power in (("GiB", 3), ("MiB", 2)):
        if size >= 1024**power and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return f"{max(1, math.ceil(size / 1024**2))}MiB"


def _scalar(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # OmegaConf would look ${USER} up in the config: with a backslash it is text
    return json.dumps(text.replace("${", "\\${"), ensure_ascii=False)


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

# of qsub: one program of Grid Engine, another of PBS and Torque
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
    """Take flags of sbatch: a later one replaces an earlier one of its name."""
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
        case _ if written != "--export=ALL":  # the default of sbatch
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
