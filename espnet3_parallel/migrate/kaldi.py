"""Kaldi's settings: shell scripts such as cmd.sh and run.sh, read without running them, and files of options.

Assignments, options of a command (`./asr.sh --nj 32`) and an `if` that compares two texts are read. Text that needs a
shell (`$(hostname)`, `case`, `&&`) is left out, with a note.

A command of it, such as `slurm.pl --mem 4G`, reads the meaning of its options from a file, such as conf/slurm.conf:

command sbatch --export=PATH        the submit command, with the flags that every job has
default gpu=0                       an option that is given where the caller does not
option mem=* --mem-per-cpu $0       what `--mem 4G` becomes; $0 is its value
option mem=0                        the same for one value; here it becomes nothing
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from espnet3.parallel.backends import KALDI_SCRIPTS
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean, shown

# by env: the file of options of its scripts, and its content where the file is missing
_QUEUE = """
command qsub -v PATH -cwd -S /bin/bash -j y -l arch=*64*
option mem=* -l mem_free=$0,ram_free=$0
option num_threads=*
option max_jobs_run=* -tc $0
default gpu=0
option gpu=*
"""
_SLURM = """
command sbatch --export=PATH --ntasks-per-node=1
option time=* --time $0
option mem=* --mem-per-cpu $0
option num_threads=* --cpus-per-task $0
default gpu=0
option gpu=0 -p shared
option gpu=* -p gpu --gres=gpu:$0 --time 4:0:0
"""
_PBS = """
command qsub -V -v PATH -S /bin/bash -l mem=4G
option mem=* -l mem=$0
default gpu=0
option gpu=*
"""
OPTIONS_FILES = {
    "sge": ("conf/queue.conf", _QUEUE),
    "slurm": ("conf/slurm.conf", _SLURM),
    "pbs": ("conf/pbs.conf", _PBS),
}
_STRICT = ("slurm", "pbs")  # their scripts stop at an option that the file lacks; queue.pl ignores it

_FLAG = re.compile("-[^0-9]")
_ALONE = ("-V", "-cwd", "-notify")  # flags of qsub without a value
_OWN = ("config", "max_jobs_run")  # options that the scripts read themselves
_NOTHING = (("mem", "0"), ("gpu", "0"), ("num_threads", "1"))  # options that ask for nothing


@dataclass(frozen=True, slots=True)
class Entry:
    """A value, and where it came from."""

    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class OptionsFile:
    """A `queue.conf`, `slurm.conf` or `pbs.conf`; a rule is found by an option's name and value."""

    name: str
    command: Entry
    rules: dict[tuple[str, str], Entry]
    defaults: dict[str, Entry]


@dataclass(frozen=True, slots=True)
class Call:
    """A command of cmd.sh, taken apart."""

    variable: str  # its name in cmd.sh, such as "decode_cmd"
    said: Entry
    script: str  # such as "queue.pl"
    env: str  # the backend in the place of the script
    options: dict[str, Entry]  # by name, without `--`, with `_` for `-`
    flags: list[str]  # those of the submit command


