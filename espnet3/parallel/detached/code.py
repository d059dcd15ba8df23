"""Classes by import path and file: how a job finds the runner and the provider of a user's script."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from espnet3.parallel.checks import own_attribute
from espnet3.parallel.engine.inside import SCRIPTS, RunReachedError
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.provenance import FUNCTION

# The name multiprocessing gives a parent's main script in a child: its `__main__` guard is false then.
SCRIPT = "__mp_main__"
_FIX = "put it at the top level of a .py file and import it from there"


@dataclass(frozen=True, slots=True)
class ClassRef:
    """A class as another process can find it."""

    module: str  # import path of its module; of a script, the file's stem
    name: str  # its qualified name in there
    file: str  # the module's file
    script: bool = False  # the file is a script that was run as `__main__`, and is loaded by its path

    @property
    def shown(self) -> str:
        """What messages call it."""
        return f"{self.module}.{self.name}"

    @property
    def root(self) -> Path:
        """The folder that its module is imported from."""
        file = Path(self.file).resolve()
        depth = 0 if self.script else self.module.count(".") + (file.name == "__init__.py")
        return file.parents[depth]


def refer(cls: type, what: str) -> ClassRef:
    """Name a class for another process."""
    begin = f"the {what} {cls.__qualname__} cannot be found by a detached job: "
    if "<locals>" in cls.__qualname__:
        raise ConfigError(f"{begin}it is defined inside a function; {_FIX}")
    module = sys.modules.get(cls.__module__)
    file = own_attribute(module, "__file__")
    if module is None or not isinstance(file, str) or not os.path.isfile(file):
        where = "a terminal, a notebook or on standard input" if cls.__module__ == "__main__" else "no file"
        raise ConfigError(f"{begin}it is defined in {where}, which no job can read; {_FIX}")
    file = os.path.abspath(file)
    if cls.__module__ in ("__main__", SCRIPT):
        spec = own_attribute(module, "__spec__")
        if spec is None:
            return ClassRef(Path(file).stem, cls.__qualname__, file, script=True)
        return ClassRef(spec.name, cls.__qualname__, file)  # started with `python -m`: importable by name
    if not any(_find(module, cls.__qualname__) is one for one in (cls, getattr(cls, FUNCTION, cls))):
        raise ConfigError(
            f"{begin}{cls.__module__} has another object, or none, under this name; {_FIX} under its own name"
        )
    return ClassRef(cls.__module__, cls.__qualname__, file)


def _find(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = own_attribute(found, part)
    return found


def load(ref: ClassRef) -> type:
    """Return the class that was named, importing its module or running its script."""
    module = _load_script(ref) if ref.script else _import(ref)
    found = _find(module, ref.name)
    if isinstance(found, FunctionType):
        return _standing_for(found)
    if not isinstance(found, type):
        end = ""
        if ref.script:
            end = (
                "; where the script has no `if __name__ == '__main__':` guard, a job runs it only up to the "
                "first run or submission in it: put these under a guard"
            )
        raise ConfigError(f"{ref.file} does not define the class {ref.name}{end}")
    return found


def _standing_for(function: FunctionType) -> type:
    """Return a class that a job can use as a function's runner, or as its provider."""
    body = {"forward": staticmethod(function), "build_env_local": staticmethod(function)}
    made = type(function.__name__, (), {**body, FUNCTION: staticmethod(function)})
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made


def _import(ref: ClassRef) -> ModuleType:
    try:
        module = importlib.import_module(ref.module)
    except ModuleNotFoundError as error:
        own = f"{ref.module}.".startswith(f"{error.name}.")
        if not own or not os.path.isfile(ref.file):
            raise _cannot(ref, error) from error
        return _execute(ref, ref.module)  # loaded by its path in the first place
    except Exception as error:  # a user's module may raise anything while it is imported
        raise _cannot(ref, error) from error
    file = own_attribute(module, "__file__")
    if not isinstance(file, str) or not _same_file(file, ref.file):
        raise ConfigError(
            f"a detached job that imports {ref.module} gets {file}, and the one meant is {ref.file}: "
            "rename one of them, or change sys.path"
        )
    return module


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.abspath(one) == os.path.abspath(other)


def _load_script(ref: ClassRef) -> ModuleType:
    known = sys.modules.get(SCRIPT)
    if known is not None and _same_file(str(known.__file__), ref.file):
        return known
    if not os.path.isfile(ref.file):
        raise ConfigError(
            f"the script {ref.file} is not there for this job: is its disk shared with this host?"
        )
    argv, sys.argv = sys.argv, [ref.file]
    SCRIPTS.add(SCRIPT)
    try:
        return _execute(ref, SCRIPT)
    finally:
        SCRIPTS.remove(SCRIPT)
        sys.argv = argv


def _execute(ref: ClassRef, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ref.file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{ref.file} cannot be loaded as a Python file: give it the ending .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except RunReachedError:
        pass  # a script without a guard: it has defined what it runs
    except BaseException as error:  # SystemExit too: argparse of a script without a guard ends so
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _cannot(ref, error) from error
    return module


def _cannot(ref: ClassRef, error: BaseException) -> ConfigError:
    what = f"run {ref.file}" if ref.script else f"import {ref.module} ({ref.file})"
    guard = (
        "; what is not a definition in it belongs under `if __name__ == '__main__':`" if ref.script else ""
    )
    return ConfigError(f"a detached job cannot {what}: {type(error).__name__}: {error}{guard}")
