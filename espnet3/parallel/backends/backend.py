"""The record of a backend: the meaning of an `env`, its package, its cluster class and the options that this takes.

Names of the package are imported at their first use.
"""

from __future__ import annotations

import getpass
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from espnet3.parallel.errors import MissingPackageError

if TYPE_CHECKING:
    from espnet3.parallel.backends.scheduler import Scheduler  # read with the rows that have one

_PACKAGE = "espnet3-parallel"


class Kind(Enum):
    """How the workers of a backend are started."""

    LOCAL = "processes of this machine"
    GPU = "a process for each GPU of this machine"
    BATCH = "jobs of a batch scheduler"
    SSH = "sessions on other machines"
    KUBERNETES = "pods"


@dataclass(frozen=True, slots=True)
class Backend:
    """One row of the table: how an `env` becomes a Dask cluster."""

    name: str  # the value of `env`
    title: str  # description in a few words
    kind: Kind  # how its workers are started
    package: str  # import name of the package that must be installed to start it
    # the extra of `espnet3-parallel` that installs the package; None: it is installed by its own name
    extra: str | None
    cluster: str  # "module:Class" of the cluster, imported when it is used
    # "module:Class.method" or "module:function", outermost first, each handing its `**kwargs` to the next:
    # together their parameters are the options
    signatures: tuple[str, ...]
    # options that must be given, with an example of each
    required: Mapping[str, str] = field(default_factory=dict)
    # parameters that are not options here, with the reason
    controlled: Mapping[str, str] = field(default_factory=dict)
    scheduler: Scheduler | None = None  # the batch scheduler, for rows of the kind `BATCH` and for no other
    known: Set[str] = frozenset()  # options that are accepted without importing the package

    @property
    def is_local(self) -> bool:
        """Return whether the workers are processes of this machine."""
        return self.kind in (Kind.LOCAL, Kind.GPU)


LAYER = {
    "n_workers": "set n_workers beside env",
    **dict.fromkeys(("worker_class", "loop", "asynchronous"), "espnet3.parallel chooses it"),
}


def batch_backend(
    name: str,
    title: str,
    scheduler: Scheduler,
    *,
    classes: str = "",
    required: Mapping[str, str] | None = None,
) -> Backend:
    """Make the row of a batch scheduler, whose cluster and job are dask-jobqueue's, or such `classes` elsewhere.

    Those are named by what `Cluster` and `Job` are added to: "module:Name".
    """
    classes = classes or f"dask_jobqueue.{name}:{title}"
    return Backend(
        name=name,
        title=f"jobs of {title}",
        kind=Kind.BATCH,
        package="dask_jobqueue",
        extra="jobqueue",
        cluster=f"{classes}Cluster",
        signatures=(
            "dask_jobqueue.core:JobQueueCluster.__init__",
            f"{classes}Job.__init__",
            "dask_jobqueue.core:Job.__init__",
        ),
        required={"cores": "cores: 4 (per job)", "memory": "memory: 16GB (per job)", **(required or {})},
        controlled={
            **LAYER,
            "scheduler": "the cluster gives each job the address of its scheduler",
            "job_cls": f"env: {name} names the class of the job",
            **dict.fromkeys(("dashboard_address", "host"), "put it in scheduler_options, beside interface"),
        },
        scheduler=scheduler,
    )


def load_module(name: str) -> ModuleType:
    """Import a module of a backend's package, as `interrupts_wait` does."""
    _name_the_user()
    with interrupts_wait():
        return import_module(name)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delay Ctrl-C to the end of a block of imports, and restore the handler of before.

    An import may lose it: compiled modules (numpy and pandas, which Dask imports) drop errors of their lookups, and
    Python itself those of a weak reference's callback: one in a hundred in trials. A second Ctrl-C does not wait.
    dask-jobqueue 0.9 replaces the handler: Ctrl-C would be a silent SystemExit.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    heard: list[int] = []

    def wait(number: int, frame: Any) -> None:
        heard.append(number)
        if len(heard) > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if len(heard) == 1:
            before(heard[0], None)


