"""Variables and attributes that reached code changes as it runs, such as counters and caches: these are no settings.

By what compiled code stores, and from where it has the owner of it: a variable of the module, the first argument,
another one, or a variable of the function around.
"""

from __future__ import annotations

import dis
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import getattr_static
from types import CodeType, FunctionType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a
from espnet3.parallel.provenance.code import (
    ATTRIBUTES,
    GLOBALS,
    IS_FUNCTION,
    OPS,
    WITH_ARGUMENT,
    Step,
    facts_of,
    steps_of,
)

WITHIN = "[]"  # at the end of a place: something in it
# How many keys stand between the owner of a part and the top of the stack
_KEYS = {"BINARY_SUBSCR": 1, "STORE_SUBSCR": 1, "DELETE_SUBSCR": 1, "BINARY_SLICE": 2, "STORE_SLICE": 2}
_DEPTHS = {"DUP_TOP": 1, "DUP_TOP_TWO": 1}  # Python 3.10 has these in names, and not as arguments
_PARTS = frozenset({*ATTRIBUTES, "LOAD_SUPER_ATTR", "BINARY_SUBSCR", "BINARY_SLICE"})
_SETTERS = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE", "STORE_ATTR", "DELETE_ATTR"})
_TAKERS = ("STORE_", "DELETE_", "POP_", "END_")  # they leave no value
_COPIES, _TURNS = ("COPY", "DUP_"), ("SWAP", "ROT_")
_KINDS = {"STORE_GLOBAL": "global", "DELETE_GLOBAL": "global", "STORE_DEREF": "free", "DELETE_DEREF": "free"}
_STORES = frozenset(dis.opmap[name] for name in (*_SETTERS, *_KINDS) if name in dis.opmap)
_CHANGERS = frozenset(  # methods of containers that change them
    {"append", "appendleft", "add", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"}
    | {"reverse", "setdefault", "sort", "update"}
)
# The place of a value: a root, which is "global", the "first" argument, another one ("argument x") or "free" (a
# variable of the function around), then the names that lead to the value
Place = tuple[str, ...]
# Methods that run before an item sees the object
_MAKERS = frozenset(
    {"__init__", "__post_init__", "__new__", "__init_subclass__", "__set_name__", "__setstate__"}
    | {"__class_getitem__", "__setitem__", "__delitem__", "__setattr__", "__delattr__"}
)
_BY_NAME = ("setattr", "delattr", "__setattr__", "__delattr__")  # they are given a name as a text


@cache
def changes_of(code: CodeType) -> frozenset[Place]:
    """Return the places that code changes and has not made itself; "[]" at the end means changed in place."""
    inner = [changes_of(one) for one in code.co_consts if isinstance(one, CodeType)]
    is_changer = not (_STORES.isdisjoint(code.co_code[::2]) and _CHANGERS.isdisjoint(code.co_names))
    return frozenset(place for place in (_changes(code) if is_changer else ()) if place).union(*inner)


def _changes(code: CodeType) -> Iterator[Place | None]:
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    arguments = code.co_varnames[:count] if code.co_flags & IS_FUNCTION else ()
    known: dict[str, Place | None] = {name: (f"argument {name}",) for name in arguments}
    known |= {name: ("first",) for name in arguments[:1] if code.co_argcount}
    known |= {name: ("free", name) for name in code.co_freevars}
    steps = steps_of(code)
    for at, (op, name, _, _) in enumerate(steps):
        before = steps[at - 1][0]
        if op in _KINDS and name not in code.co_cellvars:
            yield (_KINDS[op], name, WITHIN)
        elif op.startswith("STORE_FAST") or op == "STORE_DEREF":
            known[name] = _place(steps, at, 0, known)
        elif op in _SETTERS:  # after a swap, `+=` has read the same part, of a copy of its owner
            yield None if before.startswith(_TURNS) else _part(steps, at, known)
        elif op in _PARTS and before.startswith(_COPIES):
            yield _part(steps, at, known)
        elif op in ATTRIBUTES and name in _CHANGERS:
            yield _part(steps, at, known, WITHIN)


def _part(steps: list[Step], at: int, known: dict[str, Place | None], name: str = "") -> Place | None:
    op, read, *_ = steps[at]
    owner = _place(steps, at, _KEYS.get(op, 0), known)
    is_whole = owner is None or owner[-1] == WITHIN
    return owner if is_whole else (*(owner or ()), name or (WITHIN if op in _KEYS else read))


def _place(steps: list[Step], at: int, below: int, known: dict[str, Place | None]) -> Place | None:
    """Return the place of the value that lies so far below the top of the stack before a step, if it is known."""
    while at > 0 and (below or steps[at - 1][0].startswith(_TAKERS)):
        at -= 1
        op, _, arg, _ = steps[at]
        if op == "DUP_TOP_TWO" and below == 1:  # as far down in what it has copied
            continue
        below -= dis.stack_effect(OPS[op], arg if OPS[op] in WITH_ARGUMENT else None, jump=False)
        below -= op == "END_FOR"  # it also takes the value that the end of a loop would have left
        if below < 0 or op.startswith(_TURNS):
            return None
    op, name, arg, _ = steps[at - 1]
    if op.startswith(_COPIES):
        return _place(steps, at - 1, _DEPTHS.get(op, arg) - 1, known)
    if op in GLOBALS:
        return ("global", name)
    is_local = op.startswith("LOAD_FAST") or op == "LOAD_DEREF"
    return known.get(name) if is_local else _part(steps, at - 1, known) if op in _PARTS else None


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
        waiting, before = list(functions), -1
        while len(waiting) != before:
            before, waiting = len(waiting), [one for one in waiting if not self._takes(one)]

    def _takes(self, met: Function) -> bool:
        in_place = met.called.startswith("__i") and met.called != "__iter__"  # as `+=` calls them
        is_special = met.called.startswith("__") and met.called.endswith("__") and not in_place
        runs = met.called not in _MAKERS and (is_special or met.called in self._names)
        if met.kind is not None and not runs:
            return False
        world, code = met.function.__globals__, met.function.__code__
        facts, changes = facts_of(code), changes_of(code)
        of_kind = set() if met.kind is None else self._by_methods[id(met.kind)]
        self._names |= facts.names | facts.texts
        self._handed_on |= {id(world[name]) for name in facts.bare if name in world}
        if any("__dict__" in place for place in changes) or not facts.names.isdisjoint(_BY_NAME):
            self._loose |= facts.texts
            of_kind |= {(False, (name,)) for name in facts.texts}
        for root, *place in changes:
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
        return True

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


def is_of_torch(kind: type) -> bool:
    """Tell whether a class is the base of all layers and models of torch."""
    return kind.__module__ == "torch.nn.modules.module"
