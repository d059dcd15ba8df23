"""What a shell script such as cmd.sh or run.sh assigns, read without running it.

Assignments, `export`, `if` with a comparison of texts, and options of a command (`./asr.sh --nj 32`) are read. What
needs a shell to be understood (`$(hostname)`, `case`, `&&`) is left out, with a note.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from espnet3.cli.migrate.origin import Origin, Setting, mistake

NUMBERS = ("nj", "inference_nj", "gpu_inference", "ngpu", "num_nodes")  # of run.sh and asr.sh
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_WANTED = re.compile(rf"\w*cmd|{'|'.join(NUMBERS)}")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}$`]*))?\})")
_OF_LOGIN = ("HOME", "USER", "TMPDIR", "PWD")  # the scheduler's shell, or whatever opens a file, knows these
_INNER_HASH = re.compile(r"(?<=[^\s;&|])#")  # as in $#, where shlex would begin a comment
_WORDS_BEFORE = ("then", "else", "do", "{")


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


@dataclass(slots=True)
class _Branch:
    """An open `if` or `case`: whether its part is run (None: only a shell knows), and whether one was before."""

    line: int
    said: str
    active: bool | None
    taken: bool = False


Statement = list[tuple[int, str]]  # words with their lines


def read_script(name: str, text: str, fixed: Mapping[str, Setting] | None = None) -> Script:
    """Read a script."""
    reader = _Reader(Script(name), dict(fixed or {}))
    for statement in _statements(name, text):
        reader.take(statement)
    if reader.branches:
        raise mistake(Origin(name, reader.branches[-1].line), "this 'if' or 'case' is never closed")
    return reader.script


def _statements(name: str, text: str) -> Iterator[Statement]:
    """Yield the words between line ends and semicolons; operators such as `&&` stay words."""
    statement: Statement = []
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        pending, first = (f"{pending}\n{line}", first) if pending else (line, number)
        continued = pending.endswith("\\")
        source = _INNER_HASH.sub("\0", pending.removesuffix("\\"))
        lexer = shlex.shlex(source, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        try:
            words = [word.replace("\0", "#") for word in lexer]
        except ValueError:  # a quotation mark that a later line closes
            continue
        pending = ""
        for word in words:
            if word.startswith(";"):
                yield statement
                statement = []
            else:
                statement.append((first, word))
        if not continued:
            yield statement
            statement = []
    if pending:
        mark = min((pending.find(sign), sign) for sign in "\"'" if sign in pending)[1]
        raise mistake(Origin(name, first), f"the {mark} that opens here is never closed")
    yield statement


class _Reader:
    def __init__(self, script: Script, fixed: dict[str, Setting]) -> None:
        self.script = script
        self.fixed = fixed
        self.branches: list[_Branch] = []

    def take(self, statement: Statement) -> None:
        while statement and statement[0][1] in _WORDS_BEFORE:
            if statement[0][1] == "else" and self.branches:
                branch = self.branches[-1]
                branch.active = None if branch.active is None and not branch.taken else not branch.taken
            statement = statement[1:]
        if not statement:
            return
        line, first = statement[0]
        if first in ("elif", "fi", "esac") and not self.branches:
            raise mistake(
                Origin(self.script.name, line), f"nothing is open that this {first!r} could belong to"
            )
        said = " ".join(word for _, word in statement)
        if first == "if":
            holds = self._holds(statement[1:])
            self.branches.append(_Branch(line, said, holds, bool(holds)))
        elif first == "case":
            self.branches.append(_Branch(line, said, None))
        elif first == "elif":
            branch = self.branches[-1]
            branch.line, branch.said = line, said
            branch.active = False if branch.taken else self._holds(statement[1:])
            branch.taken = branch.taken or bool(branch.active)
        elif first in ("fi", "esac"):
            self.branches.pop()
        else:
            self._run(statement, said)

    def _holds(self, condition: Statement) -> bool | None:
        """Return whether a comparison of texts is true; None: only a shell knows."""
        match [self._value(word) for _, word in condition]:
            case ["[" | "[[", str(left), "=" | "==" | "!=" as sign, str(right), "]" | "]]"]:
                return (left == right) == (sign != "!=")
            case ["[" | "[[", "-n" | "-z" as sign, str(value), "]" | "]]"]:
                return (value == "") == (sign == "-z")
        return None

    def _run(self, statement: Statement, said: str) -> None:
        if any(branch.active is False for branch in self.branches):
            return
        unknown = next((branch for branch in self.branches if branch.active is None), None)
        # what stands behind `&&`, or in a branch that only a shell can decide, may run or not
        sure = next(
            (at for at, (_, word) in enumerate(statement) if word and word[0] in "&|"), len(statement)
        )
        why = f"it is a part of {said!r}"
        if unknown is not None:
            sure, why = 0, f"it depends on {unknown.said!r} (line {unknown.line})"
        for line, word in statement[sure:]:
            if _ASSIGNMENT.match(word) and _WANTED.fullmatch(word.partition("=")[0]):
                self.script.notes.append(
                    f"{self.script.name}:{line}: {word!r} is left out: {why}, which only a shell can decide; if it "
                    "counts, migrate a copy with it alone"
                )
        words = statement[:sure]
        if words and words[0][1] in ("export", "local", "declare", "readonly"):
            words = words[1:]
        while words and _ASSIGNMENT.match(words[0][1]):
            self._assign(words[0][1], Origin(self.script.name, words[0][0]))
            words = words[1:]
        self._options(words)

    def _assign(self, word: str, origin: Origin) -> None:
        variable, _, source = word.partition("=")
        value = self._value(source)
        self.script.variables.pop(variable, None)
        self.script.computed.pop(variable, None)
        if variable in self.fixed:
            self.script.variables[variable] = self.fixed[variable]
        elif value is None:
            self.script.computed[variable] = Setting(source, origin)
        else:
            self.script.variables[variable] = Setting(value, origin)

    def _options(self, words: Statement) -> None:
        """Read `--nj 32` of a command such as `./asr.sh --nj 32 --inference_nj 4`."""
        for (line, word), (_, after) in pairwise(words):
            option, value = word.removeprefix("--").replace("-", "_"), self._value(after)
            if word.startswith("--") and option in NUMBERS and value is not None:
                self.script.variables[option] = Setting(value, Origin(self.script.name, line))

    def _value(self, word: str) -> str | None:
        """Return a word with its variables filled in; None: only a shell can compute it."""
        parts, at = [], 0
        for found in _VARIABLE.finditer(word):
            name = found[1] or found[2]
            known = self.fixed.get(name) or self.script.variables.get(name)
            default = None if name in self.script.computed else found[3]
            value = known.value if known else f"${{{name}}}" if name in _OF_LOGIN else default
            if value is None:
                return None
            parts += [word[at : found.start()], value]
            at = found.end()
        rest = word[at:]
        return None if "$" in rest or "`" in word else "".join([*parts, rest])
