"""Where a run was started: host, versions, git commit, command line. For people; never compared."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from espnet3.parallel.checks import own_attribute, working_folder
from espnet3.parallel.messages import masked

_PACKAGES = ("espnet3-parallel", "dask", "distributed", "numpy", "omegaconf", "torch")
_GIT_SECONDS = 5.0  # a checkout on a busy network disk must not hold up the run
_OPTION = re.compile(r"^--?([\w-]+)$")


def origin(code: str | None = None) -> dict[str, Any]:
    """Return the facts about this process that belong to a run."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": shown_command(sys.argv),
        "cwd": working_folder(),
        "python": platform.python_version(),
        "versions": versions(_PACKAGES),
        "git": git_state(Path(code).parent if code else Path.cwd()),
    }


def shown_command(command: list[str]) -> list[str]:
    """Return a command line without secrets: `--token x` as well as `--token=x`."""
    shown, name = [], ""
    for word in command:
        shown.append(str(masked(word, name)))
        option = _OPTION.match(word)
        name = option[1] if option else ""
    return shown


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed packages by import name, and Python's; a name that has none is left out."""
    found = {"python": platform.python_version()}
    for name in sorted(names):
        if not name or name in sys.stdlib_module_names:  # a module may be called ".work"
            continue
        if installed := versions([name]):
            found |= installed
        # its distribution has another name: some modules warn when this is read, so only then
        elif isinstance(known := own_attribute(sys.modules.get(name), "__version__"), str):
            found[name] = known
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit and dirty flag of the checkout a folder is in; None outside of one, or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # read only: never take the index's lock
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # no git, or one that does not answer: the run does not depend on it
    return done.stdout.strip() if done.returncode == 0 else None
