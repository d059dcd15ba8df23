"""A `parallel` block in the making, from the flags of `sbatch` and `qsub`: each value says where it came from."""

from __future__ import annotations

import json
import math
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from espnet3.parallel.backends.check import clock, walltime_seconds
from espnet3.parallel.errors import ConfigError
from espnet3_parallel.migrate.kaldi import Entry, by_flag

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)
_POWERS = ("", "k", "m", "g", "t", "p")
_ORDER = ("queue", "account", "project", "job_name", "cores", "memory", "resource_spec", "walltime")
_CORES = Entry(1, "nothing asks for more (--num-threads)")
_MEMORY = Entry("4GiB", "a guess, since nothing asks for memory (--mem): set what your model takes")
_WALLTIME = Entry("04:00:00", "a guess, since nothing asks for a time: workers that reach it are replaced")
# Torque's word for a number of cores of a node stands in `nodes`, PBS's in `select`: both say it all
_WHOLE = ("-l select", "-l nodes")

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
    options: dict[str, Entry] = field(default_factory=dict)  # memory in bytes, until the block is complete
    memory_per_core: bool = False
    directives: dict[str, Entry] = field(default_factory=dict)  # other lines of the job script, by flag
    lists: dict[str, list[Entry]] = field(default_factory=dict)  # options that are lists

    def leave_out(self, flag: str, why: str, reason: str) -> None:
        """Note that a flag has no equivalent."""
        self.notes.append(f"{flag} ({why}): {reason}")

    def read(self, flags: Sequence[Entry]) -> None:
        """Take flags of the submit command, of which a later one replaces an earlier one; guess what is required."""
        if self.env.value == "sge" and any(_OF_PBS.search(" ".join(each.value)) for each in flags):
            self.env = Entry("pbs", f"{self.env.why}; its -l is that of PBS or Torque, not of Grid Engine")
        for given in flags:
            for name, value, written in _named(given.value, self.env.value):
                self._take_flag(name, value, Entry(written, given.why))
        self._complete()

    def _take_flag(self, name: str, value: str, written: Entry) -> None:
        targets = _TARGETS[self.env.value]
        target, why = targets.get(name), written.why
        for part, amount in _PART.findall(value) if name in _WHOLE else ():
            if f"-l {part}" in targets:
                self._take_flag(f"-l {part}", amount, written)
        if target in _ORDER:
            self._take_option(target, value, why)
            if target == "memory":  # Grid Engine counts it for each slot of a parallel environment
                self.memory_per_core = self.env.value == "sge" or name in ("mem-per-cpu", "-l pmem")
        elif target == "at once":
            self.at_once = Entry(value, why)
        elif target and (name, value) not in _DEFAULTS:
            self.leave_out(written.value, why, target)
        if name == "-v" and name in self.directives:  # variables of several stand in one
            before = self.directives[name]
            self.directives[name] = Entry(f"{before.value},{value}", f"{before.why}; {why}")
        elif target is None or (self.env.value == "sge" and target in ("memory", "cores")):
            self._take(self.directives, name, written.value, why)

    def _take_option(self, name: str, text: str, why: str) -> None:
        value: str | int = text
        by_slurm = self.env.value == "slurm"
        if name == "walltime":
            seconds = int(text) * (60 if by_slurm else 1) if text.isdigit() else walltime_seconds(text)
            if seconds is None:
                raise ConfigError(f"{why}: {text!r} is not a time; write it as 4:00:00")
            if seconds in (0, math.inf):
                self.leave_out(f"time {text}", why, "each worker has a time limit and is replaced at its end")
                return
            value = clock(seconds)
        elif name == "memory":
            if (found := _SIZE.fullmatch(text)) is None:
                raise ConfigError(f"{why}: {text!r} is not a size of memory; write it as 4G or 500M")
            unit = found[2].lower() or ("m" if by_slurm else "")
            value = math.ceil(float(found[1]) * 1024 ** _POWERS.index(unit))
            if value == 0:
                self.leave_out(f"memory {text}", why, "set memory to what a worker needs")
                return
        elif name == "cores":
            text = text.rpartition(" ")[2].partition("-")[0]  # of a range the least
            if not text.isdigit() or not int(text):
                raise ConfigError(f"{why}: {text!r} is not a number of cores; write 1 or more")
            value = int(text)
            before = self.options.get(name)
            if before is not None:  # the largest counts: Kaldi hands flags over in no fixed order
                self.options[name] = max(before, Entry(value, why), key=lambda entry: int(entry.value))
                return
        self._take(self.options, name, value, why)

    def _take(self, kept: dict[str, Entry], name: str, value: object, why: str) -> None:
        before = kept.get(name)
        if before is not None and before.value != value:
            said = f"{name} {_shown(name, before.value)}" if kept is self.options else before.value
            self.leave_out(said, before.why, f"{_shown(name, value)} replaces it ({why})")
        kept[name] = Entry(value, why)

    def _complete(self) -> None:
        cores, memory = self.options.setdefault("cores", _CORES), self.options.get("memory")
        if memory is not None and self.memory_per_core and cores.value > 1:
            why = f"{memory.why}: {_shown('memory', memory.value)} for each of {cores.value} cores"
            memory = Entry(memory.value * cores.value, why)
        said = _MEMORY if memory is None else Entry(_shown("memory", memory.value), memory.why)
        self.options["memory"] = said
        self.options.setdefault("walltime", _WALLTIME)
        if self.env.value == "pbs":
            spec = self._whole(cores, memory)
        else:
            spec = [self.directives.pop(flag) for flag in list(self.directives) if flag.startswith("-l ")]
        if spec:
            whys = "; ".join(dict.fromkeys(each.why for each in spec))
            value = ",".join(each.value.removeprefix("-l ") for each in spec)
            self.options["resource_spec"] = Entry(value, whys)
        if self.directives:
            self.lists["job_extra_directives"] = list(self.directives.values())

    def _whole(self, cores: Entry, memory: Entry | None) -> list[Entry]:
        mem = "" if memory is None else f"mem={memory.value // 1024**2}mb"
        whole = [self.directives.pop(flag) for flag in _WHOLE if flag in self.directives]
        gpus = self.directives.pop("-l ngpus", None)
        if whole and memory is not None and not any(":mem=" in each.value for each in whole):
            self.directives["-l mem"] = Entry(f"-l {mem}", memory.why)
        elif gpus is not None and not whole:
            parts = [f"select=1:ncpus={cores.value}", gpus.value.removeprefix("-l "), *([mem] if mem else [])]
            whole = [Entry(":".join(parts), f"{gpus.why}; the rest is cores and memory")]
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


