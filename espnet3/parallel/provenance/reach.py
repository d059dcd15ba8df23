"""The user's code that a run depends on, as loaded in this process: all that runner and provider reach.

    runner, provider ── functions, classes ──> compiled code ── names in it ──> functions, classes, modules, values ...

A function counts by its compiled code, a class by its bases and members, a variable by its content; of a module, the
names count that reached code has of it. A module that a function imports and that is not loaded yet counts by its file,
as an import would compile it now. Variables that reached code changes as it runs (caches) are left out.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache
from inspect import getattr_static
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a, is_path, own_attribute
from espnet3.parallel.provenance import FUNCTION
from espnet3.parallel.provenance.code import (
    BODY,
    DIGITS,
    WITHIN,
    Facts,
    body_hash,
    code_hash,
    constant_hash,
    constants_in,
    facts_of,
    functions_in,
    hashes_in,
)
from espnet3.parallel.provenance.content import WRAPPERS, Content, given_to, is_of_torch
from espnet3.parallel.provenance.modules import (
    MAIN,
    absolute,
    compiled,
    file_of,
    forget_places,
    is_own,
    is_same_file,
    is_users,
    locate,
    module_of,
    name_of,
    name_of_file,
)

INSTALLED, PUT_THERE = "installed packages", "what the program has put there"
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
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OF_NOTEBOOKS = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
_IMPORTERS = frozenset({
    "import_module", "__import__", "get_class", "get_method", "get_object", "get_static_method", "instantiate",
    "modules", "spec_from_file_location", "run_path", "run_module", "SourceFileLoader"
})  # fmt: skip
_SEES_ALL = frozenset({"globals", "eval", "exec", "__subclasses__", "modules"})
# Methods that run before an item sees the object
_MAKERS = frozenset(
    {"__init__", "__post_init__", "__new__", "__init_subclass__", "__set_name__", "__setstate__"}
    | {"__class_getitem__", "__setitem__", "__delitem__", "__setattr__", "__delattr__"}
)
_SETTERS = ("setattr", "delattr", "__setattr__", "__delattr__")  # they are given a name as a text

# By module: {"file": ..., "module": its name here, "code": {function: hash}, "values": {what: hash}, "constants":
# {name: hash} of what is written in the file as it is}; "unloaded": True where it was not loaded
Code = dict[str, dict[str, Any]]


def code_of(roots: Iterable[Any], config: Any = None) -> tuple[Code, set[str]]:
    """Return the user's own code that classes, functions or modules depend on, and the installed packages that it uses.

    Of a config, code in it counts, and what is named under `_target_`. By module: its file (None: it has none), the
    hash of each function's code, and of what else counts, the nearest first. Then the import names of packages; of
    those, versions say whether they are the same.
    """
    forget_places()  # nothing is imported from here on
    roots, reach = list(roots), Reach(Changed(), set())
    called = {"forward", "build_env_local"}
    for root in roots:  # what a base of ours has, this layer calls
        called.update(*(vars(base) for base in getattr(root, "__mro__", ()) if not is_users(base)))
    for _ in range(2):  # what reached code changes is known once all of it has been reached
        reach = Reach(Changed(reach.functions.values(), called), reach.later)
        for root in roots:
            reach.add(root)
        reach.hash(config, "config")
        reach.follow()
    return reach.result(), reach.installed


class Reach(Content):
    """Gathers all that is reached, the nearest first.

    Attributes:
        later: The modules that functions import as a run goes on: what they register is not there at its beginning.
        installed: Top-level names of the installed packages that were met, the standard library's included.
        functions: The functions that were met, by identity.
    """

    lenient = True

    def __init__(self, changed: Changed, later: set[str]) -> None:
        super().__init__(left_out=changed.of)
        self.later: set[str] = set()
        self.installed: set[str] = set()
        self.functions: dict[int, Function] = {}
        self.come_later = later
        self._todo: deque[Any] = deque()
        self._seen: dict[int, Any] = {}
        self._put: set[str] = set()
        self._looked: set[tuple[int, frozenset[str]]] = set()
        self._files: set[str] = set()
        self._entries: Code = {}
        self._places: dict[tuple[str, str | None], dict[str, Any]] = {}
        self._files_of = cache(file_of)
        loaded = [(name, own_attribute(live, "__file__"), live) for name, live in list(sys.modules.items())]
        self._loaded = [
            (name, file, live)
            for name, file, live in loaded
            if is_a(live, ModuleType) and isinstance(file, str) and is_own(file)
        ]

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
                self._module(thing, frozenset(thing.split(".")))
            elif not is_users(thing):
                self._installed(thing)
            elif is_a(thing, FunctionType):
                self._function(Function(thing), thing.__qualname__)
            elif is_a(thing, type):
                self._class(thing)
            elif is_a(thing, ModuleType):
                self._all_names(thing.__name__, vars(thing))

    def result(self) -> Code:
        """Return the code that was found."""
        self._entry(INSTALLED, None)["values"][PUT_THERE] = self._put
        names = {name for met in self.functions.values() for name in facts_of(met.function.__code__).names}
        for name, file, live in self._loaded:
            self._compare(name, file, vars(live), names)
        for entry in self._entries.values():
            for kind in ("code", "values"):
                entry[kind] = {name: " ".join(sorted(found)) for name, found in entry[kind].items()}
        return self._entries

    def _compare(self, module: str, file: str, held: dict[str, Any], names: set[str]) -> None:
        """Add the file's code of functions that are not as the file has them, and note constants that are."""
        entry = self._entries.get(name_of_file(file), {})
        is_its = "unloaded" not in entry and is_same_file(entry.get("file"), file)
        known = entry.get("code", {}) if is_its else {}
        code = compiled(module, file) if known or not names.isdisjoint(held) else None
        functions, constants = (functions_in(code), constants_in(code)) if code is not None else ({}, {})
        for name in known.keys() & functions:
            said = {code_hash(one) for one in functions[name]}
            # a decorator has compiled it anew, as typeguard's does, or an import hook
            if len(said) == 1 and not said <= known[name] and not _is_edited(file):
                known[name] |= said
        for name in (names & held.keys() & constants.keys()) - self.left_out(held):
            constant = constant_hash(held[name])
            if constant == constants[name] or _is_edited(file):
                self._entry(module, file).setdefault("constants", {})[name] = constant

    # --- notes ---

    def _entry(self, module: str, file: str | None) -> dict[str, Any]:
        if (module, file) not in self._places:
            name = name_of(module, file)
            new: dict[str, Any] = {"file": file, "module": module, "code": {}, "values": {}}
            self._places[module, file] = self._entries.setdefault(name, new)
        return self._places[module, file]

    def _value(self, module: str, phrase: str, value: Any, counts: bool = True) -> None:
        file = self._files_of(module)
        text = str(value) if file is not None and (type(value) is str or is_path(value)) else ""
        if file is not None and text.count(os.sep) > 1 and os.path.isabs(text):
            near = os.path.commonpath([text, file])
            if near in (os.path.dirname(file), text.rstrip(os.sep)):  # a checkout may be moved
                value = (type(value), os.path.relpath(text, os.path.dirname(file)))
        said = self.hash(value, phrase)
        if counts:
            self._entry(module, file)["values"].setdefault(phrase, set()).add(said[:DIGITS])

    # --- functions and classes ---

    def _function(self, met: Function, name: str) -> None:
        function, code = met.function, met.function.__code__
        if id(function) in self.functions:
            return
        self._seen[id(function)] = self.functions[id(function)] = met
        module, is_text = module_of(function), code.co_filename.startswith("<")
        # of another file than the module's, where a decorator has put a function of its own in its place
        file = file_of(module) if is_text else os.path.abspath(code.co_filename)
        known = name if is_text else getattr(code, "co_qualname", function.__qualname__)
        kind = "values" if is_text and file else "code"
        self._entry(module, file)[kind].setdefault(known, set()).add(code_hash(code))
        for phrase, (value, is_changed) in given_to(function, name).items():
            self._value(module, phrase, value, not is_changed)
        held = {one: value for one, value in list(vars(function).items()) if not one.startswith("_espnet3_")}
        if "__wrapped__" in held:
            self.add(held.pop("__wrapped__"))
        out = self.left_out(function)
        for one, value in held.items():
            self._value(module, f"the value of {name}.{one}", value, one not in out)
        self._code(module, facts_of(code), function.__globals__)

    def _class(self, cls: type) -> None:
        if isinstance(standing := vars(cls).get(FUNCTION), staticmethod):
            self.add(standing.__func__)
            if "item_cost" not in vars(cls):
                return
        name, module, out = cls.__qualname__, module_of(cls), self.left_out(cls)
        bases = (*cls.__bases__, type(cls))
        known = {one: value for one, value in list(vars(cls).items()) if one not in _NOT_CODE}
        if known.get("__annotations__") == {}:  # asking a class for them adds them
            del known["__annotations__"]
        made_from = [f"{name_of(module_of(base))}:{base.__qualname__}" for base in bases]
        self._value(module, name, [made_from, sorted(known.keys() - out)])
        for base in bases:
            self.add(base)
        for attribute, value in known.items():
            functions = _functions(value)
            setters = [value.fset, value.fdel] if type(value) is property else []
            for one in filter(is_users, functions):
                called = f"{attribute}=" if any(one is each for each in setters) else attribute
                met = Function(one, cls, is_a(value, classmethod), called)
                self._function(met, f"{name}.{attribute}")
            phrase = f"{'' if functions else 'the value of '}{name}.{attribute}"
            self._value(module, phrase, value, attribute not in out)

    def _installed(self, thing: Any) -> None:
        module = thing.__name__ if is_a(thing, ModuleType) else module_of(thing)
        self.installed.add(module.partition(".")[0])
        for name, one in list(vars(thing).items()) if is_a(thing, type) else ():
            if type(one) is FunctionType and is_users(one):
                self._put.add(f"{thing.__qualname__}.{name}")
                self.add(one)

    # --- what code names ---

    def _code(self, module: str, facts: Facts, world: dict[str, Any]) -> None:
        self._read(module, "", world, facts.reads, facts.names)
        self._of_module(module, builtins, frozenset(facts.reads - world.keys()))
        read = {name: world[name] for name in facts.reads & world.keys()}
        for name, one in read.items():
            if name in facts.bare and is_a(one, ModuleType) and is_users(one):
                self.add(one)
        called = [one.__name__ for one in read.values() if is_a(one, (FunctionType, BuiltinFunctionType))]
        self._imports(module, facts, str(world.get("__package__") or ""), called)
        if not _SEES_ALL.isdisjoint(facts.names):
            self._all_names(module, world)

    def _read(
        self, owner: str, of: str, world: dict[str, Any], read: Set[str], names: frozenset[str]
    ) -> None:
        out = self.left_out(world)
        for name in sorted(read & world.keys() - _OF_MODULES):
            if is_a(world[name], ModuleType):
                self._of_module(owner, world[name], names)
            else:
                self._value(owner, f"the value of {of}{name}", world[name], name not in out)

    def _of_module(self, owner: str, module: ModuleType, names: frozenset[str]) -> None:
        if (id(module), names) in self._looked:
            return
        self._looked.add((id(module), names))
        if is_users(module):
            self._read(owner, f"{module.__name__}.", vars(module), names | {"__getattr__"}, names)
            return
        self.installed.add(module.__name__.partition(".")[0])
        for name in sorted(names & vars(module).keys()):
            value = vars(module)[name]
            if is_a(value, ModuleType) and is_users(value):
                self._of_module(owner, value, names)
            elif is_a(value, (FunctionType, type)) and is_users(value):
                self._put.add(f"{module.__name__}.{name}")
                self._value(owner, f"the value of {module.__name__}.{name}", value)
            elif is_a(value, type):
                self.add(value)

    def _all_names(self, module: str, world: dict[str, Any]) -> None:
        out, known = self.left_out(world), []
        for name, value in list(world.items()):
            is_private = name.startswith("_") and name != "__getattr__"
            is_meant = is_a(value, (FunctionType, type, *WRAPPERS, *_PLAIN))
            if is_meant and not is_private and name not in _OF_NOTEBOOKS:
                self._value(module, f"the value of {name}", value, name not in out)
                known += [] if name in out else [name]
        self._value(module, "the names of the module", sorted(known))

    def _imports(self, module: str, facts: Facts, package: str, called: Iterable[str] = ()) -> None:
        for dotted in _imported(facts, package):
            self._module(dotted, facts.names, module)
        if _IMPORTERS.isdisjoint({*facts.names, *called}):
            return
        found = False
        for text in facts.texts:
            dots = len(text) - len(text.lstrip("."))
            for above in (package, *(facts.texts if dots else ())):
                dotted = absolute(text[dots:], dots, above)
                if dotted.replace(".", "").isidentifier() and any(map(is_own, locate(dotted).values())):
                    found = True
                    self._module(dotted, facts.names | frozenset(dotted.split(".")), module)
        if not found:  # by a name made at run time: any module may be meant
            for *_, live in self._loaded:
                self._of_module(live.__name__, live, facts.names)

    def _module(self, dotted: str, names: frozenset[str], owner: str | None = None) -> None:
        for name, file in locate(dotted).items():
            live = sys.modules.get(name)
            if not is_own(file):
                self.installed.add(name.partition(".")[0])
                continue
            if live is not None:
                self._of_module(owner or name, live, names)
            if live is None or (name not in MAIN and owner is not None):
                self._later(name, file, live is not None)

    def _later(self, name: str, file: str, is_loaded: bool) -> None:
        if file in self._files:
            return
        self._files.add(file)
        self.later.add(name)
        entry, code = self._entry(name, file), compiled(name, file)
        if code is None:
            with open(file, "rb") as stream:
                entry["code"]["its content"] = {hashlib.sha256(stream.read()).hexdigest()[:DIGITS]}
            return
        for function, found in ({BODY: {body_hash(code)}} if is_loaded else hashes_in(code)).items():
            entry["code"].setdefault(function, set()).update(found)
        is_package = os.path.basename(file).startswith("__init__.")
        package, facts = name if is_package else name.rpartition(".")[0], facts_of(code)
        if not is_loaded:
            entry["unloaded"] = True
            self._imports(name, facts, package)
            return
        for dotted in _imported(facts, package):
            for inner, where in locate(dotted).items():
                if is_own(where) and inner not in MAIN:
                    self._later(inner, where, inner in sys.modules)


