"""Code that has no file: what was typed into a notebook or a terminal, or made by `exec`. Seen as compiled code.

Compiled code holds no comments and no layout; its docstring is left out. It differs between versions of Python.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a
from espnet3.parallel.provenance.bytecode import changed_globals, code_hash, global_names, sees_all
from espnet3.parallel.provenance.content import NoContentError, content_hash
from espnet3.parallel.provenance.held import code_in
from espnet3.parallel.provenance.modules import file_of, module_of, name_of, own_without_file

_DIGITS = 16
_OF_NOTEBOOKS = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
# Made by Python for every class, or different for equal classes.
NOT_CODE = frozenset(
    [
        "__module__",
        "__qualname__",
        "__doc__",
        "__dict__",
        "__weakref__",
        "__firstlineno__",
        "__static_attributes__",
        "__abstractmethods__",
        "_abc_impl",
        "__annotations_cache__",
    ]
)


class LiveCode:
    """Gathers functions and classes without a file, and what they refer to.

    Args:
        from_file: Takes in a thing that has a file.
    """

    def __init__(self, from_file: Callable[[Any], None]) -> None:
        self._from_file = from_file
        self._seen: dict[int, Any] = {}
        self._parts: dict[str, dict[str, set[str]]] = {}

    def parts(self) -> dict[str, dict[str, str]]:
        """Return the hashes that were gathered: by module, then by name."""
        return {
            module: {name: _one(found) for name, found in by.items()} for module, by in self._parts.items()
        }

    def add(self, thing: Any) -> None:
        """Take in a function or a class, and what it refers to."""
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        if is_a(thing, FunctionType):
            self._function(thing, thing.__qualname__)
        elif is_a(thing, type):
            self._class(thing)

    def given(self, thing: Any) -> None:
        """Take in what a class or function was made with, where it was made inside a function."""
        functions = [thing] if is_a(thing, FunctionType) else [one for _, one in _functions(thing)]
        for function in functions:
            self._cells(function, function.__qualname__)

    def _note(self, thing: Any, name: str, value: str) -> None:
        module = name_of(module_of(thing) or "?")
        # a set: a name may be that of a function, and of what a decorator has made of it
        self._parts.setdefault(module, {}).setdefault(name, set()).add(value[:_DIGITS])

    def _function(self, function: FunctionType, name: str) -> None:
        self._note(function, name, code_hash(function.__code__))
        for what in (function.__defaults__, function.__kwdefaults__):
            if what:
                self._value(function, f"the defaults of {name}", what)
        self._cells(function, name)
        # what a function fills as it runs (a cache) is a matter of when one looks
        for used in sorted(global_names(function.__code__) - changed_globals(function.__code__)):
            if used in function.__globals__:
                self._value(function, used, function.__globals__[used])
        if sees_all(function.__code__):
            self._all(function)

    def _all(self, function: FunctionType) -> None:
        """Take in all that a function's module defines and sets: any of it may be meant."""
        for name, value in list(function.__globals__.items()):
            if name.startswith("_") or name in _OF_NOTEBOOKS:
                continue
            if is_a(value, (FunctionType, type)):
                self._refer(function, name, value)
            elif value is None or type(value) in (bool, int, float, complex, str, bytes):
                self._value(function, name, value)

    def _cells(self, function: FunctionType, name: str) -> None:
        for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if free == "__class__":
                continue
            try:
                held = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            self._value(function, f"{free} of {name}", held)

    def _class(self, cls: type) -> None:
        for base in (*cls.__bases__, type(cls)):
            self._refer(cls, base.__name__, base)
        functions = list(_functions(cls))
        for name, function in functions:
            self._function(function, f"{cls.__qualname__}.{name}")
        named = {name for name, _ in functions}
        for name, value in vars(cls).items():
            if name not in named and name not in NOT_CODE and not is_a(value, property):
                self._value(cls, f"{cls.__qualname__}.{name}", value)

    def _value(self, owner: Any, name: str, value: Any) -> None:
        if is_a(value, (FunctionType, type, ModuleType, BuiltinFunctionType)):
            self._refer(owner, name, value)
            return
        try:
            self._note(owner, name, content_hash(value, name, self._code_of))
        except NoContentError:  # what cannot be seen counts as changed
            self._note(owner, name, secrets.token_hex(_DIGITS))

    def _refer(self, owner: Any, name: str, thing: Any) -> None:
        """Note which thing a name stands for, and take it in where it is the user's."""
        full = f"{module_of(thing)}:{getattr(thing, '__qualname__', getattr(thing, '__name__', ''))}"
        self._note(owner, f"{name} stands for", hashlib.sha256(full.encode()).hexdigest())
        self._code_of(thing)
        for held in code_in(thing) if is_a(thing, FunctionType) and id(thing) not in self._seen else ():
            self._code_of(held)  # what a decorator of an installed package holds

    def _code_of(self, thing: Any) -> None:
        if is_a(thing, ModuleType) or file_of(module_of(thing)) is not None:
            self._from_file(thing)
        elif own_without_file(thing):
            self.add(thing)


def _functions(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield a class's own functions, those inside properties and static methods too."""
    for name, value in vars(cls).items():
        inner = [value]
        if issubclass(type(value), (staticmethod, classmethod)):
            inner.append(value.__func__)
        elif issubclass(type(value), property):
            inner += [value.fget, value.fset, value.fdel]
        elif issubclass(type(value), cached_property):
            inner.append(value.func)
        yield from ((name, one) for one in inner if type(one) is FunctionType)


def _one(found: set[str]) -> str:
    if len(found) == 1:
        return next(iter(found))
    return hashlib.sha256(" ".join(sorted(found)).encode()).hexdigest()[:_DIGITS]
