"""The user's code that a run depends on, as loaded in this process.

    runner, provider ── functions, classes ──> compiled code ── names in it ──> functions, classes, modules, values ...

A function counts by its compiled code, a class by its bases and members, a variable by its content; of a module, the
names count that reached code has of it. A module that a function imports counts by its file, whole: it may not be
loaded yet. Variables that reached code sets are left out: which these are is known once all of it has been reached.
"""

from __future__ import annotations

import builtins
import gc
import os
import sys
from abc import ABCMeta
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Set
from functools import cache, partial
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, get_args

from espnet3.parallel.checks import is_a, is_path, own_attribute
from espnet3.parallel.provenance import FUNCTION, modules
from espnet3.parallel.provenance import code as bytecode
from espnet3.parallel.provenance.code import DIGITS, facts_of
from espnet3.parallel.provenance.content import PLAIN, WRAPPERS, given_to, used
from espnet3.parallel.provenance.imports import NOTHING, SEES_ALL, WORD, Imports, texts_in
from espnet3.parallel.provenance.modules import MAIN, compiled, is_own, is_users, locate, module_of
from espnet3.parallel.provenance.parts import (
    BY_SCRIPT,
    FILLED,
    INSTALLED,
    PUT_THERE,
    STATEMENT,
    VALUE,
    Code,
    filling,
    functions_of,
)

_CACHES = {*FILLED, defaultdict, OrderedDict, Counter, deque, bytearray}
_COUNTED = (*WRAPPERS, *PLAIN, *FILLED, tuple)  # kinds of values among all names of a module
_SEES_MEMBERS = {"dir", "vars", "__dict__", "getmembers"}
# Attributes that Python makes for every class, or that differ between equal classes
_NOT_CODE = frozenset({FUNCTION, "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__",
    "__firstlineno__", "__static_attributes__", "__slotnames__", "__abstractmethods__", "_abc_impl", "__annotate__",
    "__annotations_cache__", "__annotate_func__", "__match_args__", "_is_protocol", "__orig_bases__", "__parameters__",
    "_value2member_map_", "__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__"})  # fmt: skip
# Variables of modules that depend on the file's place, and on how the program was started
_OF_MODULES = frozenset({"__file__", "__name__", "__spec__", "__path__", "__package__", "__loader__", "__cached__",
    "__builtins__"})  # fmt: skip
_OF_NOTEBOOKS = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})

# Methods that run before an item sees the object
_MAKERS = frozenset({"__init__", "__post_init__", "__new__", "__init_subclass__", "__set_name__", "__setstate__",
    "__class_getitem__", "__setitem__", "__delitem__", "__setattr__", "__delattr__"})  # fmt: skip


def code_of(roots: Iterable[Any], config: Any = None, compared: Any = None) -> tuple[Code, set[str]]:
    """Return the user's own code that classes, functions or modules depend on, and the installed packages that it uses.

    Code in a config counts, and what it has under `_target_`; of variables what `compared` leaves. The nearest first.
    """
    collects = gc.isenabled()
    gc.disable()  # to look at all objects of ESPnet's libraries takes a third of the time
    try:
        reach = _Reach(roots := list(roots), config, compared)
        reach.hash(config, "config")
        reach.follow()
        bases = [base for root in roots for base in getattr(root, "__mro__", ()) if not is_users(base)]
        return reach.result({"forward", "build_env_local"}.union(*map(vars, bases))), reach.installed
    finally:
        if collects:
            gc.enable()