def _shown(name: str, value: object) -> str:
    if name != "memory" or not isinstance(value, int):
        return str(value)
    whole = value >= 1024**3 and value % 1024**3 == 0
    return f"{value // 1024**3}GiB" if whole else f"{max(1, math.ceil(value / 1024**2))}MiB"


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
_DONE = ""  # in every job script

_TASKS = "n, ntasks, ntasks-per-node, N, nodes"
# by env: the flags of the submit command that become an option of the block, or nothing for a reason; all others are
# lines of the job script. qsub is one program of Grid Engine, another of PBS and Torque
_FLAGS: dict[str, tuple[tuple[str, str], ...]] = {
    "slurm": (
        *(("queue", "p, partition"), ("account", "A, account"), ("job_name", "J, job-name")),
        *(("walltime", "t, time"), ("cores", "c, cpus-per-task"), ("memory", "mem, mem-per-cpu")),
        ("a worker is one task on one node; trainer.num_nodes is for training", _TASKS),
        (_LOGS, "o, output, e, error, open-mode"),
        (_WATCHED, "a, array, W, wait, parsable, quiet, d, dependency"),
        ("workers start in the folder of the run", "D, chdir"),
        ("left out, so that jobs get all variables of the submitting shell, such as PYTHONPATH", "export"),
        ("a held worker would never come", "hold"),
    ),
    "sge": (
        *(("queue", "-q"), ("project", "-P"), ("job_name", "-N"), ("walltime", "-l h_rt"), ("cores", "-pe")),
        ("memory", "-l mem_free, -l ram_free, -l h_vmem, -l s_vmem, -l virtual_free, -l h_rss, -l rmem"),
        *(("memory", "-l mem"), (_LOGS, "-o, -e"), (_DONE, "-cwd, -j, -S"), ("at once", "-tc")),
        (_WATCHED, "-t, -sync, -hold_jid"),
    ),
    "pbs": (
        *(("queue", "-q"), ("account", "-A"), ("job_name", "-N"), ("walltime", "-l walltime")),
        *(("cores", "-l ncpus, -l ppn"), ("memory", "-l mem, -l vmem, -l pmem"), (_LOGS, "-o, -e, -j")),
        *((_WATCHED, "-J, -t, -W block, -W depend"), (_DONE, "-S")),
    ),
}
_TARGETS = {
    env: {name: to for to, names in rows for name in names.split(", ")} for env, rows in _FLAGS.items()
}
# of sbatch: what these say holds without them
_DEFAULTS = {("export", "ALL"), *((name, "1") for name in _TASKS.split(", "))}
_PART = re.compile(r"(\w+)=([^:]*)")
_OF_PBS = re.compile(r"(?:^|\s)-l\s*(?:\S*,)?(?:walltime|nodes|select|ncpus)=")


def _named(words: Sequence[str], env: str) -> Iterator[tuple[str, str, str]]:
    for flag, *values in by_flag(words):
        # a value in quotes may hold spaces; a bracket of a host list needs no quotes
        value = " ".join(shlex.quote(each) if " " in each else each for each in values)
        written = f"{flag} {value}".rstrip()
        if env == "slurm":
            name, _, own = flag[2:].partition("=") if flag.startswith("--") else (flag[1:2], "", flag[2:])
            yield name, own or " ".join(values), written
        elif flag.startswith(("-l", "-W")):  # -l mem_free=2G,gpu=1 or -lmem_free=2G
            text = flag[2:] or value
            for each in text.split(",") if flag.startswith("-l") else [text]:
                name, _, own = each.partition("=")
                yield f"{flag[:2]} {name}", own, f"{flag[:2]} {each}"
        else:
            yield flag, " ".join(values), written
