"""The user's code that a run depends on, as it is loaded in this process: from runner and provider to all they reach.

    runner, provider ── functions, classes ──> compiled code ── names in it ──> functions, classes, modules, values ...

A function counts by its compiled code, a class by its bases and all that is in it, a variable by its content; of a
module, what reached code names of it. A module that is imported inside a function and is not loaded yet counts by its
file, as an import would compile it now. What reached code changes as it runs (a cache) is left out.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import Any

from espnet3.parallel.provenance import FUNCTION
from espnet3.parallel.provenance.changing import Changed, Function
from espnet3.parallel.provenance.code import BODY, DIGITS, IMPORTERS, Facts, code_hash, facts_of, functions_in
from espnet3.parallel.provenance.constants import WRITTEN, written_in
from espnet3.parallel.provenance.content import (
    WRAPPERS,
    Content,
    as_containers,
    attributes_of,
    given_to,
)
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
    name_of_file,
)

# Made by Python for every class, or different for equal classes
_NOT_CODE = frozenset(
    (
        *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__slots__"),
        *(
            "__static_attributes__",
            "__abstractmethods__",
            "_abc_impl",
            "__annotations_cache__",
            "__annotate__",
        ),
        *(
            "__annotate_func__",
            "__match_args__",
            "_is_protocol",
            "__orig_bases__",
            "__parameters__",
            FUNCTION,
        ),
    )
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))

# By module: {"file": ..., "code": {function: hash}, "values": {what: hash}}; "constants": {name: text} of what is
# written in the file as they are; and "unloaded": True where it was not loaded
Code = dict[str, dict[str, Any]]


def code_of(roots: Iterable[Any], config: Any = None) -> tuple[Code, set[str]]:
    """Return the user's own code that objects depend on, and the installed packages that it uses."""
    reach = reach_of(roots, config)
    return reach.result(), reach.installed


def reach_of(roots: Iterable[Any], config: Any = None) -> Reach:
    """Walk twice: what reached code changes is known only once all of it has been reached."""
    roots, changed = list(roots), Changed()
    later: set[str] = set()
    called = {"forward", "build_env_local"}
    for root in roots:  # what a base of ours has, this layer calls
        called.update(*(vars(base) for base in getattr(root, "__mro__", ()) if not is_users(base)))
    for _ in range(2):
        reach = Reach(changed, later)
        for root in roots:
            reach.add(root)
        for target in targets(config):
            reach.module(target, frozenset(target.split(".")))
        reach.content.hash(config, "config")
        reach.follow()
        changed, later = Changed.by(reach.functions.values(), called), reach.later
    return reach


def targets(config: Any) -> list[str]:
    """Return the dotted names under `_target_` in a config, from which Hydra makes objects."""
    found, left, seen = [], [config], {id(config): config}
    while left:
        one = as_containers(left.pop())
        is_mapping = issubclass(type(one), (dict, MappingProxyType)) or isinstance(one, Mapping)
        held = dict(one) if is_mapping else attributes_of(one)
        target = held.get("_target_")
        if isinstance(target, str):
            found.append(target)
        for value in (*held.values(), *(one if type(one) in (list, tuple, set, frozenset) else ())):
            if id(value) not in seen and not isinstance(value, _PLAIN):
                seen[id(value)] = value
                left.append(value)
    return found


