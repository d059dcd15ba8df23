"""The walk over the user's code: from the definitions of runner and provider to all that these use."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a, own_attribute
from espnet3.parallel.provenance import FUNCTION, live
from espnet3.parallel.provenance.held import attributes_of, code_in, inner
from espnet3.parallel.provenance.modules import (
    file_of,
    is_own,
    locate,
    module_of,
    name_of,
    own_modules_loaded,
    own_without_file,
)
from espnet3.parallel.provenance.partial import Partial
from espnet3.parallel.provenance.text.names import ImportRef
from espnet3.parallel.provenance.text.source import Source, all_parts, one_hash
from espnet3.parallel.provenance.text.syntax import REST
from espnet3.parallel.provenance.values import VALUE, given, value_hash

_MOST_PARTS = (
    4000  # of all files: more are kept as one hash a file, so that a large code base leaves a small run.json
)

# By module: {"file": ..., "whole": ..., "parts": {name: hash}}, and "guessed": True where it counts only because it is
# loaded, and other code imports by names made at run time
Code = dict[str, dict[str, Any]]


class Walk:
    """Follows names and imports from the roots on.

    Attributes:
        installed: Top-level names of the installed packages that were met, the standard library's included.
    """

    def __init__(self) -> None:
        self.installed: set[str] = set()
        self._whole: dict[str, str] = {}  # file by module
        self._partial: dict[str, Partial] = {}  # by module
        self._todo: list[
            tuple[str, str]
        ] = []  # modules that something imports, and the name it takes from each
        self._any_loaded = (
            False  # something imports by a name made at run time: any module of the user's may be meant
        )
        self._live = live.LiveCode(self._from_live)

    def root(self, thing: Any) -> None:
        """Take in a class, function or module, with what it reaches in its own module."""
        if is_a(thing, ModuleType):
            self._todo.append((thing.__name__, ""))
            return
        module = module_of(thing)
        file = file_of(module)
        if not (is_own(file) if file is not None else own_without_file(thing)):
            return
        top = _top(thing)
        if file is not None:
            source = Source.read(file)
            if any(top in each.binds for each in source.statements):
                known = name_of(module)
                if known not in self._partial:
                    self._partial[known] = Partial(module, file, source)
                    self._alone(known, self._partial[known])
                meant = inner(vars(thing).get(FUNCTION, thing)) if is_a(thing, type) else thing
                self._name(known, self._partial[known], top, meant)
                self._todo.append((known.rpartition(".")[0], ""))  # the package it is in
                self._live.given(thing)
                return
        self._live.add(thing)

    def _from_live(self, thing: Any) -> None:
        """Take in what code without a file refers to."""
        module = thing.__name__ if is_a(thing, ModuleType) else module_of(thing)
        self._todo.append((module, ""))

    def target(self, dotted: str) -> None:
        """Take in the module that a dotted name leads to; of the program itself only what is named."""
        module, _, rest = dotted.partition(".")
        thing = own_attribute(sys.modules.get(module), rest.partition(".")[0])
        if module in ("__main__", "__mp_main__") and is_a(thing, (FunctionType, type)):
            self.root(thing)
        else:
            self._todo.append((dotted, ""))

    def _found(self, thing: Any) -> None:
        """Take in a function, class or module that a variable holds."""
        if is_a(thing, ModuleType):
            file = own_attribute(thing, "__file__")
            if is_a(file, str) and is_own(file):
                self._whole_module(thing.__name__, os.path.abspath(file))
            return
        module = module_of(thing)
        file = file_of(module)
        if file is None or module in ("__main__", "__mp_main__"):
            self.root(thing)
        elif is_own(file):
            known, top = name_of(module), _top(thing)
            part = self._partial.get(known)
            if part is None:
                self._todo.append((module, ""))
            elif top in part.bound:
                self._name(known, part, top, thing)

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
            else:
                self._whole_module(module, file)

    def _whole_module(self, module: str, file: str) -> None:
        if module not in self._whole:
            self._whole[module] = file
            for statement in Source.read(file).statements:
                if not statement.guarded:
                    self._imports(statement.imports, module, file)

    def _alone(self, module: str, part: Partial) -> None:
        """Take in imports of names that nothing in the file uses: they are there for what they do."""
        used = frozenset().union(*(each.uses for each in part.source.statements))
        for statement in part.source.statements:
            here = [ref for ref in statement.imports if ref.name != "*"]
            if here and not statement.defines and not statement.guarded and not statement.binds & used:
                self._imports(here, module, part.file)

    def _name(self, module: str, part: Partial, name: str, thing: Any = None) -> None:
        """Take in a name of a module, and what its value depends on there."""
        todo = [(name, thing)]
        while todo:
            name, thing = todo.pop()
            if not part.reach(name, part.value(name) if thing is None else thing):
                continue
            made = part.things[name][-1]
            if is_a(made, type) and made.__module__ == part.live:
                # its bases as they were when it was made
                todo += [(_top(base), base) for base in made.__bases__ if base.__module__ == part.live]
            wanted = {name} if name in part.bound or hasattr(builtins, name) else {name, "*"}
            for at, statement in enumerate(part.source.statements):
                if at in part.chosen or not wanted & (statement.binds | statement.touches):
                    continue
                if not part.is_of(statement, name, made):
                    continue
                part.chosen[at] = statement
                todo += [
                    (each, None)
                    for each in (*statement.uses, *(part.all_names() if statement.sees_all else ()))
                ]
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
        named = {module: set(part.names) for module, part in self._partial.items()}
        if self._any_loaded:
            self._todo += [(name, "") for name in own_modules_loaded()]
            # what is taken in from here on is a guess: its values say nothing
            for module, part in self._partial.items():
                part.looked |= part.bound - named[module]
                part.guessing = True
            self._follow(done)
        found: Code = {}
        for module, part in self._partial.items():
            found[module] = {"file": part.file, "whole": False, "parts": part.parts()}
        for module, file in self._whole.items():
            found[module] = {"file": file, "whole": True, "parts": all_parts(Source.read(file))}
            if module not in certain:
                found[module]["guessed"] = True
        if sum(len(entry["parts"]) for entry in found.values()) > _MOST_PARTS:
            for entry in found.values():
                entry["parts"] = {REST: one_hash(entry["parts"])} if entry["whole"] else entry["parts"]
        for module, parts in self._live.parts().items():
            entry = found.setdefault(module, {"file": None, "whole": False, "parts": {}})
            # of a module with a file, these are what the file alone cannot say
            mark = VALUE if entry["file"] else ""
            entry["parts"] = {**entry["parts"], **{mark + name: one for name, one in parts.items()}}
        return {module: found[module] for module in sorted(found) if found[module]["parts"]}

    def _follow(self, done: set[tuple[str, str]]) -> None:
        """Take in what is to be taken in, with what that imports and what its variables hold, and so on."""
        looked: set[str] = set()
        while True:
            while self._todo:
                wanted = self._todo.pop()
                if wanted not in done:
                    done.add(wanted)
                    self._module(*wanted)
            for module in self._whole.keys() - looked:
                looked.add(module)
                self._look_at_code(sys.modules.get(module))
            for part in list(self._partial.values()):
                self._look_at_values(part)
            if not self._todo and not self._whole.keys() - looked and not self._unlooked():
                return

    def _unlooked(self) -> bool:
        return any(part.names - part.looked for part in self._partial.values())

    def _look_at_code(self, module: ModuleType | None) -> None:
        """Take in the code in a module's tables: what others have put there."""
        for name, value in list(attributes_of(module).items()):
            if not name.startswith("__"):
                for thing in code_in(value):
                    if module_of(thing) != own_attribute(module, "__name__"):
                        self._found(thing)

    def _look_at_values(self, part: Partial) -> None:
        """Note what reached variables hold: an option read from the command line, a table of functions.

        Not what functions that are reached change: what that is is a matter of when one looks.
        """
        mutated = frozenset().union(*(each.mutates for each in part.chosen.values()))
        later = frozenset().union(*(each.sets for each in part.chosen.values()))
        for statement in list(part.chosen.values()):
            for name in sorted(statement.binds & part.names - part.looked):
                for value in _wholes(part, name):
                    if statement.defines:
                        self._note_given(part, name, value, later)
                    elif name not in mutated:
                        self._note(part, name, value)
                        part.note_which(name, value, statement)
        part.looked |= part.names

    def _note(self, part: Partial, name: str, value: Any) -> None:
        for thing in code_in(value):
            self._found(thing)
        one = value_hash(value, name, self._found)
        if one is not None:
            part.note(name, one)

    def _note_given(self, part: Partial, name: str, value: Any, later: frozenset[str]) -> None:
        """Note what a definition was made with: defaults of functions, attributes of a class."""
        function = inner(value)
        if is_a(function, FunctionType):
            if name.rpartition(".")[2] not in later:
                part.note_functions(name, value)
            for thing in code_in(value):  # what a decorator keeps of others
                self._found(thing)
            for defaults in given(function):
                self._note(part, f"the defaults of {name}", defaults)
        elif is_a(value, type) and value.__module__ == part.live:
            for attribute, one in list(vars(value).items()):
                if is_a(inner(one), FunctionType):
                    self._note_given(part, f"{name}.{attribute}", one, later)
                elif attribute not in later and attribute not in live.NOT_CODE:
                    held = one.__func__ if is_a(one, (staticmethod, classmethod)) else one
                    self._note(part, f"{name}.{attribute}", held)


def _top(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", "")).partition(".")[0]


def _wholes(part: Partial, name: str) -> list[Any]:
    """Return what a name stands for; a method that was reached counts with the class of that name."""
    things = [
        part.value(name) if is_a(thing, FunctionType) and thing.__qualname__.startswith(f"{name}.") else thing
        for thing in part.things[name]
    ]
    return [thing for at, thing in enumerate(things) if all(thing is not one for one in things[:at])]