def installed(package: str) -> bool:
    """Return whether a top-level package can be found; it is not imported."""
    # find_spec raises for a module that is loaded and has no __spec__ (one made by hand).
    return sys.modules.get(package) is not None or find_spec(package) is not None


def parameters(reference: str) -> tuple[str, ...] | None:
    """Return the names in a tuple, or that a function takes; None where the package is not installed, or not whole."""
    module, _, name = reference.partition(":")
    if not installed(module.partition(".")[0]):
        return None
    try:
        found = attrgetter(name)(load_module(module))
        if isinstance(found, tuple):
            return found
        taken = signature(found).parameters.values()
    except (ImportError, AttributeError):
        return None
    open_ended = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return tuple(one.name for one in taken if one.kind not in open_ended and one.name != "self")


def has_option(row: Backend, name: str) -> bool:
    """Return whether a row accepts an option, as far as its packages are installed."""
    if name in row.controlled:
        return False
    return name in row.required or name in row.known or name in allowed_options(row)


def allowed_options(row: Backend) -> tuple[str, ...]:
    """Return the options that a row accepts, as far as its packages are installed."""
    found = [name for reference in row.signatures for name in parameters(reference) or ()]
    return tuple(name for name in dict.fromkeys(found) if name not in row.controlled)


def _name_the_user() -> None:
    try:
        getpass.getuser()  # as asyncssh and dask-kubernetes do when they are imported
    except (KeyError, OSError):  # no line of passwd has it
        os.environ["LOGNAME"] = str(os.getuid())


def require(package: str, extra: str | None, what: str) -> None:
    """Raise unless a package is installed; `what` ends by saying what needs it."""
    if not installed(package):
        raise missing(f"{what}, which is not installed", package, extra)


def require_package(row: Backend) -> None:
    """Raise unless the package of a row is installed."""
    require(row.package, row.extra, f"env {row.name!r} needs {row.package}")
    _name_the_user()


def load_cluster_class(row: Backend) -> Callable[..., Any]:
    """Import and return the class of a row's cluster, or for ssh a function."""
    require_package(row)
    module, _, name = row.cluster.partition(":")
    try:
        loaded: Callable[..., Any] = getattr(load_module(module), name)
    except (ImportError, AttributeError) as error:
        # dask-cuda without its [cu12] or [cu13] half is such a case.
        needs = f"env {row.name!r} needs {module}:{name}, which cannot be imported: {error}"
        raise missing(needs, row.package, row.extra) from error
    return loaded


def asked(row: Backend, options: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return an option of a block; one that is not given is the site's (jobqueue.yaml, the environment)."""
    if options.get(name) is not None or row.scheduler is None:
        return options.get(name, default)
    load_cluster_class(row)  # importing it reads the site's files
    import dask

    section = options.get("config_name") or row.name
    return dask.config.get(f"jobqueue.{section}.{name.replace('_', '-')}", default)


def pip_line(extra: str) -> str:
    """Return the command that installs an extra of this package, from where the package itself came.

    pip notes that in `direct_url.json` (PEP 610), and nothing where it was an index.
    """
    # these take longer to import than the rest of this package
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        came = json.loads(distribution(_PACKAGE).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # a checkout on sys.path
        came = {"url": Path(__file__).resolve().parents[3].as_uri(), "dir_info": {"editable": True}}
    if "dir_info" in came:
        option = "-e " if came["dir_info"].get("editable") else ""
        return f"pip install {option}'{unquote(urlsplit(came['url']).path)}[{extra}]'"
    vcs = f"{came['vcs_info']['vcs']}+" if "vcs_info" in came else ""
    place = f" @ {vcs}{came['url']}" if came else ""
    return f"pip install '{_PACKAGE}[{extra}]{place}'"


def missing(what: str, package: str, extra: str | None) -> MissingPackageError:
    """Return the error of a package that cannot be imported, with the line that installs it."""
    line = pip_line(extra or "dask")
    return MissingPackageError(f"{what}. Please install {package}: {line}", name=package)
