"""Whether this process has imported the user's modules as their files are now: what it computes is what it imported."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from espnet3.parallel.provenance import LOADED
from espnet3.parallel.provenance.bytecode import code_hash
from espnet3.parallel.provenance.held import inner
from espnet3.parallel.provenance.modules import is_own
from espnet3.parallel.provenance.text.source import Source

_EARLIER = 3600.0  # seconds before, in which a module that is loaded may have been imported
_FIXED = (bool, int, float, complex, str, bytes, type(None))


def edited_since_import(files: Iterable[str]) -> list[str]:
    """Return what this process has imported otherwise than it stands in files now: lines that name file and function.

    Functions and methods count by their compiled code, and constants of a module by their value where the file was
    written since the program started.

    Args:
        files: The user's files that a result depends on.
    """
    wanted = {file: since for file in files if (since := _written(file)) > LOADED - _EARLIER}
    if not wanted:
        return []
    texts: dict[str, dict[str, set[str]]] = {}
    lines = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not is_own(file):
            continue
        for name, function in _functions(module):
            source = os.path.abspath(function.__code__.co_filename)
            if source not in wanted or not _as_written(function):
                continue
            if source not in texts:
                texts[source] = _compiled(source)
            known = texts[source].get(function.__code__.co_name)
            if known and code_hash(function.__code__) not in known:
                lines.add(f"{source}: {name}")
        where = os.path.abspath(file)
        if wanted.get(where, 0.0) > LOADED:
            lines |= {f"{where}: {name}" for name in _other_constants(module, where)}
    return sorted(lines)


def _written(file: str) -> float:
    try:
        return os.stat(file).st_mtime
    except OSError:
        return 0.0


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions and methods that a module has, those that it took from another one too."""
    for value in list(vars(module).values()):
        found = [value, *vars(value).values()] if isinstance(value, type) else [value]
        for one in found:
            function = inner(one)
            if isinstance(function, FunctionType):
                yield function.__qualname__, function


def _as_written(function: FunctionType) -> bool:
    """Whether a function's module was compiled from its text alone: pytest, for one, rewrites tests."""
    module = sys.modules.get(function.__module__)
    return type(getattr(module, "__loader__", None)) is SourceFileLoader


def _compiled(file: str) -> dict[str, set[str]]:
    """Return the hashes of all functions in a file as it is now, by name."""
    found: dict[str, set[str]] = {}
    try:
        left = [compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)]
    except (OSError, SyntaxError, ValueError):  # no Python now: whoever imports it next will be told
        return {}
    while left:
        for one in left.pop().co_consts:
            if isinstance(one, CodeType):
                found.setdefault(one.co_name, set()).add(code_hash(one))
                left.append(one)
    return found


def _other_constants(module: ModuleType, file: str) -> Iterator[str]:
    """Yield the names of constants that a module has with another value than its file."""
    try:
        body = ast.parse(Path(file).read_bytes()).body
        statements = Source.read(file).statements
    except (OSError, SyntaxError, ValueError):
        return
    changed = frozenset().union(*(each.mutates for each in statements))
    bound = [name for each in statements for name in each.binds]
    for node in body:
        if not (
            isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        ):
            continue
        name, value = node.targets[0].id, _literal(node.value)
        if value is ... or bound.count(name) > 1 or name in changed:
            continue
        live = getattr(module, name, None)
        if type(live) in _FIXED and (type(live), repr(live)) != (type(value), repr(value)):
            yield name


def _literal(node: ast.expr) -> Any:
    """Return a constant's value; an ellipsis where it is none."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ...
    return value if isinstance(value, _FIXED) else ...
