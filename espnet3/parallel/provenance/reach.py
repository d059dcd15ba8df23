"""The user's code that a run depends on, as loaded in this process: all that runner and provider reach.

    runner, provider ── functions, classes ──> compiled code ── names in it ──> functions, classes, modules, values ...

A function counts by its compiled code, a class by its bases and members, a variable by its content; of a module, the
names count that reached code has of it. A module that a function imports and that is not loaded yet counts by its file,
as an import would compile it now. Variables that reached code changes as it runs (caches) are left out: which these are
is known once all of it has been reached.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import sys
from collections import deque
from collections.abc import Iterable, Set
from functools import cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a, is_path
from espnet3.parallel.provenance import FUNCTION
from espnet3.parallel.provenance.code import (
    BODY,
    DIGITS,
    Changed,
    Function,
    body_hash,
    changes_of,
    constants_in,
    facts_of,
    functions_in,
    imports_in,
)
from espnet3.parallel.provenance.content import PLAIN, WRAPPERS, Content, given_to
from espnet3.parallel.provenance.modules import (
    MAIN,
    absolute,
    compiled,
    file_of,
    is_own,
    is_users,
    locate,
    module_of,
    name_of,
    own_modules,
    real,
)

INSTALLED, PUT_THERE = "installed packages", "what the program has put there"
VALUE = "the value of "  # and a variable's name
# Attributes that Python makes for every class, or that differ between equal classes
_NOT_CODE = frozenset({
    FUNCTION, "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__slots__",
    "__static_attributes__", "__slotnames__", "__abstractmethods__", "_abc_impl", "__annotations_cache__",
    "__annotate__", "__annotate_func__", "__match_args__", "_is_protocol", "__orig_bases__", "__parameters__"
})  # fmt: skip
# Variables of modules that depend on the file's place, and on how the program was started
_OF_MODULES = frozenset({
    "__file__", "__name__", "__spec__", "__path__", "__package__", "__loader__", "__cached__", "__builtins__"
})  # fmt: skip
_OF_NOTEBOOKS = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
_IMPORTERS = frozenset({
    "import_module", "__import__", "get_class", "get_method", "get_object", "get_static_method", "instantiate",
    "modules", "spec_from_file_location", "run_path", "run_module", "SourceFileLoader"
})  # fmt: skip
_SEES_ALL = frozenset({"globals", "eval", "exec", "__subclasses__", "modules"})

# By module: {"file": ..., "module": its name here, "code": {part: hash}, "values": {what: hash}}; "unloaded": True
# where it was not loaded. All processes of a run have the same "code"
Code = dict[str, dict[str, Any]]


def code_of(roots: Iterable[Any], config: Any = None) -> tuple[Code, set[str]]:
    """Return the user's own code that classes, functions or modules depend on, and the installed packages that it uses.

    Of a config, code in it counts, and what is named under `_target_`. By module: its file (None: it has none), the
    hash of each function's code, and of what else counts, the nearest first. Then the import names of packages; of
    those, versions say whether they are the same.
    """
    locate.cache_clear()  # nothing is imported from here on
    roots, reach = list(roots), Reach()
    for root in roots:
        reach.add(root)
    reach.hash(config, "config")
    reach.follow()
    called = {"forward", "build_env_local"}
    for root in roots:  # this layer calls the methods that a base of ours has
        called.update(*(vars(base) for base in getattr(root, "__mro__", ()) if not is_users(base)))
    return reach.result(Changed(reach.functions.values(), called)), reach.installed


@cache
def parts_in(code: CodeType) -> dict[str, set[str]]:
    """Return the hashes of a module's own statements, of its functions and of its constants, by name."""
    functions = {name: {facts_of(one).hash for one in found} for name, found in functions_in(code).items()}
    constants = {f"{VALUE}{name}": {constant_hash(one)} for name, one in constants_in(code).items()}
    return {BODY: {body_hash(code)}, **functions, **constants}


def constant_hash(value: Any) -> str:
    """Return the hash of a variable's value, as another process finds it."""
    return Content(lenient=True).hash(value, "a constant")[:DIGITS]