class Reach:
    """Gathers what is reached, the nearest first.

    Args:
        changed: What does not count, since reached code changes it.
        later: The modules that are imported as a run goes on.

    Attributes:
        installed: Top-level names of the installed packages that were met, the standard library's included.
        functions: The functions that were met, by identity.
        content: Hashes values, and takes in the code in them.
        later: The modules that functions import.
    """

    def __init__(self, changed: Changed, later: set[str]) -> None:
        self.installed: set[str] = set()
        self.functions: dict[int, Function] = {}
        self.content = Content(
            self.add, changed.of, lenient=True, later=lambda thing: module_of(thing) in later
        )
        self.later: set[str] = set()
        self._changed = changed
        self._todo: deque[Any] = deque()
        self._seen: dict[int, Any] = {}
        self._put: set[str] = set()
        self._looked: set[tuple[int, frozenset[str]]] = set()
        self._files: set[str] = set()
        self._entries: Code = {}

    def add(self, thing: Any) -> None:
        """Take in a function, a class or a module, if it is the user's."""
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        self._todo.append(thing)

    def follow(self) -> None:
        """Take in all that is reached from what was added."""
        while self._todo:
            thing = self._todo.popleft()
            if not is_users(thing):
                self._installed(thing)
            elif isinstance(thing, FunctionType):
                self._function(Function(thing), thing.__qualname__)
            elif isinstance(thing, type):
                self._class(thing)
            elif isinstance(thing, ModuleType):
                self._all_of(thing)

    def result(self) -> Code:
        """Return what was found."""
        self._value(_Owner(INSTALLED), "what the program has put into them", sorted(self._put))
        found: Code = {}
        names = {file_of(name): name for name in list(sys.modules)}
        for module, entry in self._entries.items():
            sums = {
                kind: {name: " ".join(sorted(one)) for name, one in entry[kind].items()} for kind in _KINDS
            }
            known = {"module": names[entry["file"]]} if entry["file"] and entry["file"] in names else {}
            found[module] = {**entry, **known, **sums}
        for module, entry in self._entries.items():
            for name, said in found[module].pop("fixed").items():
                where = written_in(module, entry["file"], name)
                if where is None or where[2] != said:  # edited since the last run of this process, perhaps
                    where = WRITTEN.get((entry["file"], name))
                if where is not None and where[2] == said:
                    WRITTEN[entry["file"], name] = where
                    origin = found.setdefault(where[0], {"file": where[1], "code": {}, "values": {}})
                    origin.setdefault("constants", {})[where[3]] = said
        return found

    # --- notes ---

    def _entry(self, module: str, file: str | None) -> dict[str, Any]:
        return self._entries.setdefault(module, {"file": file, "code": {}, "values": {}, "fixed": {}})

    def _note(self, thing: Any, kind: str, name: str, said: str) -> None:
        module = thing.__module__ if isinstance(thing.__module__, str) else "?"
        entry = self._entry(name_of(module), file_of(module))
        entry[kind].setdefault(name, set()).add(said[:DIGITS])

    def _value(self, owner: Any, phrase: str, value: Any, counts: bool = True) -> None:
        """Note a value by its content, and take in the code in it."""
        said = self.content.hash(value, phrase)
        if counts:
            self._note(owner, "values", phrase, said)
            if type(value) in _PLAIN and (file := file_of(owner.__module__)) is not None:
                self._entry(name_of(owner.__module__), file)["fixed"][phrase.rpartition(" ")[2]] = repr(value)

    # --- functions and classes ---

    def _function(self, met: Function, name: str) -> None:
        function = met.function
        self._seen[id(function)] = function
        if id(function) in self.functions:
            return
        self.functions[id(function)] = met
        code, facts = function.__code__, facts_of(function.__code__)
        if code.co_filename.startswith("<"):
            where = "values" if file_of(function.__module__ or "") else "code"
            self._note(function, where, name, code_hash(code))
        else:  # of another file than the module's, where a decorator has put a function of its own in its place
            file = os.path.abspath(code.co_filename)
            known = getattr(code, "co_qualname", None) or (
                function.__qualname__ if "__wrapped__" not in vars(function) else ""
            )
            entry = self._entry(
                name_of_file(file) if os.path.isfile(file) else name_of(function.__module__), file
            )
            entry["code" if known else "values"].setdefault(known or name, set()).add(code_hash(code))
        freed = {change.root for change in facts.changes if change.kind == "free"}
        for phrase, value in given_to(function).items():
            self._value(function, phrase.replace("NAME", name), value, phrase.partition(" ")[0] not in freed)
        out = self._changed.of(function)
        for attribute, value in list(vars(function).items()):
            if attribute == "__wrapped__":
                self.add(value)
            elif not attribute.startswith("_espnet3_"):
                self._value(function, f"the value of {name}.{attribute}", value, attribute not in out)
        self._code(function, facts, function.__globals__)

    def _class(self, cls: type) -> None:
        if isinstance(standing := vars(cls).get(FUNCTION), staticmethod):
            self.add(standing.__func__)
            if "item_cost" not in vars(cls):
                return
        name, out = cls.__qualname__, self._changed.of(cls)
        made_from = [
            f"{name_of(base.__module__)}:{base.__qualname__}" for base in (*cls.__bases__, type(cls))
        ]
        for base in (*cls.__bases__, type(cls)):
            self.add(base)
        known = {one: value for one, value in list(vars(cls).items()) if one not in _NOT_CODE}
        self._value(cls, name, [made_from, sorted(known.keys() - out)])
        for attribute, value in known.items():
            phrase = f"{name}.{attribute}"
            functions = _functions(value)
            setters = [value.fset, value.fdel] if type(value) is property else []
            for function in functions:
                if is_users(function):
                    called = f"{attribute}=" if any(function is one for one in setters) else attribute
                    self._function(Function(function, cls, isinstance(value, classmethod), called), phrase)
            self._value(
                cls, f"the value of {phrase}" if not functions else phrase, value, attribute not in out
            )

    def _installed(self, thing: Any) -> None:
        """Take in what an installed function or class holds of the user's."""
        module = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""
        self.installed.add(str(module).partition(".")[0])
        held: list[Any] = []
        if isinstance(thing, FunctionType):
            held = [*given_to(thing).values(), vars(thing).get("__wrapped__")]
        elif isinstance(thing, type):
            put = {
                name: one
                for name, one in vars(thing).items()
                if isinstance(one, FunctionType) and is_users(one)
            }
            self._put |= {f"{thing.__qualname__}.{name}" for name in put}
            held = list(put.values())
        for one in held:
            self.content.hash(one, "what it holds")

    # --- what code names ---

    def _code(self, owner: Any, facts: Facts, world: dict[str, Any]) -> None:
        """Take in what code reads of its module, and what it imports."""
        out = self._changed.owned.get(id(world), set())
        for name in sorted(facts.reads):
            if name in world:
                self._named(owner, name, world[name], facts, name not in out)
        taken = (world[name] for name in facts.reads if name in world)
        imports = facts.imports_by_name or any(
            isinstance(one, (FunctionType, BuiltinFunctionType)) and one.__name__ in IMPORTERS
            for one in taken
        )
        self._imports(owner, facts, str(world.get("__package__") or ""), imports)
        if facts.sees_all:
            self._all_names(owner, world, out)

    def _named(self, owner: Any, name: str, value: Any, facts: Facts, counts: bool) -> None:
        if not isinstance(value, ModuleType):
            self._value(owner, f"the value of {name}", value, counts)
        elif name in facts.bare and is_users(value):
            self.add(value)
        else:
            self._of_module(owner, value, facts.names)

    def _of_module(self, owner: Any, module: ModuleType, names: frozenset[str]) -> None:
        """Take in what code names of a module."""
        key = (id(module), names)
        if key in self._looked:
            return
        self._looked.add(key)
        own, known = is_users(module), vars(module)
        if not own:
            self.installed.add(module.__name__.partition(".")[0])
        out = self._changed.owned.get(id(known), set())
        for name in sorted((names | {"__getattr__"}) & known.keys()):
            value = known[name]
            if isinstance(value, ModuleType):
                if own or is_users(value):
                    self._of_module(owner, value, names)
            elif own or (isinstance(value, (FunctionType, type)) and is_users(value)):
                if not own:
                    self._put.add(f"{module.__name__}.{name}")
                self._value(owner, f"the value of {module.__name__}.{name}", value, name not in out)

    def _all_of(self, module: ModuleType) -> None:
        """Take in all of a module that code hands on."""
        stand_in = _Owner(module.__name__)
        self._all_names(stand_in, vars(module), self._changed.owned.get(id(vars(module)), set()))

    def _all_names(self, owner: Any, world: dict[str, Any], out: set[str]) -> None:
        """Take in all that a module defines and sets: any of it may be meant."""
        names = []
        for name, value in list(world.items()):
            if name in _OF_NOTEBOOKS or (name.startswith("_") and name != "__getattr__"):
                continue
            if isinstance(value, (FunctionType, type, *WRAPPERS)) or type(value) in _PLAIN:
                names.append(name)
                self._value(owner, f"the value of {name}", value, name not in out)
        self._value(owner, "the names of the module", sorted({*names} - out))

    def _imports(self, owner: Any, facts: Facts, package: str, by_name: bool) -> None:
        for dotted in _imported(facts, package):
            self.module(dotted, facts.names, owner)
        if not by_name:
            return
        found = False
        for text in facts.texts:
            above = [one for one in facts.texts if one != text] if text.startswith(".") else []
            for dotted in (
                absolute(text.lstrip("."), len(text) - len(text.lstrip(".")), one)
                for one in (*above, package)
            ):
                if dotted.replace(".", "").isidentifier() and any(map(is_own, locate(dotted).values())):
                    found = True
                    self.module(dotted, facts.names | frozenset(dotted.split(".")), owner)
        if not found:  # by a name made at run time: any module may be meant
            for live in list(sys.modules.values()):
                if (
                    isinstance(live, ModuleType)
                    and is_users(live)
                    and isinstance(vars(live).get("__file__"), str)
                ):
                    self._of_module(_Owner(live.__name__), live, facts.names)

    def module(self, dotted: str, names: frozenset[str], owner: Any = None) -> None:
        """Take in what code names of a module that it imports."""
        for name, file in locate(dotted).items():
            live = sys.modules.get(name)
            if not is_own(file):
                self.installed.add(name.partition(".")[0])
            elif live is None:
                self._later(name, file, False)
            else:
                self._of_module(owner or _Owner(name), live, names)
                if name not in MAIN and owner is not None:
                    self._later(name, file, True)

    def _later(self, name: str, file: str, is_loaded: bool) -> None:
        """Take in a module that is imported later by its file: its statements, and all that it imports.

        Of one that is loaded meanwhile, what code names counts as it is; of any other one, all functions in it.
        """
        if file in self._files:
            return
        self._files.add(file)
        self.later.add(name)
        entry = self._entry(name_of_file(file) if os.path.isfile(file) else name, file)
        if not is_loaded:
            entry["unloaded"] = True
        code = compiled(name, file)
        if code is None:
            entry["code"]["its content"] = {Content().hash(Path(file).read_bytes(), name)[:DIGITS]}
            return
        entry["code"].setdefault(BODY, set()).add(code_hash(code, True))
        is_package = os.path.basename(file).startswith("__init__.")
        package = name if is_package else name.rpartition(".")[0]
        if not is_loaded:
            for function, its_code in functions_in(code):
                entry["code"].setdefault(function, set()).add(code_hash(its_code))
            self._imports(_Owner(name), facts_of(code), package, facts_of(code).imports_by_name)
            return
        for dotted in _imported(facts_of(code), package):
            for inner, where in locate(dotted).items():
                if is_own(where) and inner not in MAIN:
                    self._later(inner, where, inner in sys.modules)


def _imported(facts: Facts, package: str) -> Iterator[str]:
    """Yield the modules that code imports, and what it takes from them, by their dotted names."""
    for module, level, taken in facts.imports:
        base = absolute(module, level, package)
        yield from (base, *(f"{base}.{one}" for one in taken if one != "*"))


INSTALLED = "installed packages"
_KINDS = ("code", "values")
_OF_NOTEBOOKS = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})


class _Owner:
    """Stands for a module where a function or a class of it is wanted."""

    def __init__(self, module: str) -> None:
        self.__module__ = module


def _functions(value: Any) -> list[FunctionType]:
    """Return the functions in what a class holds: in a static method, a property, and under decorators that say so."""
    found: list[FunctionType] = []
    left = [value]
    while left and len(found) < 100:
        one = left.pop()
        if isinstance(one, FunctionType):
            found.append(one)
        elif type(one) in (staticmethod, classmethod):
            left.append(one.__func__)
        elif type(one) is property:
            left += [one.fset, one.fdel, one.fget]
        elif type(one) in WRAPPERS:
            left.append(getattr(one, "func", None) or getattr(one, "__wrapped__", None))
    return found