# Gathers all that is reached, the nearest first
class _Reach(Imports):
    def __init__(self, roots: list[Any], config: Any, compared: Any) -> None:
        super().__init__(config)
        self._roots = roots
        self.compared = compared or (lambda name, value: [value])
        self._functions: dict[int, tuple[FunctionType, str]] = {}  # and of a method, how code calls it
        self._codes: dict[str, CodeType] = {}
        self._todo: list[Any] = []
        self._put: set[str] = set()
        self._members = Counter[str]()  # names that classes and their bases have
        # each with its module, phrase, what has it, and its name there: None for a set of names
        self._values: dict[Any, tuple[str, str, Any, Any, Any]] = {}
        # by module: each read is one of its file, and code takes long to find in a cache
        self._body_of = cache(self._body)
        for root in roots:
            self.add(root)

    def add(self, thing: Any) -> None:
        if self._is_new(id(thing), thing):
            self._todo.append(thing)

    def follow(self) -> None:
        at, before = 0, None
        while before != (now := (at, len(self._todo), len(self._far), len(self._mentioned), len(self._any))):
            before = now
            while at < len(self._todo):  # which grows
                self._reached(self._todo[at])
                at += 1
            for importer in list(self._importers):
                self._by_name(*importer)
            names = frozenset(self._mentioned - {"__doc__"})  # a docstring is no name that is looked up
            for module in list(self._any):
                self._of_module(module, names)

    def _reached(self, thing: Any) -> None:
        if type(thing) is str:
            self._module(thing, frozenset(thing.split(".")), is_imported=False)
        elif not is_users(thing) and not (is_a(thing, type) and FUNCTION in vars(thing)):
            self._installed(thing, vars(thing).keys() if is_a(thing, type) else ())
        elif is_a(thing, FunctionType):
            self._function(thing, thing.__qualname__)
        elif is_a(thing, type):
            self._class(thing)
        elif is_a(thing, ModuleType):
            self._all_names(vars(thing))

    def result(self, called: Set[str]) -> Code:
        """Return what was reached; `called` are the methods that this layer calls."""
        self._come_later = self._later - self._at_start()
        if not self._mentioned.isdisjoint(("eval", "train")):
            # what has run before decides the mode of a layer that models share
            self._modes = {"training"}
        self._known = {} if self._come_later or self._modes else self._known
        changed = self._changed(called)
        for module, phrase, value, owner, name in self._values.values():
            entry, body, out = self._entry(module), self._body_of(module), changed.get(id(owner), set())
            if name is not None and name in out:
                if name in body.definitions:  # the statement that makes it, then
                    entry["values"][f"{STATEMENT}{name}"] = {body.definitions[name]}
                continue
            held = owner.get(name) if name else None
            is_literal = name in body.literals
            if (is_literal and type(held) in PLAIN) or (type(held) in FILLED and held):
                # as the script leaves it, which other processes do not run
                part, in_file = (filling(one, is_literal) for one in (held, body.constants.get(name, held)))
                entry["code"][phrase] = {part} if part == in_file else {part, BY_SCRIPT}
            counts = value
            if name is None:
                left = (one for one in value[1].items() if one[0] not in out)
                counts = value[0], sorted(one for one in left if self._may_matter(owner, one[0]))
            entry["values"].setdefault(phrase, set()).add(self.hash(counts, phrase)[:DIGITS])
        self._entry(INSTALLED)["values"][PUT_THERE] = self._put
        self._entry(INSTALLED)["elsewhere"] = sorted(self._elsewhere)
        for entry in self._entries.values():
            self._add_written(entry)
            for kind in ("code", "values"):
                entry[kind] = {name: " ".join(sorted(found)) for name, found in entry[kind].items()}
        return self._entries

    def _add_written(self, entry: dict[str, Any]) -> None:
        # a decorator has put something into a function, as typeguard's does, or an import hook: what the file has of
        # it counts, too, unless something has also been taken out, as by an edit
        is_loaded = "unloaded" not in entry and is_a(sys.modules.get(entry["module"]), ModuleType)
        code = compiled(entry["module"], entry["file"]) if is_loaded and entry["file"] else None
        functions = {} if code is None else bytecode.functions_in(code)
        for name in functions.keys() & entry["code"].keys():
            known = entry["code"][name]
            written = {facts_of(one).hash: facts_of(one) for one in functions[name]}
            met = [facts_of(self._codes[one]).names for one in known & self._codes.keys()]
            if len(written) == 1 and any(one.names < names for one in written.values() for names in met):
                known.update(written)

    def _at_start(self) -> set[str]:
        # the modules that the program has loaded before any function imports one
        found, left = set[str](), [*MAIN, *map(module_of, self._roots)]
        for name in left:  # which grows
            live, file = sys.modules.get(name), modules.file_of(name)
            code = compiled(name, file) if file and name not in found and is_own(file) else None
            if code is not None:
                found.add(name)
                package = str(vars(live).get("__package__") or "")
                left += [each for one, _ in bytecode.imports_in(code, package, True) for each in locate(one)]
        return found

    def _changed(self, called: Set[str]) -> dict[int, set[str]]:
        # by the identity of a module's names: the variables that are changed by code that runs with the items, or only
        # read by methods that do not run and change them
        found, names = defaultdict[int, set[str]](set), (self._mentioned | called) - _MAKERS
        left, read = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
        for function, method in self._functions.values():
            world, facts = function.__globals__, facts_of(function.__code__)
            # of another class `add` may be anything
            changed = facts.bound | {name for name in facts.filled if type(world.get(name)) in _CACHES}
            is_special = method[:2] == method[-2:] == "__" and method not in _MAKERS
            if not method or is_special or method in names:
                found[id(world)] |= changed
            else:
                left.update((id(world), name) for name in changed)
        there = {name for _, name in left}
        for function, _ in self._functions.values() if there else ():
            reads = facts_of(function.__code__).reads & there
            read.update((id(function.__globals__), name) for name in reads)
        for at, name in [one for one, times in left.items() if read[one] == times]:
            found[at].add(name)
        return found

    def _may_matter(self, owner: Any, name: str) -> bool:
        # whether it says something that a class has a name: unless no code mentions it, and no other class has it
        if type(owner) not in (type, ABCMeta) or name[:2] == "__" or name in self._mentioned:
            return True
        return bool(_SEES_MEMBERS & self._mentioned) or self._members[name] > 1

    def _value(self, module: str, phrase: str, value: Any, owner: Any = None, name: str | None = "") -> None:
        # it counts unless reached code changes what its owner has under that name
        if (key := (module, phrase, id(value), id(owner))) in self._values:
            return
        text = str(value) if type(value) is str or is_path(value) else ""
        file = self._entry(module)["file"]
        if file is not None and text.count(os.sep) > 1 and os.path.isabs(text):
            here = os.path.dirname(file)
            if os.path.commonpath([text, file]) in (here, text.rstrip(os.sep)):  # a checkout may be moved
                value = (type(value), os.path.relpath(text, here))
        self._values[key] = module, phrase, value, owner, name
        self.hash(value, phrase)

    def _function(self, function: FunctionType, name: str, method: str = "") -> None:
        code = function.__code__
        if id(function) in self._functions or code.co_filename.startswith(("<attrs generated", "<@beartype")):
            self.add(vars(function).get("__wrapped__"))
            return  # what they were made from counts; another salt is in each
        self._seen[id(function)] = self._functions[id(function)] = function, method
        # not what the function says, which may be the module of another one that it stands for
        module, is_text = str(function.__globals__.get("__name__", "")), code.co_filename.startswith("<")
        entry = self._entry(module, "" if is_text else os.path.abspath(code.co_filename))
        known = name if is_text else getattr(code, "co_qualname", function.__qualname__)
        if known.startswith("__autoreload"):  # IPython has put new code into the function
            known = function.__qualname__
        kind = "values" if is_text and entry["file"] else "code"
        # a builtin that it reads may have been defined meanwhile
        facts = facts_of(code)
        hidden = {one for one in facts.reads & vars(builtins).keys() if one[:2] != "__"}
        entry[kind].setdefault(known, set()).update({facts.hash}, hidden & function.__globals__.keys())
        self._codes[facts.hash] = code
        given = given_to(function, name, self.compared)
        for phrase, value in given.items():
            self._value(module, phrase, value)
        held = {one: value for one, value in list(vars(function).items()) if not one.startswith("_espnet3_")}
        self.add(held.pop("__wrapped__", None))
        for one, value in held.items():
            self._value(module, f"{VALUE}{name}.{one}", value)
        self._code(code, function.__globals__, [*given.values()])

    def _class(self, cls: type) -> None:
        if isinstance(standing := vars(cls).get(FUNCTION), staticmethod):
            self.add(standing.__func__)
            # a partial function's class belongs to functools
            home = module_of(cls) if is_users(cls) else INSTALLED
            self._value(home, f"{VALUE}{cls.__qualname__}", standing.__func__)
            if "item_cost" not in vars(cls):
                return
        name, module = cls.__qualname__, module_of(cls)
        generic = vars(cls).get("__orig_bases__", ())
        given = [one for base in generic for one in get_args(base) if is_a(one, type)]
        bases = (*cls.__bases__, type(cls), *given)
        for base in cls.__mro__:
            self._members.update([*vars(base)] if self._is_new(("members", id(base)), base) else ())
        known = {one: value for one, value in list(vars(cls).items()) if one not in _NOT_CODE}
        if fields := known.get("__dataclass_fields__"):
            counts = {key: one for key, one in fields.items() if self.compared(key, one.default)}
            known["__dataclass_fields__"] = counts
        hints = known.pop("__annotations__", {})  # of a class made in C these may be a descriptor
        for one, kind in hints.items() if type(hints) is dict else ():
            self._value(module, f"the annotation of {name}.{one}", kind)
            words, live = WORD.findall(kind) if type(kind) is str else (), sys.modules.get(module)
            self._names(vars(live) if words and live is not None else {}, {*words}, frozenset(words))
        made_from = [f"{modules.name_of(module_of(base))}:{base.__qualname__}" for base in bases]
        kinds = {one: bool(functions_of(value)) for one, value in known.items()}
        self._value(module, name, (made_from, kinds), cls, None)
        for base in bases:
            self.add(base)
        for attribute, value in known.items():
            functions = functions_of(value)
            for one in filter(is_users, functions):
                self._function(one, f"{name}.{attribute}", attribute)
                self._put_there(module, f"{name}.{attribute}", one)
            is_fleeting = f"{name}.{attribute}" in self._body_of(module).fleeting
            for left in () if is_fleeting else self.compared(attribute, value):
                self._value(module, f"{'' if functions else VALUE}{name}.{attribute}", left)

    def _code(self, code: CodeType, world: dict[str, Any], given: list[Any]) -> None:
        facts = facts_of(code)
        self._names(world, facts.reads, facts.names, code)
        self._of_module(builtins, frozenset(facts.reads - world.keys()))
        read = {name: world[name] for name in facts.reads & world.keys()}
        whole = {name for name, attribute in facts.asked if attribute == "__dict__"}
        handed = [read[name] for name in (facts.bare | whole) & read.keys()]
        for variable, *names in facts.handed:
            one = read.get(variable)
            for name in names:
                one = vars(one).get(name) if is_a(one, ModuleType) and is_users(one) else None
            handed.append(one)
        for module in (one for one in handed if is_a(one, ModuleType) and is_users(one)):
            self.add(module)
            self._any[module] = None
        kinds = FunctionType, BuiltinFunctionType, ModuleType
        called = [one.__name__ for one in read.values() if is_a(one, kinds)]
        near = {*facts.names, *map(id, read.values())}
        seen = [one for one, home in SEES_ALL.items() if one in facts.reads or (one in near and near & home)]
        texts = texts_in([given, *read.values()])
        self._imports(code, str(world.get("__package__") or ""), called + seen, texts)
        if seen or "__subclasses__" in facts.names:
            self._all_names(world, frozenset(WORD.findall(" ".join(facts.texts | texts) if seen else "")))
        for one in list(world.values()) if "__subclasses__" in facts.names else ():
            is_module = is_a(one, ModuleType) and is_users(one)
            for each in list(vars(one).values()) if is_module else [one]:
                self._subclasses(each)

    def _subclasses(self, cls: Any) -> None:
        if is_a(cls, type) and is_users(cls) and self._is_new(("below", id(cls)), cls):
            # the last of a name: another one, as `dataclass(slots=True)` leaves, may be collected at any time
            below = {f"{module_of(one)}:{one.__qualname__}": one for one in type.__subclasses__(cls)}
            self._value(module_of(cls), f"the subclasses of {cls.__qualname__}", sorted(below))
            for one in below.values():
                self.add(one)
                self._subclasses(one)

    def _names(self, world: dict[str, Any], read: Set[str], names: frozenset[str], code: Any = None) -> None:
        own = str(world.get("__name__", ""))
        for name in sorted((read & world.keys()) - _OF_MODULES - self._body_of(own).fleeting):
            value = world[name] if code is None else used(world[name], name, code, self.compared)
            if is_a(value, ModuleType):
                self._of_module(value, names)
                value = sys.intern(modules.name_of(module_of(value)))
            is_new = self._is_new((id(world), name, id(value)), value)
            if is_new and type(value) is FunctionType:
                self._put_there(own, name, value)
            for one in self.compared(name, value) if is_new else ():
                self._value(own, f"{VALUE}{name}", one, world, name)
                if value is world[name] and not is_a(one, (FunctionType, type)):
                    self._origin(world, name)

    def _put_there(self, module: str, name: str, function: FunctionType) -> None:
        # one of another module stands for what the module defines (and not for its `except ImportError`): by its name
        # if its package may have another version
        body, home = self._body_of(module), function.__globals__.get("__name__")
        if home != module and name in bytecode.functions_in(body.code) and body.times[name] < 2:
            said = f"{module_of(function)}:{function.__qualname__}"
            found = facts_of(function.__code__).hash if is_users(function) else said
            self._entry(module)["code"].setdefault(name, set()).add(found)

    def _origin(self, world: dict[str, Any], name: str) -> None:
        # what a module imports counts where it is written, too: other processes read that file
        body, package = self._body_of(str(world.get("__name__", ""))), str(world.get("__package__") or "")
        for dotted, known in bytecode.imports_in(body.code, package, True):
            if known in (name, "*"):
                home, _, there = (dotted if known == name else f"{dotted}.{name}").rpartition(".")
                live: Any = sys.modules.get(home)
                if is_a(live, ModuleType) and is_users(live) and vars(live).get(there, self) is world[name]:
                    self._of_module(live, frozenset({there}))

    def _body(self, module: str) -> bytecode.Body:
        file = self._entry(module)["file"]
        code = None if file is None else compiled(module, file)
        return bytecode.body_of(NOTHING if code is None else code)

    def _of_module(self, module: ModuleType, names: frozenset[str]) -> None:
        is_new = self._is_new((id(module), names), module)
        if is_new and is_users(module):
            self._names(vars(module), names | {"__getattr__"}, names)
        elif is_new:
            self._installed(module, names)

    def _installed(self, owner: Any, names: Iterable[str]) -> None:
        # notes what the program has put into a module or a class
        module = module_of(owner)
        self.installed.add(module.partition(".")[0])
        if is_a(owner, type) and own_attribute(sys.modules.get(module), owner.__qualname__) is not owner:
            return  # it has been made for another class, as torch does for each autograd function
        for name in sorted(vars(owner).keys() & names) if names else ():
            if is_a(value := vars(owner)[name], ModuleType) and is_users(value):
                self._of_module(value, frozenset(names))
            elif type(value) is partial or (is_a(value, (FunctionType, type)) and is_users(value)):
                self._put.add(f"{owner.__name__}.{name}")
                self._value(INSTALLED, f"{VALUE}{owner.__name__}.{name}", value)
            elif is_a(value, type) and is_a(owner, ModuleType):
                self.add(value)

    def _all_names(self, world: dict[str, Any], words: frozenset[str] = frozenset()) -> None:
        name, known = str(world.get("__name__", "")), set[str]()
        for one, value in list(world.items()):
            if is_a(value, ModuleType) and module_of(value).startswith(f"{name}."):
                self.add(value)
            is_counted = is_users(value) if is_a(value, (FunctionType, type)) else is_a(value, _COUNTED)
            known |= {one} if is_counted and (one[:1] != "_" or one == "__getattr__") else set()
        known -= _OF_NOTEBOOKS
        self._names(world, known | words, words)
        self._value(name, "the names of the module", ([], dict.fromkeys(known)), world, None)
