"""A `parallel` block in the making: each value says where it came from."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from espnet3.cli.migrate.kaldi import Entry
from espnet3.parallel.backends.amounts import clock, walltime_seconds
from espnet3.parallel.errors import ConfigError

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
        """Keep a value of which the last one counts, and note one that is lost by it."""
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
            raise ConfigError(f"{why}: {value!r} is no time; write it as 4:00:00")
        else:
            self.take(self.options, "walltime", clock(seconds), why)

    def take_memory(self, value: str, why: str, *, unit: int = 1, per_core: bool) -> None:
        """Take a size of memory; a plain number counts units of so many bytes."""
        found = _SIZE.fullmatch(value)
        if found is None:
            raise ConfigError(f"{why}: {value!r} is no size of memory; write it as 4G or 500M")
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
            raise ConfigError(f"{why}: {value!r} is no number of cores; write 1 or more")
        if self.cores is None or int(value) > self.cores.value:
            self.cores = Entry(int(value), why)

    def complete(self) -> None:
        """Make options of all that was gathered for a scheduler, with a guess at what a job must have."""
        cores, memory = self.cores or _CORES, self._memory_of_job()
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

    def _memory_of_job(self) -> Entry | None:
        if self.memory is None or not self.memory_per_core or self.cores is None or self.cores.value == 1:
            return self.memory
        why = f"{self.memory.why}: {_size_text(self.memory.value)} for each of {self.cores.value} cores"
        return Entry(self.memory.value * self.cores.value, why)

    def _whole(self, resources: dict[str, Entry], cores: Entry, memory: Entry | None) -> dict[str, Entry]:
        """Return what PBS is given in its own words, where they say more than cores and memory do."""
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
    """Write a number of bytes as `parallel` reads it: 4294967296 is "4GiB"."""
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
