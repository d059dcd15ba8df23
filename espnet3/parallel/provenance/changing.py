"""What reached code changes as it runs, such as a cache: it is no part of what a run was made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a
from espnet3.parallel.provenance.code import WITHIN, Facts, facts_of
from espnet3.parallel.provenance.content import attributes_of
from espnet3.parallel.provenance.modules import is_users

# What these set is there before an item can see it
_MAKERS = frozenset(
    {"__init__", "__post_init__", "__new__", "__init_subclass__", "__set_name__", "__setstate__"}
    | {"__class_getitem__", "__setitem__", "__delitem__", "__setattr__", "__delattr__"}
)
_SETTERS = ("setattr", "delattr", "__setattr__", "__delattr__")  # they are given a name as a text


@dataclass(frozen=True, slots=True)
class Function:
    """A function that was met, and how code calls it: by its name, or "name=" where setting an attribute does."""

    function: FunctionType
    kind: type | None = None  # the class that it is a method of
    of_class: bool = False  # it is given the class, as a class method is
    called: str = ""

    @property
    def facts(self) -> Facts:
        """What its code says."""
        return facts_of(self.function.__code__)


class Changed:
    """What functions change that run with the items, not where objects and modules are made.

    Of methods those count whose names are in such code, or in `called`: this layer calls them.
    """

    def __init__(self, functions: Iterable[Function] = (), called: Iterable[str] = ()) -> None:
        # names, by the identity of what has them: a module's names, an object; by that of a class, those that it and
        # its bases have, those of its instances, and the places that its methods change by way of attributes
        self._of: dict[int, set[str]] = defaultdict(set)
        self._of_classes: dict[int, set[str]] = defaultdict(set)
        self._of_instances: dict[int, set[str]] = defaultdict(set)
        self._further: dict[int, set[tuple[str, ...]]] = defaultdict(set)
        self._loose: set[str] = set()  # that code sets on what it is given
        self._handed_on: set[int] = set()  # the identities of what reached code hands on
        self._names = {*called}  # in code that runs with the items; "name=" where it sets one
        self._by_methods: dict[type, set[str]] = {}
        left, before = list(functions), -1
        while len(left) != before:
            before, waiting, left = len(left), left, []
            for one in waiting:
                if one.kind is None or _runs(one.called, self._names):
                    self._take(one)
                else:
                    left.append(one)

    def _take(self, met: Function) -> None:
        world, facts, kind = met.function.__globals__, met.facts, id(met.kind)  # of None no object has it
        self._names |= facts.names | facts.texts
        self._handed_on |= {id(world[name]) for name in facts.bare if name in world}
        if any("__dict__" in place for place in facts.changes) or not facts.names.isdisjoint(_SETTERS):
            self._loose |= facts.texts
            self._of_instances[kind] |= facts.texts
        for root, *place in facts.changes:
            in_place = place[-1:] == [WITHIN]
            names = place[:-1] if in_place and len(place) > 1 else place
            if not in_place:
                self._names.add(f"{names[-1]}=")
            if root == "global":
                self._at(world, names)
            elif root == "first" and met.kind is not None and len(names) > 1:
                self._further[kind].add(tuple(names))
            elif root == "first" and met.kind is not None:
                if met.of_class or in_place:
                    self._of_classes[kind].update(names)
                if not met.of_class:
                    self._of_instances[kind].update(names)
            elif not in_place:
                self._loose.add(names[-1])

    def _at(self, owner: Any, names: Sequence[str]) -> None:
        for name in names[:-1]:
            held = owner if is_a(owner, dict) else _names_of(owner)
            if name not in held:
                return
            owner = held[name]
            owner = vars(owner) if is_a(owner, ModuleType) else owner
        self._of[id(owner)].add(names[-1])

    def of(self, value: Any) -> set[str]:
        """Return which names of a module's, or attributes of an object or a class, are changed."""
        is_class = is_a(value, type)
        bases = value.__mro__ if is_class else type(value).__mro__
        for place in [place for base in bases for place in self._further.get(id(base), ())]:
            self._at(value, place)
        found = {*self._of.get(id(value), ()), *(self._loose if id(value) in self._handed_on else ())}
        for base in bases:
            found |= self._of_classes.get(id(base), set())
            found |= set() if is_class else self._of_instances.get(id(base), set()) | self._of_methods(base)
        return found

    def _of_methods(self, kind: type) -> set[str]:
        """Return what the methods of an installed class set on what they are called on."""
        if kind not in self._by_methods:
            held = {} if is_users(kind) else vars(kind)
            ran = [
                one for name, one in held.items() if type(one) is FunctionType and _runs(name, self._names)
            ]
            places = [place for one in ran for place in facts_of(one.__code__).changes]
            self._by_methods[kind] = {place[1] for place in places if place[0] == "first"}
        return self._by_methods[kind]


def _runs(name: str, names: set[str]) -> bool:
    """Tell whether a method runs with the items: its name is in code that does, or Python calls it."""
    in_place = name.startswith("__i") and name != "__iter__"  # as `+=` calls them
    special = name.startswith("__") and name.endswith("__") and not in_place
    return name not in _MAKERS and (special or name in names)


def _names_of(value: Any) -> dict[str, Any]:
    """Return what a class or an object has under which name, without asking it."""
    kinds = value.__mro__ if is_a(value, type) else type(value).__mro__
    found = {name: one for kind in reversed(kinds) for name, one in vars(kind).items()}
    return found if is_a(value, type) else {**found, **attributes_of(value)}