def read_options(name: str, text: str, *, numbered: bool = True) -> OptionsFile:
    """Read a file of options."""
    command: Entry | None = None
    rules: dict[tuple[str, str], Entry] = {}
    defaults: dict[str, Entry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{name}:{number}" if numbered else name
        match _words_of(line, where):
            case []:
                continue
            case ["command", *program] if program:
                command = Entry(program, where)
            case ["default", rule, *_] if all(rule.partition("=")):
                defaults[rule.partition("=")[0]] = Entry(rule.partition("=")[2], where)
            case ["option", rule, *flags] if all(rule.partition("=")):
                option, _, value = rule.partition("=")
                if value == "*" and flags and "$0" not in " ".join(flags):
                    raise ConfigError(f"{where}: {line.strip()!r} loses the value: write $0, or {option}=1")
                rules[option, value] = Entry(flags, where)
            case _:
                raise ConfigError(
                    f"{where}: {line.strip()!r} must be: option name=value flags; no space at ="
                )
    if command is None:
        raise ConfigError(f"{name}: no line says 'command sbatch ...' or 'command qsub ...'; add it")
    return OptionsFile(name, command, rules, defaults)


def _words_of(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise ConfigError(f"{where}: {text.strip()!r}: {str(error).lower()}") from error


def read_call(variable: str, said: Entry) -> Call:
    """Take a command apart."""
    # the shell separates the words of "${decode_cmd}" at spaces alone: quotation marks within are letters
    words = said.value.split() or [""]
    said = Entry(" ".join(words), said.why)
    if os.path.basename(words[0]) == "retry.pl":  # [--num-tries N] and the command that it tries again
        words = words[3 if words[1:2] == ["--num-tries"] else 1 :] or words
    script = os.path.basename(words[0])
    if script not in KALDI_SCRIPTS:
        known = f"{did_you_mean(script, KALDI_SCRIPTS)} Known: {', '.join(KALDI_SCRIPTS)}"
        raise ConfigError(f"{said.why}: {variable} = {shown(said.value)}: unknown script.{known}")
    options: dict[str, Entry] = {}
    flags: list[str] = []
    for word, *values in by_flag(words[1:]):
        most = 2 if word == "-pe" else 1
        if not word.startswith("-") or not (word in _ALONE or values) or len(values) > most:
            wrong = shown(" ".join([word, *values]))
            raise ConfigError(f"{said.why}: {variable}: {wrong} of {script} must be an option and its value")
        if word.startswith("--"):
            options[word[2:].replace("-", "_")] = Entry(values[0], said.why)
        else:
            flags += [word, *values]
    return Call(variable, said, script, KALDI_SCRIPTS[script], options, _words_of(" ".join(flags), said.why))


def by_flag(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield each flag with the values behind it: words without a dash at their start, and numbers."""
    found: list[str] = []
    for word in words:
        if found and _FLAG.match(word):
            yield found
            found = []
        found.append(word)
    if found:
        yield found


def flags_of(call: Call, file: OptionsFile, notes: list[str]) -> list[Entry]:
    """Return the flags that the submit command is given for a call, those that count least first."""
    # in the order of queue.pl and slurm.pl: flags of the file of options count more than those of cmd.sh
    found = [Entry(file.command.value[1:], file.command.why)]
    found += [Entry(call.flags, f"{call.said.why}, {call.variable}")]
    defaults = {name: each for name, each in file.defaults.items() if name not in call.options}
    for name, option in {**defaults, **call.options}.items():
        if name in _OWN:
            continue
        rule = file.rules.get((name, option.value), file.rules.get((name, "*")))
        said = dashed(name, option.value) if name in call.options else f"the default {name}={option.value}"
        said += f" of {option.why}" if option.why != file.name else ""
        if rule is not None and not rule.value:
            if (name, option.value) not in _NOTHING:
                notes.append(f"{said}: no flags in {file.name}; n_workers bounds jobs, options has the rest")
        elif rule is not None:
            flags = [word.replace("$0", option.value) for word in rule.value]
            found.append(Entry(flags, f"{rule.why}, {said}"))
        elif call.env in _STRICT:
            fix = f"add 'option {name}=*' to {file.name}"
            raise ConfigError(f"{call.variable}: {call.script} refuses {said}: {fix}")
        else:
            notes.append(f"{said}: {file.name} has no rule for it, so {call.script} ignored it")
    return found


def dashed(option: str, value: str) -> str:
    """Return an option as it is written on a command line."""
    return f"--{option.replace('_', '-')} {value}"


_NUMBERS = ("nj", "inference_nj", "gpu_inference")  # of run.sh and asr.sh
_WANTED = (*_NUMBERS, "cmd", "train_cmd", "cuda_cmd", "decode_cmd", "cmd_backend")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
# the scheduler's shell, or whatever opens a file, knows the variables of a login
_COMPUTED = re.compile(r"`|\$(?!\{?(?:HOME|USER|TMPDIR|PWD)\b)")
_PATTERN = re.compile(r"[*?\[`$]")  # no plain text on the right of a comparison
_BEFORE = ("then", "do", "{")
_INNER_HASH = re.compile(r"(?<=[^\s;&|])#")  # as in $#, where shlex would begin a comment

_NO, _UNSURE, _YES = 0, 1, 2  # `and` is the least of several, `not` what is left of _YES


@dataclass(slots=True)
class _Branch:
    said: str = ""
    runs: int = _UNSURE
    left: int = _YES  # whether the branches before have left it to the next one


class Script:
    """The settings of one script after another; variables that are given at first stay as they are."""

    def __init__(self, fixed: Mapping[str, Entry]) -> None:
        self.variables = dict(fixed)
        self.notes: list[str] = []  # settings that are left out
        self._fixed = frozenset(fixed)

    def read(self, name: str, text: str) -> None:
        """Read a script."""
        branches: list[_Branch] = []  # open ones
        for line, words in _statements(name, text):
            while words and words[0] in _BEFORE:
                del words[0]
            first = words[0] if words else ""
            if first in ("if", "case"):
                branches.append(_Branch())
            if first in ("if", "elif", "else") and branches:
                branch = branches[-1]
                holds = _YES if first == "else" else self._holds(words[1:])
                branch.runs, branch.left = min(branch.left, holds), min(branch.left, _YES - holds)
                branch.said = branch.said if first == "else" else f"{name}:{line}: {' '.join(words)!r}"
                del words[: 1 if first == "else" else None]
            elif first in ("fi", "esac") and branches:
                branches.pop()
            if all(branch.runs for branch in branches):
                said = [f" ({branch.said})" for branch in branches if branch.runs == _UNSURE]
                self._take(f"{name}:{line}", words, "".join(said[:1]))

    def _holds(self, condition: list[str]) -> int:
        match [self._filled(word) for word in condition]:
            case ["[" | "[[", left, "=" | "==", right, "]" | "]]"] if not _PATTERN.search(right):
                return _UNSURE if is_computed(left) else _YES if left == right else _NO
        return _UNSURE

    def _take(self, where: str, words: list[str], unsure: str) -> None:
        for name, source, follows in _settings(words):
            value = self._filled(source)
            before = self.variables.get(name)
            if name in self._fixed or (before is not None and before.value == value):
                continue
            why = "only a shell can compute it; write its value" if is_computed(value) else ""
            if unsure or follows:
                why = f"only a shell can decide that{unsure}; if it counts, migrate a copy with it alone"
            else:
                self.variables[name] = Entry(value, where)
            if why and name in _WANTED:
                self.notes.append(f"{where}: {name}={shlex.quote(source)} is left out: {why}")

    def _filled(self, word: str) -> str:
        given = self.variables
        return _VARIABLE.sub(lambda at: str(given.get(at[1] or at[2], Entry(at[0], "")).value), word)


def is_computed(value: str) -> bool:
    """Tell a value that only a shell can compute."""
    return _COMPUTED.search(value) is not None


def _statements(name: str, text: str) -> Iterator[tuple[int, list[str]]]:
    pending, first = "", 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        pending, first = (f"{pending}\n{line}", first) if pending else (line, number)
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        lexer = shlex.shlex(_INNER_HASH.sub("\0", pending), posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        try:
            words = [word.replace("\0", "#") for word in lexer]
        except ValueError:  # a quotation mark that a later line closes
            continue
        pending = ""
        for between, group in groupby(words, lambda word: word.startswith(";")):
            if not between:
                yield first, list(group)
    if pending:
        raise ConfigError(f"{name}:{first}: a quotation mark that opens here is never closed")


def _settings(words: list[str]) -> Iterator[tuple[str, str, bool]]:
    begins, follows = True, False
    for word, after in pairwise([*words, ""]):
        name, sign, value = word.partition("=")
        option = word[2:].replace("-", "_")
        if begins and sign and name.isidentifier():
            yield name, value, follows
        elif word.startswith("--") and option in _NUMBERS:
            yield option, after, follows
        elif word[:1] in ("&", "|"):
            begins = follows = True
        else:
            begins = word in ("export", "local", "declare", "readonly") or word.endswith(")")
