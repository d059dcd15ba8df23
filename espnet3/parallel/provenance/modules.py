"""The user's own modules, their names and their files, found without importing them."""

from __future__ import annotations

import functools
import glob
import os
import site
import sys
import sysconfig
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import find_spec
from itertools import accumulate
from types import CodeType, FunctionType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a, own_attribute

MAIN = ("__main__", "__mp_main__")
_OURS = os.path.dirname(os.path.dirname(__file__))  # a new version of us is not another run
_FOLDERS = {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()}
_NOT_OWN = tuple(os.path.realpath(path) + os.sep for path in {*_FOLDERS, site.getusersitepackages(), _OURS})


@functools.lru_cache(maxsize=1 << 15)
def real(file: str) -> str:
    """Return the path of a file without symbolic links; the folders of many files are the same."""
    folder, name = os.path.split(os.path.abspath(file))
    path = os.path.join(real(folder), name) if name else folder
    return os.path.realpath(path) if os.path.islink(path) else path


@functools.lru_cache(maxsize=1 << 15)
def is_own(file: str) -> bool:
    """Tell whether a file is the user's own: neither installed, nor of the standard library, nor of this layer."""
    path = real(file)
    above, inside, _ = path.rpartition(f"{os.sep}site-packages{os.sep}")
    return not path.startswith(_NOT_OWN) and not (inside and _has_packages(above + inside))


_has_packages = functools.cache(lambda folder: bool(glob.glob("*.dist-info", root_dir=folder)))


def is_users(thing: Any) -> bool:
    """Tell whether a function, class or module is the user's own."""
    if is_a(thing, FunctionType) and not thing.__code__.co_filename.startswith("<"):
        return is_own(thing.__code__.co_filename)
    module = module_of(thing)
    if module in MAIN:  # a profiler that runs a script is not what is in it
        return True
    live = thing if is_a(thing, ModuleType) else sys.modules.get(module)
    if module == "types" and is_a(thing, type) and own_attribute(live, thing.__qualname__) is not thing:
        return True  # of `dataclasses.make_dataclass` before Python 3.12
    if (
        live is None
        and is_a(thing, type)
        and not any(is_a(one, FunctionType) for one in vars(thing).values())
    ):
        return False  # of a module in C that says another name
    file = own_attribute(live, "__file__")
    if isinstance(file, str) and not file.startswith("<"):
        return is_own(file)
    has_no_file = module in sys.builtin_module_names or module.startswith("_cython_")  # and no spec
    return not (has_no_file or own_attribute(live, "__spec__"))


def own_modules() -> list[tuple[str, str, ModuleType]]:
    """Return the modules of the user's own that are loaded, with their names and files."""
    loaded = [(name, file_of(name), live) for name, live in list(sys.modules.items())]
    return [(name, at, live) for name, at, live in loaded if at and is_a(live, ModuleType) and is_own(at)]


def module_of(thing: Any) -> str:
    """Return a module's name, or that which a function or class names; "" where it is no text (compiled classes)."""
    read = type.__getattribute__ if is_a(thing, type) else object.__getattribute__
    try:
        module = read(thing, "__name__" if is_a(thing, ModuleType) else "__module__")
    except AttributeError:
        return ""
    return module if isinstance(module, str) else ""


def file_of(module: str) -> str | None:
    """Return the file of a module that is loaded; None where it has none (a terminal, a notebook, `python -`)."""
    file = own_attribute(sys.modules.get(module), "__file__")
    if module == MAIN[0] and isinstance(file, str) and not is_own(file):
        file = sys.argv[0]  # of the script that it runs
    return os.path.abspath(file) if isinstance(file, str) and not file.startswith("<") else None


