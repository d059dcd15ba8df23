"""The cluster class of a row, imported when it is used."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

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


def pip_line(extra: str) -> str:
    """Return the command that installs an extra of this package, from where the package itself came.

    pip notes that in `direct_url.json` (PEP 610), and nothing where it was an index.
    """
    # takes longer to import than the rest of this package
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        noted = distribution(_PACKAGE).read_text("direct_url.json")
    except PackageNotFoundError:  # a checkout on sys.path
        folder = Path(__file__).resolve().parents[3]
        return _from_folder(str(folder), extra, editable=True)
    if noted is None:
        return f"pip install '{_PACKAGE}[{extra}]'"
    came = json.loads(noted)
    if "dir_info" in came:
        folder_name = unquote(urlsplit(came["url"]).path)
        return _from_folder(folder_name, extra, editable=came["dir_info"].get("editable", False))
    vcs = f"{came['vcs_info']['vcs']}+" if "vcs_info" in came else ""
    return f"pip install '{_PACKAGE}[{extra}] @ {vcs}{came['url']}'"


def _from_folder(folder: str, extra: str, *, editable: bool) -> str:
    here = os.path.realpath(folder) == os.path.realpath(os.curdir)
    return f"pip install {'-e ' if editable else ''}'{'.' if here else folder}[{extra}]'"


_PACKAGE = "espnet3-parallel"


def _missing(row: Backend, reason: str) -> MissingPackageError:
    line = f"pip install {row.package}" if row.extra is None else pip_line(row.extra)
    return MissingPackageError(f"{reason} Please install {row.package}: {line}", name=row.package)
