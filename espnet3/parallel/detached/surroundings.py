"""The surroundings of a job: working directory, sys.path, interpreter, environment variables."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from espnet3.parallel.backends import Kind, row
from espnet3.parallel.backends.ssh_hosts import ssh_hosts, worker_hosts
from espnet3.parallel.checks import search_path, working_folder
from espnet3.parallel.errors import ConfigError

# Recorded where they are set: they decide speed, or how text and times are read, and hold no secrets.
VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("TZ", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8", "PYTHONIOENCODING"),
)
_PACKAGE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Recorded where a run is submitted, restored in each job before any of the user's code is imported.

    Attributes:
        cwd: Working directory.
        sys_path: Where modules are looked for, in order.
        python: The interpreter.
        variables: Environment variables with their values.
    """

    cwd: str
    sys_path: list[str]
    python: str
    variables: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dict."""
        return asdict(self)

    def restore(self) -> None:
        """Make this process's surroundings these."""
        try:
            os.chdir(self.cwd)
        except OSError as error:
            raise ConfigError(
                f"the working directory {self.cwd!r} is not there for this job ({error.strerror}): "
                "submit from a folder that the jobs' hosts share"
            ) from error
        os.environ.update(self.variables)
        own = str(_PACKAGE / "parallel")  # where this file was started by its path: it holds no user's module
        rest = [entry for entry in sys.path if entry not in self.sys_path and os.path.abspath(entry) != own]
        sys.path[:] = [*self.sys_path, *(entry for entry in rest if entry)]


def record(names: Sequence[str] = (), python: str | None = None) -> Surroundings:
    """Describe this process's surroundings."""
    here = working_folder()
    if here is None:
        raise ConfigError(
            "the working directory has been deleted, and jobs start in it: change to one that exists (os.chdir, or cd)"
        )
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise ConfigError(
            f"detached.variables names {', '.join(missing)}, which is not set here: set it, or leave it out"
        )
    wanted = [name for name in VARIABLES if name in os.environ]
    return Surroundings(
        cwd=here,
        sys_path=search_path(),
        python=in_folder(python or sys.executable, here),
        variables={name: os.environ[name] for name in [*wanted, *names]},
    )


def interpreter(env: str, options: Mapping[str, Any], cwd: str) -> str:
    """Return the Python that jobs run: an option of the backend, or this one; never one that a run folder says.

    Over SSH each host may have another one; then it is that of the first host with workers. A relative path is one from
    the submitter's folder: jobs start in another one.
    """
    if row(env).kind is Kind.SSH:
        python = worker_hosts(ssh_hosts(options))[0].python
    elif row(env).kind is Kind.KUBERNETES:  # this one's path means nothing in an image
        return str(options.get("python") or "python")
    else:
        python = options.get("python")
    return in_folder(str(python or sys.executable), cwd)


def in_folder(python: str, cwd: str) -> str:
    """Return an interpreter's path from a folder; a name that is looked for in PATH stays one."""
    return os.path.join(cwd, python) if os.sep in python else python


def import_path() -> str | None:
    """Return the folder that a job's PYTHONPATH must hold to find this package; None where it is installed."""
    root = str(_PACKAGE.parent)
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    return None if root in map(os.path.abspath, installed) else root


def job_environment() -> dict[str, str]:
    """Return the environment of a job's process that this process starts."""
    environment = dict(os.environ)
    root = import_path()
    if root is not None:
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root if not before else root + os.pathsep + before
    return environment
