"""A module of which only what is reached by name counts: what of it has been reached."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from espnet3.parallel.checks import is_a, own_attribute
from espnet3.parallel.provenance.rivals import Spans, full_name, lines_of, put_in_place
from espnet3.parallel.provenance.text.source import Source, parts_by_name
from espnet3.parallel.provenance.text.syntax import Statement, digest
from espnet3.parallel.provenance.values import VALUE


@dataclass(slots=True)
class Partial:
    """A module of which only what is reached by name counts.

    Attributes:
        live: Its name in `sys.modules`.
        file: Its file.
        source: Its statements.
        chosen: Those that count, by their place.
        names: The names that were reached.
        things: What each of them stands for: the module's, and what a class or function of that name came from.
        values: The hashes of each, by what it is called.
        looked: Names whose values have been looked at.
        guessing: Whether what is reached now may be meant or not: then its values say nothing.
        bound: Every name that some statement gives a value to.
        spans: The first and last lines of the functions and classes that each name is defined as.
    """

    live: str
    file: str
    source: Source
    chosen: dict[int, Statement] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    things: dict[str, list[Any]] = field(default_factory=dict)
    values: dict[str, set[str]] = field(default_factory=dict)
    looked: set[str] = field(default_factory=set)
    guessing: bool = False
    bound: frozenset[str] = field(init=False)
    spans: dict[str, Spans] = field(init=False)

    def __post_init__(self) -> None:
        self.bound = frozenset().union(*(each.binds for each in self.source.statements))
        self.spans = {}
        for each in self.source.statements:
            for name in each.binds if each.defines else ():
                self.spans.setdefault(name, []).append(each.lines)

    def all_names(self) -> list[str]:
        """Return every name that importing the module gives a value to."""
        return [name for each in self.source.statements if not each.guarded for name in each.binds]

    def value(self, name: str) -> Any:
        """Return what a name stands for in the module now."""
        return own_attribute(sys.modules.get(self.live), name)

    def reach(self, name: str, thing: Any) -> bool:
        """Note that a name was reached, and what it stands for; False where that was known."""
        known = self.things.setdefault(name, [])
        if any(thing is one for one in known):
            return False
        if known and not self.guessing:
            self.looked.discard(name)
        known.append(thing)
        self.names.add(name)
        return True

    def is_of(self, statement: Statement, name: str, thing: Any) -> bool:
        """Whether a statement may be the one that made what a name stands for: of several definitions, one has."""
        spans = self.spans.get(name, [])
        if len(spans) < 2 or not statement.defines or name not in statement.binds:
            return True
        lines = lines_of(thing, name, self.file)
        made = [(a, b) for a, b in spans if any(a <= line <= b for line in lines)]
        return not made or statement.lines in made

    def note(self, name: str, value: str) -> None:
        """Note the hash of what something holds."""
        self.values.setdefault(VALUE + name, set()).add(value)

    def note_functions(self, name: str, value: Any) -> None:
        """Note which functions stand under a name, where that is not simply what the file defines there."""
        top, _, method = name.partition(".")
        if method.startswith(mangled := f"_{top.lstrip('_')}__"):
            method = method.removeprefix(mangled[:-2])
        found = put_in_place(value, method or top, self.file, self.spans.get(top, []))
        if found is not None:
            self.note(name, found)

    def note_which(self, name: str, value: Any, statement: Statement) -> None:
        """Note which function or class a variable holds, unless its one statement is an import, which says it."""
        if statement.imports and sum(name in each.binds for each in self.source.statements) == 1:
            return
        if is_a(value, type):
            self.note(f"{name} itself", digest(full_name(value)))
        elif found := put_in_place(value, name, self.file, []):
            self.note(f"{name} itself", found)

    def parts(self) -> dict[str, str]:
        """Return the hashes of what counts, by name."""
        texts = parts_by_name(self.chosen[at] for at in sorted(self.chosen))
        values = {
            name: digest("/".join(sorted(found))) if len(found) > 1 else next(iter(found))
            for name, found in self.values.items()
        }
        return {**texts, **values}
