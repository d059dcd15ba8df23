"""What reached code changes as it runs, such as a cache: it is no part of what a run was made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from espnet3.parallel.provenance.code import Facts, facts_of
from espnet3.parallel.provenance.content import attributes_of
from espnet3.parallel.provenance.modules import is_users

# What these set is there before an item can see it
_MAKERS = frozenset(
    (
        *("__init__", "__post_init__", "__new__", "__init_subclass__", "__set_name__", "__setstate__"),
        *("__class_getitem__", "__setitem__", "__delitem__", "__setattr__", "__delattr__"),
    )
)


@dataclass(frozen=True, slots=True)
class Function:
    """A function that was met.

    Attributes:
        function: The function.
        kind: The class that it is a method of, or None.
        of_class: It is given the class, as a class method is.
        called: How code calls it: by its name, or "name=" where setting an attribute does.
    """

    function: FunctionType
    kind: type | None = None
    of_class: bool = False
    called: str = ""


class Changed:
    """What reached code changes as it runs: names of modules, attributes of objects and of classes.

    Attributes:
        owned: Names that are changed, each with the identity of the module's names, or of the object, that have it.
        by_class: The attributes that methods of a class set on what they are called on, by the class's identity.
        of_classes: The same, where that is a class itself, or what is changed is a container in it.
        loose: Attributes that code sets on what it is given.
        names: All names in code that runs with the items; "name=" where it sets one.
        handed_on: The identities of what reached code hands on, so that they may be set on it.
    """

    def __init__(self) -> None:
        self.owned: dict[int, set[str]] = {}
        self.by_class: dict[int, set[str]] = {}
        self.of_classes: dict[int, set[str]] = {}
        self.loose: set[str] = set()
        self.names: set[str] = set()
        self.handed_on: set[int] = set()

    @classmethod
    def by(cls, functions: Iterable[Function], called: Iterable[str]) -> Changed:
        """Return what functions change, of those that run with the items, not where objects and modules are made."""
        found, left = cls(), list(functions)
        found.names |= {*called}
        while True:
            running = [one for one in left if one.kind is None or _runs(one.called, found.names)]
            left = [one for one in left if not any(one is each for each in running)]
            if not running:
                return found
            for one in running:
                found._take(one.function, one.kind, one.of_class, facts_of(one.function.__code__))

    def _take(self, function: FunctionType, kind: type | None, of_class: bool, facts: Facts) -> None:
        world = function.__globals__
        self.names |= facts.names | facts.texts | {f"{change.attribute}=" for change in facts.changes}
        self.handed_on |= {id(world[name]) for name in facts.bare if name in world}
        if facts.sets_any:
            self.loose |= facts.texts
        for change in facts.changes:
            first = change.path[0] if change.path else change.attribute
            if change.kind == "global":
                self._at(world, change.root, change.path, change.attribute)
            elif change.kind == "self" and kind is not None and first is not None:
                in_place = change.attribute is None
                if len(change.path) + (change.attribute is not None) == 1:
                    for table in ([self.of_classes] if of_class else [self.by_class]) + [
                        self.of_classes
                    ] * in_place:
                        table.setdefault(id(kind), set()).add(first)
            if change.attribute is not None and (
                change.kind in ("argument", "free") or kind is None or change.path
            ):
                self.loose.add(change.attribute)

    def _at(self, world: dict[str, Any], root: str, path: tuple[str, ...], attribute: str | None) -> None:
        names = [root, *path, *([] if attribute is None else [attribute])]
        owner: Any = world
        for name in names[:-1]:
            held = owner if isinstance(owner, dict) else _names_of(owner)
            if name not in held:
                return
            owner = held[name]
            owner = vars(owner) if isinstance(owner, ModuleType) else owner
        self.owned.setdefault(id(owner), set()).add(names[-1])

    def of(self, value: Any) -> set[str]:
        """Return which attributes of an object or a class are changed."""
        is_class = isinstance(value, type)
        found = set(self.owned.get(id(value), ()))
        if id(value) in self.handed_on:
            found |= self.loose
        table = self.of_classes if is_class else self.by_class
        for base in value.__mro__ if is_class else type(value).__mro__:
            found |= table.get(id(base), set())
            if not is_class:
                found |= self.of_classes.get(id(base), set())
            if not is_class and not is_users(base):
                found |= _set_by_methods(base, self.names)
        return found


def _runs(name: str, names: set[str]) -> bool:
    """Tell whether a method runs with the items: its name is in code that does, or Python calls it."""
    in_place = name.startswith("__i") and name != "__iter__"  # as `+=` calls them
    special = name.startswith("__") and name.endswith("__") and not in_place
    return name not in _MAKERS and (special or name in names)


def _set_by_methods(kind: type, names: set[str]) -> set[str]:
    """Return what the methods of an installed class set."""
    found = set()
    for name, one in list(vars(kind).items()):
        if isinstance(one, FunctionType) and _runs(name, names):
            for change in facts_of(one.__code__).changes:
                if change.kind == "self":
                    found.add(change.path[0] if change.path else change.attribute or "")
    return found


def _names_of(value: Any) -> dict[str, Any]:
    """Return what a class or an object has under which name, without asking it."""
    kinds = value.__mro__ if isinstance(value, type) else type(value).__mro__
    found: dict[str, Any] = {}
    for kind in reversed(kinds):
        found |= vars(kind)
    return {**found, **attributes_of(value)} if not isinstance(value, type) else found
