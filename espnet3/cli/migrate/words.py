"""The words of a shell script; what the shell would put in place of `$name` is left open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from espnet3.cli.migrate.origin import Origin, mistake

_VARIABLE = re.compile(r"\$(?:(?P<name>\w+|[@*#?$!-])|\{(?P<braced>\w+)(?::?-(?P<default>[^}$`]*))?\})")
_OPERATOR = re.compile(r"&&|\|\||;;|[\n;&|()<>]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word.

    Attributes:
        text: Its text; the name of a variable; the source of something that only a shell can compute.
        kind: "text", "variable" or "computed".
        default: Of a variable: the text of `${name:-text}`.
    """

    text: str
    kind: str = "text"
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """A word, or an operator such as `;`, `&&` or the end of a line.

    Attributes:
        line: The line where it begins, from 1.
        pieces: Its parts, in their order.
        operator: What it is, where it is an operator; "" for a word.
    """

    line: int
    pieces: tuple[Piece, ...] = ()
    operator: str = ""

    @property
    def literal(self) -> str:
        """Its text without what is left open."""
        return "".join(piece.text for piece in self.pieces if piece.kind == "text")


class Words:
    """The words of a script.

    Args:
        name: The file, for messages.
        text: The script.
    """

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._at = 0

    def __iter__(self) -> Iterator[Word]:
        """Yield them in their order."""
        while self._skip_space():
            line = self._line(self._at)
            if found := _OPERATOR.match(self._text, self._at):
                self._at = found.end()
                yield Word(line, operator=found[0])
            else:
                yield Word(line, tuple(self._word()))

    def _line(self, at: int) -> int:
        return self._text.count("\n", 0, at) + 1

    def _skip_space(self) -> bool:
        """Go to the next word or operator; return whether there is one."""
        text = self._text
        while self._at < len(text):
            if text.startswith("\\\n", self._at):
                self._at += 2
            elif text[self._at] == "#":  # a comment, since no word has begun
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif text[self._at] in " \t\r":
                self._at += 1
            else:
                return True
        return False

    def _word(self) -> Iterator[Piece]:
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if char in " \t\r" or _OPERATOR.match(text, self._at):
                return
            if char == "'":
                end = self._closing("'", self._at + 1)
                yield Piece(text[self._at + 1 : end])
                self._at = end + 1
            elif char == '"':
                begin = self._at
                self._at += 1
                yield Piece("")  # "" is a word too
                while self._at < len(text) and text[self._at] != '"':
                    yield self._piece('"')
                if self._at == len(text):
                    raise self._open('"', begin)
                self._at += 1
            elif text.startswith("\\\n", self._at):
                self._at += 2
            else:
                yield self._piece("'\" \t\r\n;&|()<>")

    def _piece(self, ends: str) -> Piece:
        """Return the next part: a variable, something computed, an escaped letter, or text up to one of `ends`."""
        text, begin = self._text, self._at
        if text[begin] == "\\":
            self._at = begin + 2
            return Piece(text[begin + 1 : begin + 2].replace("\n", ""))
        if text[begin] == "`":
            self._at = self._closing("`", begin + 1) + 1
            return Piece(text[begin : self._at], "computed")
        if text[begin] == "$":
            if found := _VARIABLE.match(text, begin):
                self._at = found.end()
                return Piece(found["name"] or found["braced"], "variable", found["default"])
            return self._computed()
        self._at = begin + 1
        while self._at < len(text) and text[self._at] not in ends + "\\`$":
            self._at += 1
        return Piece(text[begin : self._at])

    def _computed(self) -> Piece:
        """Return `$(...)`, `$((...))` or `${...}` of another kind, as a whole."""
        begin = self._at
        opening = self._text[begin + 1 : begin + 2]
        closing = {"(": ")", "{": "}"}.get(opening)
        if closing is None:  # a dollar sign of its own
            self._at += 1
            return Piece("$")
        depth = 0
        for at in range(begin + 1, len(self._text)):
            depth += {opening: 1, closing: -1}.get(self._text[at], 0)
            if depth == 0:
                self._at = at + 1
                return Piece(self._text[begin : self._at], "computed")
        raise self._open("$" + opening, begin)

    def _closing(self, mark: str, begin: int) -> int:
        end = self._text.find(mark, begin)
        if end < 0:
            raise self._open(mark, begin - 1)
        return end

    def _open(self, mark: str, at: int) -> Exception:
        return mistake(Origin(self._name, self._line(at)), f"the {mark} that opens here is never closed")
