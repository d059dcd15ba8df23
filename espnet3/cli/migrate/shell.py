"""What a shell script such as cmd.sh or run.sh assigns, read without running it.

Assignments, `export`, `if` with comparisons of text, and options on a command line (`./asr.sh --nj 32`) are understood.
What only a shell can compute (`$(hostname)`) is not guessed: a branch that depends on it is left out, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from espnet3.cli.migrate.origin import Origin, Setting, mistake
from espnet3.cli.migrate.words import Word, Words

# What run.sh and asr.sh call the numbers that count here.
NUMBERS = ("nj", "inference_nj", "gpu_inference", "ngpu", "num_nodes")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_WANTED = re.compile(rf"\w*cmd|{'|'.join(NUMBERS)}")


@dataclass(slots=True)
class Script:
    """What a script assigns.

    Attributes:
        name: The file, as the user named it.
        variables: The last value of each variable.
        computed: Variables whose value only a shell can compute, with its source.
        notes: What was left out, in a sentence each.
    """

    name: str
    variables: dict[str, Setting] = field(default_factory=dict)
    computed: dict[str, Setting] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_script(name: str, text: str, fixed: Mapping[str, Setting] | None = None) -> Script:
    """Read a script."""
    reader = _Reader(Script(name), dict(fixed or {}))
    for statement in _statements(Words(name, text)):
        reader.take(statement)
    if reader.branches:
        raise mistake(Origin(name, reader.branches[-1].line), "this 'if' or 'case' is never closed")
    return reader.script


def _statements(words: Words) -> Iterator[list[Word]]:
    statement: list[Word] = []
    for word in words:
        if word.operator in ("\n", ";", ";;"):
            if statement:
                yield statement
            statement = []
        else:
            statement.append(word)
    if statement:
        yield statement


@dataclass(slots=True)
class _Branch:
    """An `if` or `case` that is open.

    Attributes:
        line: Where it begins.
        outside: Whether the statement stands where it is run at all.
        active: Whether the part that is being read is run.
        taken: Whether a part was run before.
        unknown: The line and source of a condition that only a shell can compute; None: it is known.
    """

    line: int
    outside: bool
    active: bool = False
    taken: bool = False
    unknown: tuple[int, str] | None = None


class _Reader:
    def __init__(self, script: Script, fixed: dict[str, Setting]) -> None:
        self.script = script
        self.fixed = fixed
        self.branches: list[_Branch] = []

    @property
    def active(self) -> bool:
        return all(branch.active for branch in self.branches)

    def take(self, statement: list[Word]) -> None:
        first, rest = statement[0].literal, statement[1:]
        if first == "if":
            self.branches.append(_Branch(statement[0].line, self.active))
            self._decide(statement[0].line, rest)
        elif first == "case":
            unknown = (statement[0].line, " ".join(_source(word) for word in statement))
            self.branches.append(_Branch(statement[0].line, self.active, unknown=unknown))
        elif first in ("elif", "else", "fi", "esac") and not self.branches:
            raise mistake(
                Origin(self.script.name, statement[0].line),
                f"nothing is open that this {first!r} could belong to",
            )
        elif first == "elif":
            self._decide(statement[0].line, rest)
        elif first == "else":
            branch = self.branches[-1]
            branch.active, branch.unknown = branch.outside and not branch.taken, None
            if rest:
                self.take(rest)
        elif first in ("fi", "esac"):
            self.branches.pop()
        elif first in ("then", "do", "{"):
            if rest:
                self.take(rest)
        else:
            self._run(statement)

    def _decide(self, line: int, condition: list[Word]) -> None:
        branch = self.branches[-1]
        branch.active, branch.unknown = False, None
        if not branch.outside or branch.taken:
            return
        holds = self._holds(condition)
        branch.active = branch.taken = bool(holds)
        if holds is None:
            branch.unknown = (line, " ".join(_source(word) for word in condition))

    def _holds(self, condition: list[Word]) -> bool | None:
        """Return whether a comparison of text is true; None: that is not known."""
        values = [None if word.operator else self._value(word) for word in condition]
        if len(values) < 3 or (values[0], values[-1]) not in (("[", "]"), ("[[", "]]")):
            return None
        inner = values[1:-1]
        match inner:
            case ["-n", value] if value is not None:
                return value != ""
            case ["-z", value] if value is not None:
                return value == ""
            case [left, "=" | "==" | "!=" as sign, right] if left is not None and right is not None:
                return (left == right) == (sign != "!=")
        return None

    def _run(self, statement: list[Word]) -> None:
        end = next((at for at, word in enumerate(statement) if word.operator), len(statement))
        words = statement[:end]
        unknown = next((branch.unknown for branch in self.branches if branch.unknown), None)
        assigned = [word for word in statement if (found := _name(word)) and _WANTED.fullmatch(found)]
        if not self.active:
            for word in assigned if unknown else ():
                assert unknown is not None
                self.script.notes.append(
                    f"{self.script.name}:{word.line}: {_source(word)!r} is left out: it depends on {unknown[1]!r} "
                    f"(line {unknown[0]}), which only a shell can decide; if it counts, migrate a copy with it alone"
                )
            return
        for word in assigned:
            if word not in words:
                self.script.notes.append(
                    f"{self.script.name}:{word.line}: {_source(word)!r} is left out: it stands behind a "
                    f"{statement[end].operator!r}, which only a shell can follow"
                )
        if words and words[0].literal in ("export", "local", "declare", "readonly"):
            words = words[1:]
        elif words and _name(words[0]) is None:
            self._options(words)
            return
        for word in words:
            if variable := _name(word):
                self._assign(variable, word)

    def _assign(self, variable: str, word: Word) -> None:
        origin = Origin(self.script.name, word.line)
        value = self._value(word)
        self.script.variables.pop(variable, None)
        self.script.computed.pop(variable, None)
        if variable in self.fixed:
            self.script.variables[variable] = self.fixed[variable]
        elif value is None:
            self.script.computed[variable] = Setting(_source(word).partition("=")[2], origin)
        else:
            self.script.variables[variable] = Setting(value.partition("=")[2], origin)

    def _options(self, words: list[Word]) -> None:
        """Read `--nj 32` of a command such as `./asr.sh --nj 32 --inference_nj 4`."""
        for word, after in pairwise(words):
            option = word.literal.removeprefix("--").replace("-", "_")
            value = self._value(after)
            if word.literal.startswith("--") and option in NUMBERS and value is not None:
                self.script.variables[option] = Setting(value, Origin(self.script.name, word.line))

    def _value(self, word: Word) -> str | None:
        """Return a word's text; None: only a shell can compute it. A variable of the environment stays `$NAME`."""
        parts = []
        for piece in word.pieces:
            if piece.kind == "text":
                parts.append(piece.text)
                continue
            known = self.fixed.get(piece.text) or self.script.variables.get(piece.text)
            if piece.kind == "variable" and known is not None:
                parts.append(known.value)
            elif piece.kind == "variable" and piece.default is not None and not self._is_computed(piece.text):
                parts.append(piece.default)
            elif piece.kind == "variable" and piece.text in ("HOME", "USER", "TMPDIR", "PWD"):
                parts.append(
                    f"${{{piece.text}}}"
                )  # the scheduler's own shell, or whoever opens a file, knows it
            else:
                return None
        return "".join(parts)

    def _is_computed(self, variable: str) -> bool:
        return variable in self.script.computed


def _name(word: Word) -> str | None:
    """Return the variable that a word assigns; None: it is no assignment."""
    first = word.pieces[0] if word.pieces else None
    found = _ASSIGNMENT.match(first.text) if first is not None and first.kind == "text" else None
    return found[1] if found else None


def _source(word: Word) -> str:
    """Return a word much as it was written."""
    return word.operator or "".join(
        f"${{{piece.text}}}" if piece.kind == "variable" else piece.text for piece in word.pieces
    )