def _is_edited(file: str) -> bool:
    """Tell whether a file has changed since this process began, which may have loaded what it said before."""
    return os.path.isfile(file) and os.stat(file).st_ctime > _began()


@cache
def _began() -> float:
    import psutil  # rarely asked

    then = psutil.Process().create_time() + 0.02  # it is rounded down to hundredths
    # on Linux `then` is counted from the boot, whose time is in whole seconds
    if hasattr(time, "CLOCK_BOOTTIME"):
        then += time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) - psutil.boot_time()
    return then


def _imported(facts: Facts, package: str) -> Iterator[str]:
    for module, level, taken in facts.imports:
        base = absolute(module, level, package)
        yield from (base, *(f"{base}.{one}" for one in taken if one != "*"))


def _functions(value: Any) -> list[FunctionType]:
    if is_a(value, FunctionType):
        return [value]
    parts = [part for part in WRAPPERS.get(type(value), ()) if part != "__self__"]
    return [each for part in parts for each in _functions(getattr(value, part))]


@dataclass(frozen=True, slots=True)
class Function:
    """A function, and how code calls it: by its name, or "name=" if setting an attribute calls it."""

    function: FunctionType
    kind: type | None = None  # the class that it is a method of
    of_class: bool = False  # it is given the class, as a class method is
    called: str = ""


