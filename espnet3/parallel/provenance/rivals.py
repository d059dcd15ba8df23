"""Which of several definitions of a name a live function or class is, and what stands in place of the one in the file.

A file may define a name twice, one after the other or in the branches of an `if`, and a program may put another
function in a method's place. Its text alone cannot say then what runs; the lines of compiled code can.
"""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from espnet3.parallel.checks import is_a
from espnet3.parallel.provenance.bytecode import code_hash
from espnet3.parallel.provenance.held import WRAPPERS, attributes_of, code_in, inner
from espnet3.parallel.provenance.modules import is_own, name_of
from espnet3.parallel.provenance.text.names import SCOPES
from espnet3.parallel.provenance.text.source import stamp_of
from espnet3.parallel.provenance.text.syntax import digest, first_line, text

_MOST_LAYERS = 100  # decorators around one function
Spans = list[tuple[int, int]]  # the first and last line of each of a name's definitions


def lines_of(thing: Any, name: str, file: str) -> set[int]:
    """Return the lines in a file that a live object was made from, as far as it shows them."""
    first = vars(thing).get("__firstlineno__") if is_a(thing, type) else None
    if isinstance(first, int):  # since Python 3.13
        return {first}
    own = [inner(one) for one in vars(thing).values()] if is_a(thing, type) else layers(thing)
    return _lines(own, name, file) or _lines(code_in(thing), name, file)


def _lines(found: Any, name: str, file: str) -> set[int]:
    functions = [one for one in found if is_a(one, FunctionType)]
    return {
        one.__code__.co_firstlineno
        for one in functions
        if one.__code__.co_name == name or one.__qualname__.partition(".")[0] == name
        if _real(one.__code__.co_filename) == _real(file)
    }


def put_in_place(value: Any, name: str, file: str, spans: Spans) -> str | None:
    """Return a hash of the functions under a name; None where they are just the one that the file defines there."""
    found = list(layers(value))
    if not found:
        return None
    known = [line for line in _functions_in(file).get(name, {}) if any(a <= line <= b for a, b in spans)]
    code = found[0].__code__
    if len(found) == 1 and known == [code.co_firstlineno] and _real(code.co_filename) == _real(file):
        return None
    if not known and name.startswith("_") and not is_own(code.co_filename):  # as dataclasses make them
        return None
    if len(known) > 1 and len(found) == 1 and code.co_firstlineno in known and len(spans) > 1:
        inside = [(a, b) for a, b in spans if a <= code.co_firstlineno <= b]
        return put_in_place(value, name, file, inside)
    return digest("/".join(_written(one, file) for one in found))


def layers(value: Any) -> Iterator[FunctionType]:
    """Yield a function and those that its decorators have put around it, the outermost first."""
    for _ in range(_MOST_LAYERS):
        if is_a(value, FunctionType):
            yield value
        # an attribute by its name only where it is one: an object may answer to any
        value = inner(value) if is_a(value, WRAPPERS) else attributes_of(value).get("__wrapped__")
        if value is None:
            return


def _written(function: FunctionType, file: str) -> str:
    """Return the hash of a function's text, or of its code where it has none.

    Of an installed one its name says what it is, as does that of the only one so called in another file: that file
    counts as a whole.
    """
    code = function.__code__
    known = _functions_in(code.co_filename).get(code.co_name, {}) if is_own(code.co_filename) else {}
    elsewhere = (
        len(known) == 1 and _real(code.co_filename) != _real(file) and "<" not in function.__qualname__
    )
    if elsewhere or (not known and os.path.isfile(code.co_filename)):
        return full_name(function)
    found = known.get(code.co_firstlineno, [])
    return found[0] if len(found) == 1 else code_hash(code)


def full_name(thing: FunctionType | type) -> str:
    """Return the name that an import would find a function or class by: a script's is the same in each process."""
    return f"{name_of(thing.__module__ or '')}:{thing.__qualname__}"


@functools.lru_cache(maxsize=4096)
def _real(file: str) -> str:
    return os.path.realpath(file)


def _functions_in(file: str) -> dict[str, dict[int, list[str]]]:
    try:
        return _index(file, stamp_of(file))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}


@functools.lru_cache(maxsize=256)
def _index(file: str, stamp: tuple[int, ...]) -> dict[str, dict[int, list[str]]]:
    """Return the hash of each function's text in a file, by name and first line."""
    found: dict[str, dict[int, list[str]]] = {}
    for node in ast.walk(ast.parse(Path(file).read_bytes())):
        if isinstance(node, SCOPES):
            name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
            found.setdefault(name, {}).setdefault(first_line(node), []).append(digest(text(node)))
    return found
