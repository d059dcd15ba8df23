"""What a variable of a module holds, as a hash: settings from the command line, functions made by functions."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from espnet3.parallel.checks import is_a
from espnet3.parallel.provenance.content import NoContentError, content_hash
from espnet3.parallel.provenance.held import attributes_of, is_users
from espnet3.parallel.provenance.modules import file_of
from espnet3.parallel.provenance.text.source import Source

VALUE = "the value of "


def value_hash(value: Any, name: str, found: Any) -> str | None:
    """Return the hash of a variable's value; None where only its statement can say what it is."""
    if is_a(value, (ModuleType, type)):
        return None
    if is_a(value, FunctionType) and not (given(value) or value.__closure__):
        return None
    try:
        return content_hash(value, name, found, _parts_of)[:16]
    except NoContentError:
        return None


def given(function: FunctionType) -> list[Any]:
    """Return a function's defaults, where it has some."""
    return [one for one in (function.__defaults__, function.__kwdefaults__) if one]


def _parts_of(value: Any) -> Mapping[str, Any] | None:
    """Return the attributes of a record, or those of an object of the user's that only its constructor sets."""
    kind = type(value)
    if kind is SimpleNamespace or (kind.__name__ == "Namespace" and kind.__module__ == "argparse"):
        return attributes_of(value)
    if not is_users(kind) or not all(is_users(base) for base in kind.__mro__[:-1]):
        return None
    return {name: one for name, one in attributes_of(value).items() if name not in _set_later(kind)}


def _set_later(kind: type) -> frozenset[str]:
    """Return the attributes that functions set in the modules of a class and its bases, but where objects are made."""
    files = {file_of(base.__module__) for base in kind.__mro__[:-1]}
    found = [each.sets for file in files if file is not None for each in Source.read(file).statements]
    return frozenset().union(*found)
