"""Which options a row accepts: parameter names of installed functions, read from their source without importing it.

A configuration is checked in the driver before anything starts, and often by a process that will
never start a cluster: importing `distributed` for its signatures would cost half a second there,
parsing the one module that matters costs one to twenty milliseconds.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from espnet3.parallel.backends.backend import Backend

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def installed(package: str) -> bool:
    """Return whether a top-level package can be found; it is not imported."""
    # find_spec raises for a module that is loaded and has no __spec__ (one made by hand).
    return sys.modules.get(package) is not None or find_spec(package) is not None


def parameters(reference: str) -> tuple[str, ...] | None:
    """Return the parameter names of a function or method, without `self`, `*args` and `**kwargs`."""
    module, _, function = reference.partition(":")
    source = _source_of(module)
    return None if source is None else _signatures_in(source).get(function)


def _source_of(module: str) -> Path | None:
    """Return the source file of a module, which need not be imported."""
    package, *inner = module.split(".")
    loaded = sys.modules.get(package)
    # For a name with dots find_spec would import the parent: ask for the top level, walk the rest.
    spec = find_spec(package) if loaded is None else loaded.__spec__
    if spec is None:
        return None
    if spec.submodule_search_locations is None:
        origin = Path(spec.origin or "")
        return origin if not inner and origin.suffix == ".py" else None
    for folder in spec.submodule_search_locations:
        path = Path(folder, *inner)
        candidates = [path / "__init__.py", *([path.with_suffix(".py")] if inner else [])]
        for candidate in candidates:
            if candidate.is_file():
                return candidate
    return None


# Keyed by file, so that a package installed while this process runs is seen. Only the names are
# kept: the syntax tree of distributed.worker alone takes several megabytes.
@cache
def _signatures_in(source: Path) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for node in ast.parse(source.read_bytes(), filename=str(source)).body:
        if isinstance(node, _Function):
            found[node.name] = _names(node)
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, _Function):
                    found[f"{node.name}.{method.name}"] = _names(method)[1:]
    return found


def _names(function: _Function) -> tuple[str, ...]:
    args = function.args
    return tuple(arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs))


def has_option(row: Backend, name: str) -> bool | None:
    """Return whether a row accepts an option.

    The signatures are read outermost first and only as far as needed: `distributed.worker`, the
    largest file by far, is parsed for a name that no other signature has.
    """
    if name in row.controlled:
        return False
    readable = True
    for reference in row.signatures:
        names = parameters(reference)
        if names is None:
            readable = False
        elif name in names:
            return True
    return False if readable else None


def allowed_options(row: Backend) -> tuple[str, ...] | None:
    """Return all options a row accepts, outermost signature first, each once."""
    found: dict[str, None] = {}
    for reference in row.signatures:
        names = parameters(reference)
        if names is None:
            return None
        found.update(dict.fromkeys(names))
    return tuple(name for name in found if name not in row.controlled)
