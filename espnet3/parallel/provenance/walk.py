"""The walk over the user's code: from the definitions of runner and provider to all that these use."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from espnet3.parallel.provenance import live
from espnet3.parallel.provenance.content import NoContentError, content_hash
from espnet3.parallel.provenance.modules import file_of, is_own, locate, name_of, own_modules_loaded
from espnet3.parallel.provenance.syntax import REST, ImportRef, Statement, digest, statements

_MOST_PARTS = (
    4000  # of all files: more are kept as one hash a file, so that a large code base leaves a small run.json
)
VALUE = "the value of "

# By module: {"file": ..., "whole": ..., "parts": {name: hash}}, and "guessed": True where it counts only because it is
# loaded, and other code imports by names made at run time
Code = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the user's, taken apart."""

    statements: tuple[Statement, ...]

    @staticmethod
    def read(file: str) -> Source:
        """Read a file; one that is no Python source (a compiled module) counts by its bytes."""
        stat = os.stat(file)
        return _parse(file, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=2048)
def _parse(file: str, mtime_ns: int, size: int) -> Source:
    raw = Path(file).read_bytes()
    try:
        return Source(tuple(statements(raw)))
    except (
        SyntaxError,
        ValueError,
        RecursionError,
    ):  # a compiled module, or a file that nobody can import now
        part = (REST, digest(raw.decode("latin-1")))
        return Source((Statement(frozenset(), frozenset(), frozenset(), (), (part,)),))


def all_parts(source: Source) -> dict[str, str]:
    """Return the hash of each part of a module that an import runs."""
    return parts_by_name(each for each in source.statements if not each.guarded)


def parts_by_name(found: Iterable[Statement]) -> dict[str, str]:
    """Return the hash of each part; parts of the same name (a function defined twice) make one."""
    texts: dict[str, list[str]] = {}
    for statement in found:
        for name, one in statement.parts:
            texts.setdefault(name, []).append(one)
    return {name: ones[0] if len(ones) == 1 else digest("/".join(ones)) for name, ones in texts.items()}


def one_hash(parts: dict[str, str]) -> str:
    """Return one hash for all parts."""
    return digest("/".join(f"{name} {one}" for name, one in sorted(parts.items())))


@dataclass(slots=True)
class _Partial:
    """A module of which only what is reached by name counts."""

    live: str  # its name in `sys.modules`
    file: str
    source: Source
    chosen: dict[int, Statement] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def all_names(self) -> list[str]:
        """Return every name that importing the module gives a value to."""
        return [name for each in self.source.statements if not each.guarded for name in each.binds]


