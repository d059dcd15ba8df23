"""Undocumented names of Dask's packages, cloudpickle and tornado that this package needs.

A new version of theirs may change any of them without notice. They stand in this folder
and nowhere else, those of servers (TLS, pages, listeners) in `clusters.py`, each behind a function
or a class that says what it is for; `tests/house/test_dask_compat.py` touches each on the installed versions and names
the one that broke. Of dask-cuda and asyncssh nothing undocumented is used. Loading this file loads none of them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from types import CodeType
from typing import Any

# the environment variable that `dask.config.global_config` is filled from
INHERITED = "DASK_INTERNAL_INHERIT_CONFIG"
# run by `python -m`, it starts the scheduler or the workers that the file of its `--spec-file` describes
SPEC_MODULE = "distributed.cli.dask_spec"
_OF_DASK = random.Random()  # noqa: S311  for samples and jitter, as Dask draws them now


def pickled_as_by_dask(error: BaseException) -> bytes:
    """Return an exception as a worker would pickle it for the client; called while it is handled."""
    from distributed.core import error_message

    blob: bytes = error_message(error)["exception"].data
    return blob


def is_lost_connection(error: Exception) -> bool:
    """Return whether an error of a scheduler that speaks to all workers says that one of them has gone.

    One that goes between the connection and its handshake is a ValueError of tornado's `IOStream.start_tls`.
    """
    return isinstance(error, OSError) or "IOStream is not idle" in str(error)


def loop_runs_here(client: Any) -> bool:
    """Return whether a client's event loop runs in this process: a forked child has only the thread that forked."""
    ident = getattr(client.loop.asyncio_loop, "_thread_id", None)
    return ident is None or any(thread.ident == ident for thread in threading.enumerate())


def sockets_of(client: Any) -> list[int]:
    """Return the descriptors of all connections that a client's event loop serves, its scheduler's included."""
    return list(client.loop.handlers)


def has_tasks(client: Any) -> bool:
    """Return whether a client's scheduler holds a task; where it runs elsewhere, whether this client waits for one."""
    scheduler = getattr(client.cluster, "scheduler", None)
    if scheduler is not None:
        return bool(scheduler.tasks)
    return any(future.status == "pending" for future in list(client.futures.values()))


def interrupted_before_start(error: BaseException | None) -> bool:
    """Return whether an exception is that of Ctrl-C in `distributed.utils.sync` before it had begun to wait.

    Its clean-up reads its local variable `future`, which is not set then.
    """
    return isinstance(error, NameError) and error.name == "future"


def worker_plugins(client: Any) -> list[bytes]:
    """Return the plugins of a client's workers, pickled, in the order in which they were registered."""
    scheduler: Any = getattr(client.cluster, "scheduler", None)
    if hasattr(scheduler, "worker_plugins"):  # in this process
        return _plugins(scheduler)
    found: list[bytes] = client.run_on_scheduler(_plugins)
    return found


def _plugins(dask_scheduler: Any) -> list[bytes]:
    return list(dask_scheduler.worker_plugins.values())


def worker_arguments(command: str | None) -> frozenset[str]:
    """Return the options of a worker's command line, such as "--name"; empty if the command is not Dask's."""
    from distributed.cli.dask_worker import main

    if command not in (None, "distributed.cli.dask_worker"):
        return frozenset()
    names = (name for each in main.params for name in (*each.opts, *each.secondary_opts))
    return frozenset({"--help", *names})


def inherited_config(config: Mapping[str, Any]) -> str:
    """Return a value for `INHERITED`, by which a process starts with this one's Dask configuration and `config`."""
    import dask

    return str(dask.config.serialize(dask.config.merge(dask.config.global_config, config)))


def is_class_by_value(obj: Any, reduced: Any) -> bool:
    """Return whether `cloudpickle.Pickler.reducer_override` has reduced an object as a class that travels by value.

    Then that is what makes the class, its arguments (a dict is the beginning of the class's body, without its
    `__slots__`), the attributes, None twice, and what gives the class its attributes.
    """
    return isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6


def code_with_file(pickler: Any, code: CodeType) -> tuple[Any, tuple[Any, ...]]:
    """Return how to reduce compiled code, with the name of its file: 3.1.3 writes "<dynamic-code>" in its place.

    The name is the first text among the arguments.
    """
    make, args = pickler.dispatch_table[CodeType](code)
    at = next(at for at, arg in enumerate(args) if isinstance(arg, str))
    return make, (*args[:at], code.co_filename, *args[at + 1 :])


def leave_random_to_items() -> None:
    """Give Dask, where its event loop draws beside items of this process, random numbers of its own.

    `dask.sizeof` samples lists, its comms and calls to workers add jitter: between the seeding of an item and its draws
    that would change the item's draws.
    """
    from dask import sizeof
    from distributed import utils_comm
    from distributed.comm import core

    modules: Any = sizeof, utils_comm, core
    for module in modules:
        module.random = _OF_DASK


async def close_connections(api: Any) -> None:
    """Close kr8s's connections, for which it has no method: `Api._session`, made by the first request."""
    session = getattr(api, "_session", None)
    if session is not None:
        await session.aclose()
