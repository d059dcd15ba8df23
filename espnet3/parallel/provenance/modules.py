"""Which modules are the user's own, and where their files are: found without importing anything."""

from __future__ import annotations

import builtins
import functools
import importlib.util
import os
import site
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType
from typing import Any

from espnet3.parallel.checks import own_attribute

_OURS = os.path.dirname(
    os.path.dirname(os.path.realpath(__file__))
)  # this layer: a new version is not another run
_SUFFIXES = (".py", *EXTENSION_SUFFIXES)


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return the folders that packages are installed into, the standard library's included."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple({os.path.realpath(path) + os.sep for path in found})


def is_own(file: str | None) -> bool:
    """Tell whether a file is the user's own: neither installed, nor of the standard library, nor of this layer."""
    return bool(file) and not _is_installed(os.path.abspath(str(file))) and os.path.isfile(str(file))


@functools.lru_cache(maxsize=1 << 15)
def _is_installed(file: str) -> bool:
    """Tell whether a file is installed or ours; kept, as a run asks it of thousands of modules, ten times each."""
    real = os.path.realpath(file)
    parts = real.split(os.sep)
    return (
        "site-packages" in parts
        or "dist-packages" in parts
        or real.startswith((*_installed(), _OURS + os.sep))
    )


def name_of(module: str) -> str:
    """Return a module's name as an import would give it: that of a script is its file's."""
    if module not in ("__main__", "__mp_main__"):
        return module
    live = sys.modules.get(module)
    spec, file = own_attribute(live, "__spec__"), own_attribute(live, "__file__")
    if spec is not None:
        return str(spec.name)
    return os.path.splitext(os.path.basename(file))[0] if file else module


def file_of(module: str) -> str | None:
    """Return the file of a module that is loaded; None where it has none (a terminal, a notebook, `python -`)."""
    file = own_attribute(sys.modules.get(module), "__file__")
    return os.path.abspath(file) if isinstance(file, str) and os.path.isfile(file) else None


def locate(module: str) -> dict[str, str]:
    """Return the files that importing a module loads, by module name: its own and its packages' `__init__`."""
    files: dict[str, str] = {}
    parts = module.split(".")
    folders = _top(parts[0], files)
    for size in range(2, len(parts) + 1):
        folders = _inside(".".join(parts[:size]), folders, files)
        if not folders:
            break
    return files


def _top(name: str, files: dict[str, str]) -> list[str]:
    live = sys.modules.get(name)
    if live is not None:
        return _of_live(name, live, files)
    try:
        spec = importlib.util.find_spec(name) if name else None
    except (
        ImportError,
        ValueError,
        AttributeError,
    ):  # a finder that refuses the name: nothing is known of it
        return []
    if spec is None:
        return []
    if spec.origin and spec.has_location:
        files[name] = os.path.abspath(spec.origin)
    return list(spec.submodule_search_locations or ())


def _of_live(name: str, live: ModuleType, files: dict[str, str]) -> list[str]:
    file = own_attribute(live, "__file__")
    if isinstance(file, str):
        files[name] = os.path.abspath(file)
    return [str(folder) for folder in own_attribute(live, "__path__") or ()]


def _inside(name: str, folders: list[str], files: dict[str, str]) -> list[str]:
    """Look for a submodule in its package's folders; returns its own folders, if it is a package."""
    live = sys.modules.get(name)
    if live is not None:
        return _of_live(name, live, files)
    last = name.rpartition(".")[2]
    for folder in folders:
        package = os.path.join(folder, last)
        for suffix in _SUFFIXES:
            if os.path.isfile(file := os.path.join(package, "__init__" + suffix)):
                files[name] = os.path.abspath(file)
                return [package]
        for suffix in _SUFFIXES:
            if os.path.isfile(package + suffix):
                files[name] = os.path.abspath(package + suffix)
                return []
        if os.path.isdir(package):  # a package without __init__.py
            return [package]
    return []


def own_modules_loaded() -> list[str]:
    """Return the names of the user's own modules that this process has imported."""
    files = {name: own_attribute(module, "__file__") for name, module in list(sys.modules.items())}
    return [name for name, file in files.items() if isinstance(file, str) and is_own(file)]


def module_of(thing: Any) -> str:
    """Return the module that a function or a class names; "" where that is no text, as of some compiled classes."""
    read = type.__getattribute__ if isinstance(thing, type) else object.__getattribute__
    try:
        module = read(thing, "__module__")
    except AttributeError:
        return ""
    return module if isinstance(module, str) else ""


def own_without_file(thing: Any) -> bool:
    """Tell whether something without a module's file is the user's: its module is not a builtin one."""
    module = module_of(thing)
    return (
        thing.__qualname__ not in vars(builtins)
        and module not in sys.builtin_module_names
        and not module.startswith("_cython_")  # of what it compiles, without a file or a spec
        and own_attribute(sys.modules.get(module), "__spec__") is None
    )