class Walk:
    """Follows names and imports from the roots on.

    Attributes:
        installed: Top-level names of the installed packages that were met, the standard library's included.
    """

    def __init__(self) -> None:
        self.installed: set[str] = set()
        self._whole: dict[str, str] = {}  # file by module
        self._partial: dict[str, _Partial] = {}  # by module
        self._todo: list[
            tuple[str, str]
        ] = []  # modules that something imports, and the name it takes from each
        self._any_loaded = (
            False  # something imports by a name made at run time: any module of the user's may be meant
        )
        self._live = live.LiveCode(self._from_live)

    def root(self, thing: Any) -> None:
        """Take in a class, function or module, with what it reaches in its own module."""
        if isinstance(thing, ModuleType):
            self._todo.append((thing.__name__, ""))
            return
        module = getattr(thing, "__module__", None) or ""
        file = file_of(module)
        if not (is_own(file) if file is not None else live.is_own(thing)):
            return
        top = str(getattr(thing, "__qualname__", "")).partition(".")[0]
        if file is not None:
            source = Source.read(file)
            if any(top in each.binds for each in source.statements):
                known = name_of(module)
                part = self._partial.setdefault(known, _Partial(module, file, source))
                self._name(known, part, top)
                self._todo.append((known.rpartition(".")[0], ""))  # the package it is in
                self._live.given(thing)
                return
        self._live.add(thing)

    def _from_live(self, thing: Any) -> None:
        """Take in what code without a file refers to."""
        module = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""
        self._todo.append((module, ""))

    def target(self, dotted: str) -> None:
        """Take in the module that a dotted name leads to."""
        self._todo.append((dotted, ""))

    def _module(self, dotted: str, name: str) -> None:
        """Take in a module that is imported: whole, or what is taken from it where a root stands in it."""
        files = locate(f"{dotted}.{name}" if name else dotted)
        for module, file in files.items():
            if module in self._partial:
                part = self._partial[module]
                known = any(name in each.binds for each in part.source.statements)
                takes = [name] if module == dotted and known else part.all_names()
                for each in takes:
                    self._name(module, part, each)
            elif not is_own(file):
                self.installed.add(module.partition(".")[0])
            elif module not in self._whole:
                self._whole[module] = file
                for statement in Source.read(file).statements:
                    if not statement.guarded:
                        self._imports(statement.imports, module, file)

    def _name(self, module: str, part: _Partial, name: str) -> None:
        """Take in a name of a module, and what its value depends on there."""
        todo = [name]
        while todo:
            name = todo.pop()
            if name in part.names:
                continue
            part.names.add(name)
            for at, statement in enumerate(part.source.statements):
                if at in part.chosen or not (name in statement.binds or name in statement.touches):
                    continue
                part.chosen[at] = statement
                todo += [*statement.uses, *(part.all_names() if statement.sees_all else ())]
                self._imports(statement.imports, module, part.file)

    def _imports(self, refs: Iterable[ImportRef], module: str, file: str) -> None:
        is_package = os.path.basename(file).startswith("__init__.")
        package = module if is_package else module.rpartition(".")[0]
        for ref in refs:
            if ref.module is None:
                self._any_loaded = True
                continue
            base = ref.module
            if ref.level:
                above = package.split(".")
                base = ".".join([*above[: len(above) - ref.level + 1], *([base] if base else [])])
            self._todo.append((base, "" if ref.name == "*" else ref.name))

    def result(self) -> Code:
        """Return what was found."""
        done: set[tuple[str, str]] = set()
        self._follow(done)
        certain = set(self._whole)
        if self._any_loaded:
            self._todo += [(name, "") for name in own_modules_loaded()]
            self._follow(done)
        found: Code = {}
        for module, part in self._partial.items():
            parts = parts_by_name(part.chosen[at] for at in sorted(part.chosen))
            found[module] = {"file": part.file, "whole": False, "parts": {**parts, **_values(part)}}
        for module, file in self._whole.items():
            found[module] = {"file": file, "whole": True, "parts": all_parts(Source.read(file))}
            if module not in certain:
                found[module]["guessed"] = True
        if sum(len(entry["parts"]) for entry in found.values()) > _MOST_PARTS:
            for entry in found.values():
                entry["parts"] = {REST: one_hash(entry["parts"])} if entry["whole"] else entry["parts"]
        for module, parts in self._live.parts().items():
            entry = found.setdefault(module, {"file": None, "whole": False, "parts": {}})
            entry["parts"] = {**entry["parts"], **parts}
        return {module: found[module] for module in sorted(found) if found[module]["parts"]}

    def _follow(self, done: set[tuple[str, str]]) -> None:
        """Take in what is to be taken in, with what that imports, and so on."""
        while self._todo:
            wanted = self._todo.pop()
            if wanted not in done:
                done.add(wanted)
                self._module(*wanted)


def _values(part: _Partial) -> dict[str, str]:
    """Return the hashes of reached variables that hold data: an option read from the command line, say.

    Not of those that functions of the module change: what those hold is a matter of when one looks.
    """
    module = sys.modules.get(part.live)
    mutated = frozenset().union(*(each.mutates for each in part.source.statements))
    found = {}
    for statement in part.chosen.values():
        for name in () if statement.defines else statement.binds & part.names - mutated:
            value = getattr(module, name, None)
            if live.is_data(value):
                try:
                    found[VALUE + name] = content_hash(value, name, data_only=True)[:16]
                except NoContentError:  # something in it is no data: its statement stands for it
                    continue
    return found
