"""What flags of `qsub` are called here: of Grid Engine's, and of that of PBS and Torque, another program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from espnet3.cli.migrate.calls import Given
from espnet3.cli.migrate.wanted import Entry, Wanted

_ALONE = {"-V", "-cwd", "-notify", "-terse", "-soft", "-hard", "-h"}
_WATCHED = "jobs are submitted and watched from here"
_LOGS = "log_directory says where jobs write their logs"
_SGE_OPTIONS = {"-q": "queue", "-P": "project", "-N": "job_name"}
_PBS_OPTIONS = {"-q": "queue", "-A": "account", "-N": "job_name"}
_SGE_OURS = {
    **dict.fromkeys(("-o", "-e"), _LOGS),
    **dict.fromkeys(("-t", "-sync", "-terse", "-hold_jid"), _WATCHED),
    "-h": "a held worker would never come",
    "-b": "jobs are scripts",
}
_SGE_DONE = {"-cwd", "-j", "-S"}  # every job script has -cwd and -j y, and its shell in the first line
_PBS_OURS = {
    **dict.fromkeys(("-o", "-e", "-j"), _LOGS),
    **dict.fromkeys(("-J", "-t"), _WATCHED),
    "-h": "a held worker would never come",
}
_PBS_DONE = {"-S"}
_MEMORY = ("mem_free", "ram_free", "h_vmem", "s_vmem", "virtual_free", "h_rss", "rmem", "mem")
_CHUNK = re.compile(r"(\w+)=([^:]*)")


def is_pbs(flags: Iterable[Given]) -> bool:
    """Whether flags of qsub are those of PBS or Torque: they ask for what Grid Engine does not have."""
    return any(
        re.search(r"(?:^|\s)-l\s*(?:\S*,)?(?:walltime|nodes|select|ncpus)=", each.flags) for each in flags
    )


def read_sge(flags: Iterable[Given], wanted: Wanted) -> None:
    """Take flags of Grid Engine's qsub."""
    for given in flags:
        for name, value in _split(given.words()):
            if name in _SGE_OPTIONS:
                wanted.take_option(_SGE_OPTIONS[name], value, given)
            elif name == "-tc":
                wanted.at_once = Entry(value, given.why)
            elif name == "-l":
                _sge_resources(value, given, wanted)
            elif name in _SGE_OURS:
                wanted.left_out(f"{name} {value}".rstrip(), given, _SGE_OURS[name])
            elif name not in _SGE_DONE:
                if name == "-pe":
                    wanted.take_cores(value.rpartition(" ")[2].partition("-")[0], given)
                _directive(name, value, given, wanted)


def _directive(name: str, value: str, given: Given, wanted: Wanted) -> None:
    """Keep a flag as a line of the job script; variables of several -v stand in one."""
    before = wanted.directives.get(name)
    if name == "-v" and before is not None:
        wanted.directives[name] = Entry(f"{before.value},{value}", f"{before.why}; {given.why}")
    else:
        wanted.directives[name] = Entry(f"{name} {value}".rstrip(), given.why)


def _sge_resources(value: str, given: Given, wanted: Wanted) -> None:
    for each in value.split(","):
        name, _, amount = each.partition("=")
        if name == "h_rt":
            wanted.take_time(amount, given, unit=1)
            continue
        if name in _MEMORY:
            # it is counted for each slot of a parallel environment
            wanted.take_memory(amount, given, per_core=True)
        wanted.resources[name] = Entry(each, given.why)


def read_pbs(flags: Iterable[Given], wanted: Wanted) -> None:
    """Take flags of qsub of PBS or Torque."""
    for given in flags:
        for name, value in _split(given.words()):
            if name in _PBS_OPTIONS:
                wanted.take_option(_PBS_OPTIONS[name], value, given)
            elif name == "-l":
                _pbs_resources(value, given, wanted)
            elif name in _PBS_OURS or (name == "-W" and value.startswith(("block", "depend"))):
                wanted.left_out(f"{name} {value}".rstrip(), given, _PBS_OURS.get(name, _WATCHED))
            elif name not in _PBS_DONE:
                _directive(name, value, given, wanted)


def _pbs_resources(value: str, given: Given, wanted: Wanted) -> None:
    for each in value.split(","):
        name, _, amount = each.partition("=")
        if name == "walltime":
            wanted.take_time(amount, given, unit=1)
        elif name in ("mem", "pmem", "vmem"):
            wanted.take_memory(amount, given, per_core=name == "pmem")
        elif name in ("ncpus", "ppn"):
            wanted.take_cores(amount, given)
        elif name in ("select", "nodes"):
            for part, number in _CHUNK.findall(amount):
                if part in ("ncpus", "ppn"):
                    wanted.take_cores(number, given)
                elif part == "mem":
                    wanted.take_memory(number, given, per_core=False)
            wanted.resources[name] = Entry(each, given.why)
        else:
            wanted.resources[name] = Entry(each, given.why)


def _split(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each flag and its value; both of `-pe smp 4` as one."""
    rest = iter(words)
    for word in rest:
        if word in _ALONE:
            yield word, ""
        elif word == "-pe":
            yield word, f"{next(rest, '')} {next(rest, '')}".strip()
        elif word[:2] == "-l" and len(word) > 2:
            yield "-l", word[2:]
        else:
            yield word, next(rest, "")
