"""Are runner and provider importable here, by a job's Python, on a worker, and which folders does a worker see?"""

from __future__ import annotations

import json
import os
import platform
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean
from espnet3.parallel.provenance.shown import versions
from espnet3.parallel.surroundings import search_path

_PACKAGES = ("espnet3-parallel", "dask", "distributed", "cloudpickle")
_ANSWER = ".answer"  # what a worker adds to the name of a file that it looks for
_SECONDS = 600  # importing a user's code from a busy network disk may take minutes


@dataclass(frozen=True, slots=True)
class Facts:
    """A process, and the classes that it can import."""

    python: str  # its version
    versions: dict[str, str]  # of the packages that must fit together
    cwd: str
    files: dict[str, str] = field(default_factory=dict)  # of each class, by "runner" and "provider"
    wrong: list[str] = field(default_factory=list)  # why the other classes cannot be used


def look(wanted: dict[str, str]) -> Facts:
    """Import the classes in this process, and describe the process."""
    facts = Facts(platform.python_version(), versions(_PACKAGES), os.getcwd())
    for what, reference in wanted.items():
        if wrong := _wrong(what, reference):
            facts.wrong.append(f"the {what} {reference}: {wrong}")
        else:
            facts.files[what] = str(sys.modules[reference.partition(":")[0]].__file__)
    return facts


def look_as_job(python: str, wanted: dict[str, str]) -> Facts:
    """Run `look` with another Python of this machine, in a new process; the error is the reason why that fails."""
    own = (sys.prefix, sys.base_prefix)
    # a job gets the caller's folder and those entries of sys.path that are not the interpreter's own
    path = os.pathsep.join(entry for entry in search_path() if not entry.startswith(own))
    command = [*shlex.split(python), "-m", "espnet3_parallel.importable", json.dumps(wanted)]
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=env)
    if done.returncode != 0 or not done.stdout:
        raise ConfigError(f"{python} cannot import espnet3.parallel:\n{done.stderr.strip()[-1000:]}")
    return Facts(**json.loads(done.stdout.splitlines()[-1]))


def differences(here: Facts, there: Facts) -> list[str]:
    """Return the differences that keep two processes from exchanging pickled objects."""
    found = []
    if here.python.rsplit(".", 1)[0] != there.python.rsplit(".", 1)[0]:
        found.append(f"Python is {there.python} there and {here.python} here: use the same minor version")
    for name, ours in here.versions.items():
        theirs = there.versions.get(name, "not installed")
        if theirs != ours:
            found.append(f"{name} is {theirs} there and {ours} here: install {name}=={ours}")
    for what, ours in here.files.items():
        theirs = there.files.get(what, ours)
        if os.path.realpath(theirs) != os.path.realpath(ours):
            found.append(f"the {what} is imported from {theirs} there and {ours} here: is it another copy?")
    return found


def _wrong(what: str, reference: str) -> str:
    module, colon, name = reference.partition(":")
    if not (module and colon and name):
        return f"write it as module:Class, such as my_recipe.decode:{'Runner' if what == 'runner' else 'Provider'}"
    try:
        loaded: Any = import_module(module)
    except ModuleNotFoundError as error:
        if f"{module}.".startswith(f"{error.name}."):
            return f"there is no module {error.name}; call this where you call your script, or set PYTHONPATH"
        return f"{module} cannot be imported: {error}"
    except (Exception, SystemExit) as error:  # argparse in a user's module ends the process
        return f"{module} cannot be imported: {type(error).__name__}: {error}"
    found = getattr(loaded, name, None)
    base: type = BaseRunner if what == "runner" else EnvironmentProvider
    if found is None:
        return f"{module} has no {name}.{did_you_mean(name, vars(loaded))}"
    if not (isinstance(found, type) and issubclass(found, base)):
        return f"it is not a subclass of {base.__name__}"
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        return f"it does not define {', '.join(missing)}"
    return ""


def meant(whole: Any, wanted: dict[str, str], otherwise: str = "") -> dict[str, str]:
    """Return runner and provider as named on the command line, or else as `_target_` of a configuration."""
    names = dict(wanted)
    for what in ("runner", "provider"):
        block = whole.get(what) if whole is not None else None
        if isinstance(block, Mapping) and "_target_" in block:
            names.setdefault(what, ":".join(str(block["_target_"]).rsplit(".", 1)))
    if missing := [f"--{what} MODULE:CLASS" for what in ("runner", "provider") if what not in names]:
        raise ConfigError(f"which classes are meant? Give {' and '.join(missing)}{otherwise}")
    return names


def loaded(whole: Any, wanted: dict[str, str]) -> tuple[Any, Any]:
    """Import the runner's class, and make its provider with a configuration."""
    see_current_folder()
    if wrong := look(wanted).wrong:
        raise ConfigError("; ".join(wrong))
    runner, provider = (resolve_name(wanted[what]) for what in ("runner", "provider"))
    try:
        return runner, provider() if whole is None else provider(whole)
    except Exception as error:  # the user's code
        raise ConfigError(f"{wanted['provider']} cannot be made: {type(error).__name__}: {error}") from error


def see_current_folder() -> None:
    """Import from the current folder too, as a user's script would: sys.path begins with this command's folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


@contextmanager
def marked(paths: Sequence[str]) -> Iterator[list[Path]]:
    """Keep a file in each folder while the context lasts, which a worker looks for, and answers with one of its own."""
    marks = [Path(path, f".espnet3-doctor-{secrets.token_hex(8)}") for path in paths]
    try:
        for mark in marks:
            mark.write_text("")
        yield marks
    finally:
        for file in [*marks, *(mark.with_suffix(_ANSWER) for mark in marks)]:
            with suppress(OSError):  # never written, or in a folder that has gone
                file.unlink()


def reply(mark: Path) -> str:
    """Read a mark on a worker and write the answer; return the problem, or ""."""
    problem = "it cannot be read there"
    try:
        mark.read_text()
        problem = "it can be read there, but not written to"
        mark.with_suffix(_ANSWER).write_text("")
    except FileNotFoundError:
        another = "the folder of that name there is another one: it lacks a file that was written here"
        return another if mark.parent.is_dir() else "there is no such folder there"
    except OSError as error:
        return f"{problem}: {error.strerror}"
    return ""


def arrived(mark: Path) -> str:
    """Return the problem of a worker's answer, or ""."""
    try:
        mark.with_suffix(_ANSWER).read_text()
    except OSError as error:
        return f"what a worker writes there does not arrive here: {error.strerror}"
    return ""


if __name__ == "__main__":
    print(json.dumps(asdict(look(json.loads(sys.argv[1])))))
