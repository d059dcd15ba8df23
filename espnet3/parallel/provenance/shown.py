"""The part of `run.json` that people read: the config as plain data without secrets, and the origin of the run.

Runs are compared by content (`content`) and code (`reach`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import is_dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from espnet3.parallel.checks import is_a, own_attribute
from espnet3.parallel.messages import brief, masked
from espnet3.parallel.provenance.content import as_containers, attributes_of
from espnet3.parallel.provenance.modules import module_of

_ENV = re.compile(r"oc\.env:\s*([^,}\s]+)")
_LEAST_SECRET = 4  # characters: a shorter value of a variable is not looked for in other values
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LONGEST = 10_000  # characters of an object's text
_PACKAGES = ("espnet3-parallel", "dask", "distributed", "numpy", "omegaconf", "torch")
_GIT_SECONDS = 5.0  # a checkout on a busy network disk must not hold up the run


def shown_config(config: Any) -> Any:
    """Return a config's plain form without secrets.

    Masked are values under a name such as `password` or `api_key`, passwords in addresses, and what environment
    variables hold that a config names (`oc.env`): such a config is shown as it is written.
    """
    written = _plain(config, resolve=False)
    names = _ENV.findall(json.dumps(written))
    secrets = [one for one in map(os.environ.get, names) if one and len(one) >= _LEAST_SECRET]
    return masked(_plain(config, not names, secrets))


def _plain(value: Any, resolve: bool = True, secrets: Iterable[str] = (), outer: tuple[int, ...] = ()) -> Any:
    as_it_is = {bool, int, type(None)} if secrets else {bool, int, type(None), str}
    if type(value) in as_it_is or (type(value) is float and value - value == 0):
        return value
    # a number's text: nan is not JSON, and a numpy number or an IntEnum is not a plain one
    text = str(value) if is_a(value, (int, float, PurePath)) else value
    if is_a(text, str):
        return "***" if any(one in text for one in secrets) else text
    if id(value) in outer:
        return "(itself)"
    plain = partial(_plain, resolve=resolve, secrets=secrets, outer=(*outer, id(value)))
    value, kind = as_containers(value, resolve), type(value)
    if is_dataclass(kind):
        value = {"__class__": f"{kind.__module__}.{kind.__qualname__}", **attributes_of(value)}
    if is_a(value, Mapping):
        return {str(key): one if type(one) in as_it_is else plain(one) for key, one in value.items()}
    if is_a(value, (list, tuple)):
        return [one if type(one) in as_it_is else plain(one) for one in value]
    if is_a(value, Set):
        return sorted((plain(item) for item in value), key=repr)
    if is_a(value, (bytes, bytearray)):
        return f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()}"
    if is_a(value, (type, FunctionType, BuiltinFunctionType, MethodType)):
        return f"{module_of(value)}.{value.__qualname__}"
    return plain(_ADDRESS.sub("", brief(value, _LONGEST)))


def differences(old: Any, new: Any, name: str = "config") -> list[str]:
    """Return a line "name.key: old -> new" for each place where two plain values differ."""
    was, now = dict(_flat(old, name)), dict(_flat(new, name))
    both = ((at, was.get(at, "(new)"), now.get(at, "(gone)")) for at in {**was, **now})
    return [f"{at}: {_short(one)} -> {_short(other)}" for at, one, other in both if one != other]


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:38]}...{text[-39:]}"


def _flat(value: Any, place: str) -> Iterator[tuple[str, str]]:
    parts = [(f"{place}.{key}", one) for key, one in value.items()] if is_a(value, dict) else []
    parts += [(f"{place}[{at}]", one) for at, one in enumerate(value)] if is_a(value, list) else []
    for where, one in parts:
        yield from _flat(one, where)
    if not parts and value not in ({}, []):
        yield place, json.dumps(value, ensure_ascii=False)


def origin(code: str | None = None) -> dict[str, Any]:
    """Return the facts about this process that belong to a run; `code` is a file of its own."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": masked(sys.argv),
        "cwd": os.getcwd(),
        "python": platform.python_version(),
        "versions": versions(_PACKAGES),
        "git": _git_state(os.path.dirname(code) if code else None),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed, by distribution or import name."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            # its distribution has another name: some modules warn when this is read, so only then
            if isinstance(known := own_attribute(sys.modules.get(package), "__version__"), str):
                found[package] = known
    return found


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed packages by import name, and Python's; a name that has none is left out."""
    known = sorted(name for name in names if name and name not in sys.stdlib_module_names)
    return {"python": platform.python_version(), **versions(known)}


def _git_state(folder: str | None) -> dict[str, Any] | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    how: dict[str, Any] = {"cwd": folder, "timeout": _GIT_SECONDS, "stdin": subprocess.DEVNULL, "text": True}
    how["env"] = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # read only: never take the index's lock
    try:
        done = subprocess.run(command, capture_output=True, check=False, **how)
    except (OSError, subprocess.TimeoutExpired):
        return None  # no git, or one that does not answer: the run does not depend on it
    commit, _, dirty = done.stdout.strip().partition("-")
    return {"commit": commit, "dirty": bool(dirty)} if done.returncode == 0 else None