def name_of(module: str, file: str | None = None) -> str:
    """Return the name of a module, the same however the program was started: by its file's place in packages.

    These have an `__init__.py`, or else the module is imported by a name that says them.
    """
    file = file or file_of(module)
    if file is None or not os.path.isfile(file):
        return module
    folder, last = os.path.split(real(file))
    path = folder if is_init(last) else os.path.join(folder, last.partition(".")[0])
    by_file = _name_of_place(path)
    is_longer = module not in MAIN and len(module) > len(by_file)
    return module if is_longer and path.endswith(os.sep + module.replace(".", os.sep)) else by_file


def is_init(file: str) -> bool:
    """Tell whether a file is a package's `__init__`."""
    return os.path.basename(file).startswith("__init__.")


@functools.lru_cache(maxsize=1 << 12)
def _name_of_place(path: str) -> str:
    folder, name = os.path.split(path)
    is_packaged = os.path.isfile(os.path.join(folder, "__init__.py"))
    return f"{_name_of_place(folder)}.{name}" if is_packaged else name


def compiled(module: str, file: str) -> CodeType | None:
    """Return a module's code as an import would find it now; None for a compiled extension."""
    try:
        if not os.path.isfile(file):
            loader: Any = getattr(find_spec(module), "loader", None)
            return loader.get_code(module) if hasattr(loader, "get_code") else None
        return None if (text := text_of(file)) is None else _code(module, file, text)
    except (OSError, ImportError, ValueError, AttributeError, SyntaxError):  # an import will say it
        return None


def text_of(file: str) -> bytes | None:
    """Return the text of a module's file; None of a compiled extension, or where there is no file."""
    if not (file.endswith(".py") and os.path.isfile(file)):
        return None
    with open(file, "rb") as stream:
        return stream.read()


@functools.lru_cache(maxsize=1 << 12)
def _code(module: str, file: str, text: bytes) -> CodeType | None:
    loader: Any = SourceFileLoader(module, file)
    loader.set_data = lambda *_, **__: None  # it writes no compiled file
    return loader.get_code(module)  # type: ignore[no-any-return]  # of the loader, to which an attribute is set


@functools.cache
def locate(module: str) -> dict[str, str]:
    """Return the files that an import of a module loads, by module name: its own and its packages' `__init__`.

    Of an installed package, the `__init__` alone.
    """
    files: dict[str, str] = {}
    for name in accumulate(module.split("."), "{}.{}".format):
        file, folders = _place(name)
        if isinstance(file, str):
            files[name] = os.path.abspath(file)
        if not folders or (name in files and not is_own(files[name])):
            break
    return files


@functools.cache
def _place(name: str) -> tuple[Any, Any]:
    # a module's file, and the folders of a package
    if (live := sys.modules.get(name)) is not None:
        return own_attribute(live, "__file__"), own_attribute(live, "__path__")
    if not name:
        return None, None
    above, _, last = name.rpartition(".")
    try:  # in a package by its last name alone: that need not be loaded
        spec = PathFinder.find_spec(last, _place(above)[1]) if above else find_spec(name)
    except (ImportError, ValueError, AttributeError):  # of a finder that refuses the name
        spec = None
    origin = spec.origin if spec is not None and spec.has_location else None
    return origin, None if spec is None else spec.submodule_search_locations


def look_again() -> None:
    """Forget where modules were: the program may have changed that."""
    for known in (locate, _place, names_in):
        known.cache_clear()


@functools.cache
def names_in(folder: str) -> list[str]:
    """Return what may be the names of modules in a folder; none of one that cannot be read, or of a notebook's cell."""
    try:
        names = {one.partition(".")[0] for one in os.listdir(folder or ".")}
    except OSError:
        return []
    return sorted(filter(str.isidentifier, names))


def script() -> str:
    """Return the real path of the script that this process runs, or ""."""
    return real(file_of(MAIN[0]) or "")


def absolute(module: str, level: int, package: str) -> str:
    """Return the absolute name of an import of `module` with `level` dots before it, in a package."""
    above = package.split(".") if level else []
    return ".".join([*above[: len(above) - level + 1], *([module] if module else [])])
