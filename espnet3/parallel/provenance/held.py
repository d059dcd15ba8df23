"""What is inside a value: the functions and classes in tables, partial functions and objects, and attributes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cached_property, lru_cache, partial
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from espnet3.parallel.checks import is_a, own_attribute
from espnet3.parallel.provenance.content import is_full
from espnet3.parallel.provenance.modules import is_own, module_of, own_without_file

_MOST = 10_000  # objects in one variable: more are data, and no table of functions
_HOLDERS = (
    ((staticmethod, classmethod, MethodType), "__func__"),
    (property, "fget"),
    (cached_property, "func"),
)
WRAPPERS = (staticmethod, classmethod, property, cached_property, type(lru_cache(len)))


def inner(value: Any) -> Any:
    """Return the function in a static method, a property, a cached function or the like; else the value."""
    # by their types: an object may answer to any name, or raise anything
    for kinds, name in _HOLDERS:
        if issubclass(type(value), kinds):
            held = getattr(value, name)
            value = value if held is None else held
    wrapped = own_attribute(value, "__wrapped__")
    return value if wrapped is None else wrapped


def is_users(kind: type) -> bool:
    """Tell whether a class is the user's own."""
    file = own_attribute(sys.modules.get(module_of(kind)), "__file__")
    return _is_own(file) if is_a(file, str) else own_without_file(kind)


_is_own = lru_cache(maxsize=4096)(is_own)  # asked of every object in every variable


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an object's own attributes, those in slots too."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:  # all are in slots
        own = None
    found = dict(own) if type(own) is dict else {}
    for name in [one for kind in type(value).__mro__ for one in _slots(kind)]:
        try:
            found[name] = object.__getattribute__(value, name)
        except AttributeError:  # no value yet
            continue
    return found


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if is_a(slots, str) else tuple(slots)


def code_in(value: Any) -> Iterator[Any]:
    """Yield the functions, classes and modules in a value: in containers, partial functions, objects of the user's."""
    left, seen = [value], {id(value): value}
    while left and len(seen) < _MOST:
        one = left.pop()
        if is_a(one, (FunctionType, type)) or (
            is_a(one, ModuleType) and sys.modules.get(one.__name__) is not one
        ):
            yield one
        for part in _held(one):
            if id(part) not in seen and not is_a(part, (str, bytes, int, float, complex, type(None))):
                seen[id(part)] = part
                left.append(part)


def _held(value: Any) -> list[Any]:
    """Return what a value holds."""
    if is_a(value, Mapping) and type(value).__module__ in ("builtins", "collections", "types"):
        return [*value, *value.values()]
    if is_a(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if is_a(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if is_a(value, MethodType):
        return [value.__func__, value.__self__]
    if is_a(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if is_full(cell)]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if is_a(value, type):
        return list(vars(value).values()) if is_users(value) else []
    if is_a(value, WRAPPERS):
        return [inner(value)]
    if is_users(type(value)) or is_dataclass(value) or type(value) is SimpleNamespace:
        return list(attributes_of(value).values())
    return []