class Changed:
    """Variables and attributes that functions change as items run.

    A method runs with the items if such code names it, or if this layer calls it (`called`).
    """

    def __init__(self, functions: Iterable[Function] = (), called: Iterable[str] = ()) -> None:
        # names, by the identity of what has them: a module's names, or an object
        self._of: dict[int, set[str]] = defaultdict(set)
        # by that of a class, what its methods change: whether it is the class's too, and the names that lead there
        self._by_methods: dict[int, set[tuple[bool, tuple[str, ...]]]] = defaultdict(set)
        self._loose: set[str] = set()  # that code sets on what it is given
        self._handed_on: set[int] = set()  # the identities of what reached code hands on
        self._names = {*called}  # in code that runs with the items; "name=" where it sets one
        left, before = list(functions), -1
        while len(left) != before:
            before, waiting, left = len(left), left, []
            for one in waiting:
                if one.kind is None or _runs(one.called, self._names):
                    self._take(one)
                else:
                    left.append(one)

    def _take(self, met: Function) -> None:
        world, facts = met.function.__globals__, facts_of(met.function.__code__)
        of_kind = set() if met.kind is None else self._by_methods[id(met.kind)]
        self._names |= facts.names | facts.texts
        self._handed_on |= {id(world[name]) for name in facts.bare if name in world}
        if any("__dict__" in place for place in facts.changes) or not facts.names.isdisjoint(_SETTERS):
            self._loose |= facts.texts
            of_kind |= {(False, (name,)) for name in facts.texts}
        for root, *place in facts.changes:
            in_place = place[-1:] == [WITHIN]
            names = place[:-1] if in_place and len(place) > 1 else place
            if not in_place:
                self._names.add(f"{names[-1]}=")
            if root == "global":
                self._at(world, names)
            elif root == "first" and met.kind is not None:
                of_kind.add((met.of_class or in_place, tuple(names)))
            elif not in_place:
                self._loose.add(names[-1])

    def _at(self, owner: Any, names: Sequence[str]) -> None:
        for name in names[:-1]:
            owner = dict.get(owner, name) if is_a(owner, dict) else getattr_static(owner, name, None)
            owner = vars(owner) if is_a(owner, ModuleType) else owner
        self._of[id(owner)].add(names[-1])

    def of(self, value: Any) -> set[str]:
        """Return the names of a module, or the attributes of an object or a class, that are changed."""
        is_class, found = is_a(value, type), set(self._loose if id(value) in self._handed_on else ())
        if not self._names.isdisjoint(("eval", "train")) and any(map(is_of_torch, type(value).__mro__)):
            found.add("training")  # which these methods of torch set
        for base in value.__mro__ if is_class else type(value).__mro__:
            for on_class, names in self._by_methods.get(id(base), ()):
                if len(names) > 1:
                    self._at(value, names)
                elif on_class or not is_class:
                    found.update(names)
        return found | self._of.get(id(value), set())


def _runs(name: str, names: set[str]) -> bool:
    in_place = name.startswith("__i") and name != "__iter__"  # as `+=` calls them
    special = name.startswith("__") and name.endswith("__") and not in_place
    return name not in _MAKERS and (special or name in names)