class Reach(Content):
    """Gathers all that is reached, the nearest first."""

    def __init__(self) -> None:
        super().__init__(lenient=True)
        self.installed: set[str] = set()  # import names of packages, the standard library's included
        self.functions: dict[int, Function] = {}
        self._codes: dict[str, CodeType] = {}
        self._later: set[str] = set()  # modules that functions import: what they register is not there yet
        self._todo: deque[Any] = deque()
        self._seen: dict[int, Any] = {}
        self._put: set[str] = set()
        self._looked: set[tuple[int, frozenset[str]]] = set()
        self._files: set[str] = set()
        self._entries: Code = {}
        self._places: dict[tuple[str, str | None], dict[str, Any]] = {}
        # each with its entry, phrase, what has it, and its name there: None for a set of names
        self._values: dict[Any, tuple[dict[str, Any], str, Any, Any, str | None]] = {}
        self._files_of = cache(file_of)
        self._loaded = own_modules()

    def add(self, thing: Any) -> None:
        """Take in a function, a class or a module of the user's, or the dotted name of one."""
        if id(thing) not in self._seen:
            self._seen[id(thing)] = thing
            self._todo.append(thing)

    def follow(self) -> None:
        """Follow references from all things added."""
        while self._todo:
            thing = self._todo.popleft()
            if type(thing) is str:
                self._module(thing, frozenset(thing.split(".")), is_imported=False)
            elif not is_users(thing):
                self._installed(thing)
            elif is_a(thing, FunctionType):
                self._function(Function(thing), thing.__qualname__)
            elif is_a(thing, type):
                self._class(thing)
            elif is_a(thing, ModuleType):
                self._all_names(vars(thing))

    def result(self, changed: Changed) -> Code:
        """Return the code that was found, and the values that it does not change as it runs."""
        content = Content(left_out=changed.of, come_later=self._later, lenient=True)
        for entry, phrase, value, owner, name in self._values.values():
            out = changed.of(owner)
            counts = value if name is not None else (value[0], sorted(value[1] - out))
            if name not in out:
                entry["values"].setdefault(phrase, set()).add(content.hash(counts, phrase)[:DIGITS])
        self._entry(INSTALLED, None)["values"][PUT_THERE] = self._put
        by_file = {real(entry["file"]): entry for entry in self._entries.values() if entry["file"]}
        for module, file, live in self._loaded:
            entry = by_file.get(real(file), {"unloaded": True})
            if "unloaded" not in entry and (code := compiled(module, file)) is not None:
                self._compare(entry, code, vars(live))
        for entry in self._entries.values():
            for kind in ("code", "values"):
                entry[kind] = {name: " ".join(sorted(found)) for name, found in entry[kind].items()}
        return self._entries

    def _compare(self, entry: dict[str, Any], code: CodeType, held: dict[str, Any]) -> None:
        """Note which constants all processes have, and what the file says of functions that were compiled anew."""
        for name, found in functions_in(code).items():
            known, written = entry["code"].get(name, set()), {one.hash: one for one in map(facts_of, found)}
            if known and len(written) == 1 and known.isdisjoint(written):
                (said,) = written.values()
                # a decorator has put something in, as typeguard's does, or an import hook; an edit has also taken out
                if any(said.names < facts_of(self._codes[one]).names for one in known & self._codes.keys()):
                    known.update(written)
        for name, written_value in constants_in(code).items():
            if (phrase := f"{VALUE}{name}") in entry["values"] and type(held.get(name)) in PLAIN:
                mine = constant_hash(held[name])
                if mine == constant_hash(written_value) or not self._is_set(name):
                    entry["code"][phrase] = {mine}
                    del entry["values"][phrase]

    def _is_set(self, name: str) -> bool:
        """Tell whether loaded code sets a variable of that name; if none does, a file with another value was edited."""
        codes = [code for module, file, _ in self._loaded if (code := compiled(module, file)) is not None]
        in_text = file_of(MAIN[0]) is None or any(name in facts_of(code).texts for code in codes)
        return in_text or any(name in place for code in codes for place in changes_of(code))

    # --- notes ---

    def _entry(self, module: str, file: str | None) -> dict[str, Any]:
        if (module, file) not in self._places:
            name, known = name_of(module, file), self._entries.get
            here = os.path.isfile(file or "") and real(file or "")  # cells of a notebook are in no file
            while here and os.path.isfile(at := known(name, {}).get("file") or "") and real(at) != here:
                name += "'"  # another folder has one of that name
            new: dict[str, Any] = {"file": file, "module": module, "code": {}, "values": {}}
            self._places[module, file] = self._entries.setdefault(name, new)
        return self._places[module, file]

    def _value(self, module: str, phrase: str, value: Any, owner: Any = None, name: str | None = "") -> None:
        """Take in a value, which counts unless reached code changes what its owner has under that name."""
        if (key := (module, phrase, id(value), id(owner))) in self._values:
            return
        file = self._files_of(module)
        text = str(value) if type(value) is str or is_path(value) else ""
        if file is not None and text.count(os.sep) > 1 and os.path.isabs(text):
            here = os.path.dirname(file)
            if os.path.commonpath([text, file]) in (here, text.rstrip(os.sep)):  # a checkout may be moved
                value = (type(value), os.path.relpath(text, here))
        self._values[key] = self._entry(module, file), phrase, value, owner, name
        self.hash(value, phrase)

    # --- functions and classes ---

    def _function(self, met: Function, name: str) -> None:
        function, code = met.function, met.function.__code__
        if id(function) in self.functions:
            return
        self._seen[id(function)] = self.functions[id(function)] = met
        # not what the function says, which may be the module of another one that it stands for
        module, is_text = str(function.__globals__.get("__name__", "")), code.co_filename.startswith("<")
        file = file_of(module) if is_text else os.path.abspath(code.co_filename)
        known = name if is_text else getattr(code, "co_qualname", function.__qualname__)
        kind = "values" if is_text and file else "code"
        self._entry(module, file)[kind].setdefault(known, set()).add(facts_of(code).hash)
        self._codes[facts_of(code).hash] = code
        for phrase, (value, is_changed) in given_to(function, name).items():
            self.hash(value, phrase) if is_changed else self._value(module, phrase, value)
        held = {one: value for one, value in list(vars(function).items()) if not one.startswith("_espnet3_")}
        if "__wrapped__" in held:
            self.add(held.pop("__wrapped__"))
        for one, value in held.items():
            self._value(module, f"{VALUE}{name}.{one}", value, function, one)
        self._code(code, function.__globals__)

    def _class(self, cls: type) -> None:
        if isinstance(standing := vars(cls).get(FUNCTION), staticmethod):
            self.add(standing.__func__)
            if "item_cost" not in vars(cls):
                return
        name, module = cls.__qualname__, module_of(cls)
        bases = (*cls.__bases__, type(cls))
        known = {one: value for one, value in list(vars(cls).items()) if one not in _NOT_CODE}
        if known.get("__annotations__") == {}:  # asking a class for them adds them
            del known["__annotations__"]
        made_from = [f"{name_of(module_of(base))}:{base.__qualname__}" for base in bases]
        self._value(module, name, (made_from, {*known}), cls, None)
        for base in bases:
            self.add(base)
        for attribute, value in known.items():
            functions = _functions(value)
            setters = [value.fset, value.fdel] if type(value) is property else []
            for one in filter(is_users, functions):
                called = f"{attribute}=" if any(one is each for each in setters) else attribute
                self._function(Function(one, cls, is_a(value, classmethod), called), f"{name}.{attribute}")
            self._value(module, f"{'' if functions else VALUE}{name}.{attribute}", value, cls, attribute)

    def _installed(self, thing: Any) -> None:
        module = thing.__name__ if is_a(thing, ModuleType) else module_of(thing)
        self.installed.add(module.partition(".")[0])
        for name, one in list(vars(thing).items()) if is_a(thing, type) else ():
            if type(one) is FunctionType and is_users(one):
                self._put.add(f"{thing.__qualname__}.{name}")
                self.add(one)

    # --- what code names ---

    def _code(self, code: CodeType, world: dict[str, Any]) -> None:
        facts = facts_of(code)
        self._names(world, facts.reads, facts.names)
        self._of_module(builtins, frozenset(facts.reads - world.keys()))
        read = {name: world[name] for name in facts.reads & world.keys()}
        for name, one in read.items():
            if name in facts.bare and is_a(one, ModuleType) and is_users(one):
                self.add(one)
        called = [one.__name__ for one in read.values() if is_a(one, (FunctionType, BuiltinFunctionType))]
        self._imports(code, str(world.get("__package__") or ""), called)
        if not _SEES_ALL.isdisjoint(facts.names):
            self._all_names(world)

    def _names(self, world: dict[str, Any], read: Set[str], names: frozenset[str]) -> None:
        for name in sorted(read & world.keys() - _OF_MODULES):
            if is_a(world[name], ModuleType):
                self._of_module(world[name], names)
            else:
                self._value(str(world.get("__name__", "")), f"{VALUE}{name}", world[name], world, name)
                if type(world[name]) in PLAIN:
                    self._origin(world, name)

    def _origin(self, world: dict[str, Any], name: str) -> None:
        """Note a constant that a module imports where it is written, too: other processes read that file."""
        module, package = str(world.get("__name__", "")), str(world.get("__package__") or "")
        code = compiled(module, file) if (file := self._files_of(module)) is not None else None
        for dotted, known in imports_in(code, package, at_once=True) if code is not None else ():
            if known in (name, "*"):
                home, _, there = (dotted if known == name else f"{dotted}.{name}").rpartition(".")
                live: Any = sys.modules.get(home)
                if is_a(live, ModuleType) and is_users(live) and vars(live).get(there, self) is world[name]:
                    self._of_module(live, frozenset({there}))

    def _of_module(self, module: ModuleType, names: frozenset[str]) -> None:
        if (id(module), names) in self._looked:
            return
        self._looked.add((id(module), names))
        if is_users(module):
            self._names(vars(module), names | {"__getattr__"}, names)
            return
        self.installed.add(module.__name__.partition(".")[0])
        for name in sorted(names & vars(module).keys()):
            value = vars(module)[name]
            if is_a(value, ModuleType) and is_users(value):
                self._of_module(value, names)
            elif is_a(value, (FunctionType, type)) and is_users(value):
                self._put.add(f"{module.__name__}.{name}")
                self._value(INSTALLED, f"{VALUE}{module.__name__}.{name}", value)
            elif is_a(value, type):
                self.add(value)

    def _all_names(self, world: dict[str, Any]) -> None:
        module, known = str(world.get("__name__", "")), set()
        for name, value in list(world.items()):
            is_private = name.startswith("_") and name != "__getattr__"
            is_meant = is_a(value, (FunctionType, type, *WRAPPERS, *PLAIN))
            if is_meant and not is_private and name not in _OF_NOTEBOOKS:
                self._value(module, f"{VALUE}{name}", value, world, name)
                known.add(name)
        self._value(module, "the names of the module", ([], known), world, None)

    def _imports(self, code: CodeType, package: str, called: Iterable[str] = ()) -> None:
        facts = facts_of(code)
        for dotted, _ in imports_in(code, package):
            self._module(dotted, facts.names)
        if _IMPORTERS.isdisjoint({*facts.names, *called}):
            return
        found = False
        for text in facts.texts:
            dots = len(text) - len(text.lstrip("."))
            for above in (package, *(facts.texts if dots else ())):
                dotted = absolute(text[dots:], dots, above)
                if dotted.replace(".", "").isidentifier() and any(map(is_own, locate(dotted).values())):
                    found = True
                    self._module(dotted, facts.names | frozenset(dotted.split(".")))
        if not found:  # by a name made at run time: any module may be meant
            for *_, live in self._loaded:
                self._of_module(live, facts.names)

    def _module(self, dotted: str, names: frozenset[str], is_imported: bool = True) -> None:
        for name, file in locate(dotted).items():
            live = sys.modules.get(name)
            if not is_own(file):
                self.installed.add(name.partition(".")[0])
                continue
            if live is not None:
                self._of_module(live, names)
            if live is None or (is_imported and name not in MAIN):
                self._file(name, file, live is not None)

    def _file(self, name: str, file: str, is_loaded: bool) -> None:
        """Take in what an import would run: of a module that is loaded its statements, and else all that it has."""
        if file in self._files:
            return
        self._files.add(file)
        self._later.add(name)
        entry, code = self._entry(name, file), compiled(name, file)
        if code is None:
            with open(file, "rb") as stream:
                entry["code"]["its content"] = {hashlib.sha256(stream.read()).hexdigest()[:DIGITS]}
            return
        for part, hashes in ({BODY: {body_hash(code)}} if is_loaded else parts_in(code)).items():
            entry["code"].setdefault(part, set()).update(hashes)
        package = name if os.path.basename(file).startswith("__init__.") else name.rpartition(".")[0]
        if not is_loaded:
            entry["unloaded"] = True
            self._imports(code, package)
            return
        for dotted, _ in imports_in(code, package, at_once=True):
            for inner, where in locate(dotted).items():
                if is_own(where) and inner not in MAIN:
                    self._file(inner, where, inner in sys.modules)


def _functions(value: Any) -> list[FunctionType]:
    if is_a(value, FunctionType):
        return [value]
    parts = [part for part in WRAPPERS.get(type(value), ()) if part != "__self__"]
    return [each for part in parts for each in _functions(getattr(value, part))]
