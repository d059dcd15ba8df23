"""The cluster class of a row, imported when it is used."""

from __future__ import annotations

import signal
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from espnet3.parallel.backends.backend import Backend
from espnet3.parallel.backends.signatures import installed
from espnet3.parallel.errors import MissingPackageError


def load_module(name: str) -> ModuleType:
    """Import a module of a backend's package, and keep the signal handlers as they are.

    dask-jobqueue 0.9 replaces the one of SIGINT when it is imported: Ctrl-C would be a silent SystemExit.
    """
    before = signal.getsignal(signal.SIGINT)
    module = import_module(name)
    if signal.getsignal(signal.SIGINT) is not before:  # so this is the main thread
        signal.signal(signal.SIGINT, before)
    return module


def require_package(row: Backend) -> None:
    """Raise unless the package of a row is installed.

    Raises:
        MissingPackageError: It is not; the message holds the `pip install` line, `name` is the package's import name.
    """
    if not installed(row.package):
        raise _missing(row, f"env {row.name!r} needs {row.package}, which is not installed.")


def load_cluster_class(row: Backend) -> Callable[..., Any]:
    """Import and return what makes the cluster of a row: a class, or for ssh a function.

    Raises:
        MissingPackageError: The row's package is not installed, or is and cannot be imported. The
            message holds the `pip install` line; `name` is the import name of the package.
    """
    require_package(row)
    module, _, name = row.cluster.partition(":")
    try:
        loaded: Callable[..., Any] = getattr(load_module(module), name)
    except ImportError as error:
        # dask-cuda without its [cu12] or [cu13] half is such a case.
        raise _missing(row, f"env {row.name!r} needs {module}, which cannot be imported: {error}.") from error
    except AttributeError as error:
        raise _missing(row, f"env {row.name!r} needs {name}, which {module} does not have.") from error
    return loaded


def _missing(row: Backend, reason: str) -> MissingPackageError:
    wanted = row.package if row.extra is None else f"'espnet3-parallel[{row.extra}]'"
    return MissingPackageError(
        f"{reason} Please install {row.package}: pip install {wanted}", name=row.package
    )
