"""The settings in shell scripts such as cmd.sh and run.sh, read without running them.

Assignments, options of a command (`./asr.sh --nj 32`) and an `if` that compares two texts are read. What needs a shell
to be understood (`$(hostname)`, `case`, `&&`) is left out, with a note.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from espnet3.cli.migrate.kaldi import Entry
from espnet3.parallel.errors import ConfigError

_NUMBERS = ("nj", "inference_nj", "gpu_inference")  # of run.sh and asr.sh
_WANTED = (*_NUMBERS, "cmd", "train_cmd", "cuda_cmd", "decode_cmd", "cmd_backend")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
# the scheduler's shell, or whatever opens a file, knows the variables of a login
_COMPUTED = re.compile(r"`|\$(?!\{?(?:HOME|USER|TMPDIR|PWD)\b)")
_PATTERN = re.compile(r"[*?\[`$]")  # no plain text on the right of a comparison
_BEFORE = ("then", "do", "{")
_INNER_HASH = re.compile(r"(?<=[^\s;&|])#")  # as in $#, where shlex would begin a comment


@dataclass(slots=True)
class _Branch:
    """An open `if` or `case`: does its part run, and may a later part? None: only a shell can decide."""

    said: str
    runs: bool | None = None
    open: bool | None = True


class Script:
    """The settings of one script after another; variables that are given at first stay as they are."""

    def __init__(self, fixed: Mapping[str, Entry]) -> None:
        self.variables = dict(fixed)
        self.notes: list[str] = []  # settings that are left out
        self._fixed = frozenset(fixed)
        self._branches: list[_Branch] = []  # open ones

    def read(self, name: str, text: str) -> None:
        """Read a script."""
        self._branches = []
        for line, statement in _statements(name, text):
            first = next((at for at, word in enumerate(statement) if word not in _BEFORE), len(statement))
            words = self._branch(f"{name}:{line}", statement[first:])
            if all(branch.runs is not False for branch in self._branches):
                self._take(f"{name}:{line}", words)

    def _branch(self, where: str, words: list[str]) -> list[str]:
        """Open, change or close a branch; return the words that remain."""
        first = words[0] if words else ""
        if first in ("if", "case"):
            self._branches.append(_Branch(""))
        if first not in ("if", "elif", "else", "fi", "case", "esac") or not self._branches:
            return words
        if first in ("fi", "esac"):
            self._branches.pop()
            return words[1:]
        branch = self._branches[-1]
        branch.runs = _both(branch.open, True if first == "else" else self._holds(words[1:]))
        branch.open = _both(branch.open, None if branch.runs is None else not branch.runs)
        if first == "else":
            return words[1:]
        branch.said = f"{where}: {' '.join(words)!r}"
        return []

    def _holds(self, condition: list[str]) -> bool | None:
        """Return whether a comparison of two texts is true; None: only a shell can decide."""
        match [self._filled(word) for word in condition]:
            case ["[" | "[[", left, "=" | "==", right, "]" | "]]"]:
                return None if is_computed(left) or _PATTERN.search(right) else left == right
        return None

    def _take(self, where: str, words: list[str]) -> None:
        """Take the settings of a statement, or note those that a shell must decide or compute."""
        unsure = next((f" ({each.said})" for each in self._branches if each.runs is None), "")
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
        def known(found: re.Match[str]) -> str:
            return str(self.variables.get(found[1] or found[2], Entry(found[0], "")).value)

        return _VARIABLE.sub(known, word)


def is_computed(value: str) -> bool:
    """Tell a value that only a shell can compute."""
    return _COMPUTED.search(value) is not None


def _both(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _statements(name: str, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the words between line ends and semicolons, with their line; operators such as `&&` stay words."""
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
        while words:
            ends = [at for at, word in enumerate(words) if word.startswith(";")]
            end = ends[0] if ends else len(words)
            yield first, words[:end]
            words = words[end + 1 :]
    if pending:
        raise ConfigError(f"{name}:{first}: a quotation mark that opens here is never closed")


def _settings(words: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield assignments, which stand before a command, and options of a number: name, value and does it follow `&&`."""
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
