"""Code that has no file: what was typed into a notebook or a terminal, or made by `exec`. Seen as compiled code.

Compiled code holds no comments and no layout; its docstring is left out. It differs between versions of Python.
"""

from __future__ import annotations

import builtins
import hashlib
import secrets
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from espnet3.parallel.provenance.bytecode import changed_globals, code_hash, global_names
from espnet3.parallel.provenance.content import NoContentError, content_hash
from espnet3.parallel.provenance.modules import file_of, name_of

_DIGITS = 16
_DATA = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
_DATA_TYPES = {
    ("numpy", "ndarray"),
    ("numpy", "MaskedArray"),
    ("pandas", "DataFrame"),
    ("pandas", "Series"),
    ("pandas", "Index"),
    ("torch", "Tensor"),
    ("omegaconf", "DictConfig"),
    ("omegaconf", "ListConfig"),
    ("argparse", "Namespace"),
}
# Made by Python for every class, or different for equal classes.
_NOT_CODE = frozenset(
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


def is_own(thing: Any) -> bool:
    """Tell whether something without a module's file is the user's: its module is not a builtin one."""
    module = getattr(thing, "__module__", None) or ""
    return not hasattr(builtins, getattr(thing, "__qualname__", "") or "") and (
        module not in sys.builtin_module_names and getattr(sys.modules.get(module), "__spec__", None) is None
    )


def is_data(value: Any) -> bool:
    """Tell whether a value is plain data, an array or a table: what does not change by being used."""
    if value is None or isinstance(value, _DATA):
        return True
    return type(value).__module__.split(".")[0] in (
        "numpy",
        "pandas",
        "torch",
        "omegaconf",
        "argparse",
        "pathlib",
    )


class LiveCode:
    """Gathers functions and classes without a file, and what they refer to.

    Args:
        from_file: Takes in a thing that has a file.
    """

    def __init__(self, from_file: Callable[[Any], None]) -> None:
        self._from_file = from_file
        self._seen: dict[int, Any] = {}
        self._parts: dict[str, dict[str, str]] = {}

    def parts(self) -> dict[str, dict[str, str]]:
        """Return the hashes that were gathered: by module, then by name."""
        return self._parts

    def add(self, thing: Any) -> None:
        """Take in a function or a class, and what it refers to."""
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, FunctionType):
            self._function(thing, thing.__qualname__)
        elif isinstance(thing, type):
            self._class(thing)

    def given(self, thing: Any) -> None:
        """Take in what a class or function was made with, where it was made inside a function."""
        functions = [thing] if isinstance(thing, FunctionType) else [one for _, one in _functions(thing)]
        for function in functions:
            self._cells(function, function.__qualname__)

    def _note(self, thing: Any, name: str, value: str) -> None:
        module = name_of(getattr(thing, "__module__", None) or "?")
        self._parts.setdefault(module, {})[name] = value[:_DIGITS]

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
        for base in cls.__bases__:
            self._refer(cls, base.__name__, base)
        functions = dict(_functions(cls))
        for name, function in functions.items():
            self._function(function, f"{cls.__qualname__}.{name}")
        for name, value in vars(cls).items():
            if name not in functions and name not in _NOT_CODE and not isinstance(value, property):
                self._value(cls, f"{cls.__qualname__}.{name}", value)

    def _value(self, owner: Any, name: str, value: Any) -> None:
        if isinstance(value, (FunctionType, type, ModuleType, BuiltinFunctionType)):
            self._refer(owner, name, value)
            return
        try:
            self._note(owner, name, content_hash(value, name, self._code_of))
        except NoContentError:  # what cannot be seen counts as changed
            self._note(owner, name, secrets.token_hex(_DIGITS))

    def _refer(self, owner: Any, name: str, thing: Any) -> None:
        """Note which thing a name stands for, and take it in where it is the user's."""
        full = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', getattr(thing, '__name__', ''))}"
        self._note(owner, f"{name} stands for", hashlib.sha256(full.encode()).hexdigest())
        self._code_of(thing)

    def _code_of(self, thing: Any) -> None:
        if isinstance(thing, ModuleType) or file_of(getattr(thing, "__module__", None) or "") is not None:
            self._from_file(thing)
        elif is_own(thing):
            self.add(thing)


def _functions(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield a class's own functions, those inside properties and static methods too."""
    for name, value in vars(cls).items():
        inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        if isinstance(inner, FunctionType):
            yield name, inner
