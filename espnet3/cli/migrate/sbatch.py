"""What flags of `sbatch` are called here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from espnet3.cli.migrate.calls import Given
from espnet3.cli.migrate.wanted import Entry, Wanted

_LONG = {
    "A": "account",
    "a": "array",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "G": "gpus",
    "H": "hold",
    "i": "input",
    "J": "job-name",
    "L": "licenses",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "s": "oversubscribe",
    "t": "time",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
_ALONE = {
    *("contiguous", "exclusive", "hold", "no-requeue", "overcommit", "oversubscribe", "parsable", "quiet"),
    *("requeue", "spread-job", "use-min-nodes", "wait"),
}
_OPTIONS = {"partition": "queue", "account": "account", "job-name": "job_name"}
_ASKED = {*_OPTIONS, "time", "mem", "mem-per-cpu", "cpus-per-task"}
_OURS = {
    **dict.fromkeys(("output", "error", "open-mode"), "log_directory says where jobs write their logs"),
    **dict.fromkeys(
        ("array", "wait", "parsable", "quiet", "dependency"), "jobs are submitted and watched from here"
    ),
    "chdir": "workers start in the folder of the run",
    "input": "workers read no standard input",
    "export": "left out, so that jobs get all variables of the submitting shell, PYTHONPATH and the like too",
    "hold": "a held worker would never come",
}
_ONE = {"ntasks", "ntasks-per-node", "nodes"}
_MIB = 1024**2


def read_sbatch(flags: Iterable[Given], wanted: Wanted) -> None:
    """Take flags of sbatch, of which a later one replaces an earlier one of its name."""
    for given in flags:
        for written, name, value in _split(given.words()):
            if name in _ASKED:
                _ask(name, value, given, wanted)
            elif name in _ONE:
                if value != "1":
                    wanted.left_out(
                        written, given, "a worker is one task on one node; trainer.num_nodes is for training"
                    )
            elif name not in _OURS:
                wanted.directives[name] = Entry(written, given.why)
            elif written != "--export=ALL":  # which is how sbatch is without it
                wanted.left_out(written, given, _OURS[name])


def _ask(name: str, value: str, given: Given, wanted: Wanted) -> None:
    """Take a flag that has a name of its own among the options."""
    if name in _OPTIONS:
        wanted.take_option(_OPTIONS[name], value, given)
    elif name == "time":
        wanted.take_time(value, given, unit=60)
    elif name == "cpus-per-task":
        wanted.take_cores(value, given)
    else:
        wanted.take_memory(value, given, unit=_MIB, per_core=name == "mem-per-cpu")


def _split(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each flag as it was written, its long name and its value."""
    rest = iter(words)
    for word in rest:
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            written = shlex.quote(word) if " " in word else word
        else:
            name, value, sign, written = _LONG.get(word[1:2], word[1:2]), word[2:], word[2:], word
        if not sign and name not in _ALONE:
            value = next(rest, "")
            written = f"{word} {shlex.quote(value) if ' ' in value else value}".rstrip()
        yield written, name, value
