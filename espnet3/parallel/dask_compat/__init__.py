"""Every name of Dask's packages, cloudpickle and tornado that they do not document, and that this package needs.

A new version of theirs may change any of them without a word. They stand in this package
and nowhere else, those of servers (TLS, pages, nannies) in `servers.py`, each behind a function
or a class that says what it is for; `tests/house/test_dask_compat.py` touches each on the installed versions and names
the one that broke. Of dask-cuda and asyncssh nothing undocumented is used. Loading this package loads none of them.

In: objects of theirs. Out: what is known of them, or what was done to them, in words of ours.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from logging import LogRecord
from types import CodeType
from typing import Any, NamedTuple

SEEN = {
    "cloudpickle": "3.1.3",
    "dask": "2026.8.0",
    "dask-jobqueue": "0.9.0",
    "dask-kubernetes": "2026.3.0",
    "distributed": "2026.8.0",
    "tornado": "6.6.1",
}
"""The version of each in which these names were last read."""

# --- distributed: the client -----------------------------------------------------------------------


def forget_closed_client() -> None:
    """Leave Dask no closed client as the current one of this context: the newest open one is then its default.

    `distributed.client._current_client`: each client puts back what it found, be that closed by now.
    """
    from distributed.client import _current_client

    current = _current_client.get()
    if current is not None and current.status == "closed":
        _current_client.set(None)


def pickled_as_by_dask(error: BaseException) -> bytes:
    """Return an exception as a worker would pickle it for the client; called while it is handled.

    `distributed.core.error_message`, whose "exception" is a `Serialized` or `Serialize` with the bytes in `data`.
    """
    from distributed.core import error_message

    blob: bytes = error_message(error)["exception"].data
    return blob


def is_lost_connection(error: Exception) -> bool:
    """Whether an error of a scheduler that speaks to all workers says that one of them has gone.

    An OSError does; one that goes between the connection and its handshake is a ValueError of tornado's, known by its
    words: `IOStream.start_tls`.
    """
    return isinstance(error, OSError) or "IOStream is not idle" in str(error)


def loop_runs_here(client: Any) -> bool:
    """Whether the thread of a client's event loop is one of this process: a forked child has only the one that forked.

    `BaseEventLoop._thread_id` of asyncio, by `IOLoop.asyncio_loop` of tornado; a loop that does not say is believed.
    """
    ident = getattr(client.loop.asyncio_loop, "_thread_id", None)
    return ident is None or any(thread.ident == ident for thread in threading.enumerate())


def sockets_of(client: Any) -> list[int]:
    """Return the descriptors of all connections that a client's event loop serves, its scheduler's included.

    `BaseAsyncIOLoop.handlers` of tornado: by descriptor.
    """
    return list(client.loop.handlers)


def has_tasks(client: Any) -> bool:
    """Whether a client's scheduler holds any task: `Scheduler.tasks`.

    Of a scheduler that runs elsewhere it is known what this client still waits for: `Client.futures`.
    """
    scheduler = getattr(client.cluster, "scheduler", None)
    if scheduler is not None:
        return bool(scheduler.tasks)
    return any(future.status == "pending" for future in list(client.futures.values()))


def dashboard_link(host: str, port: int | None) -> str:
    """Return the address of a dashboard by the user's own pattern: `distributed.utils.format_dashboard_link`."""
    from distributed import utils

    word: Any = utils.format_dashboard_link
    return str(word(host, port))


def import_dashboard() -> None:
    """Import what a scheduler imports at its start for its dashboard: `distributed.dashboard.scheduler`."""
    import distributed.dashboard.scheduler  # noqa: F401  for its effect on sys.modules


def interrupted_before_start(error: BaseException | None) -> bool:
    """Whether an exception is that of Ctrl-C in `distributed.utils.sync` before it had begun to wait.

    Its clean-up reads its local variable `future`, which is not set then.
    """
    return isinstance(error, NameError) and error.name == "future"


def is_failed_broadcast(record: LogRecord) -> bool:
    """Whether a log line is that of `Scheduler.broadcast` about a worker that it did not reach.

    The same error is raised where the broadcast was asked for.
    """
    return str(record.msg).startswith("broadcast to ")


# --- distributed: workers --------------------------------------------------------------------------


def plugins_of(worker: Any) -> list[Any]:
    """Return the plugins of a worker in this process: `Worker.plugins`."""
    return list(worker.plugins.values())


def threads_of(worker: Any) -> int:
    """Return how many threads a worker in this process has for tasks: `Worker.state.nthreads`."""
    threads: int = worker.state.nthreads
    return threads


def slow_heartbeats(worker: Any, seconds: float) -> None:
    """Reduce the heartbeats of a worker in this process to one in so many seconds, or as few as the scheduler wants.

    `Worker.periodic_callbacks["heartbeat"]`, a tornado `PeriodicCallback` whose `callback` and `callback_time`
    (milliseconds) are read before each beat; the answer to a heartbeat sets `callback_time` anew.
    """
    heartbeat = worker.periodic_callbacks["heartbeat"]
    send = heartbeat.callback

    async def beat() -> None:
        await send()
        heartbeat.callback_time = max(heartbeat.callback_time, seconds * 1000)

    heartbeat.callback = beat


def worker_arguments(command: str | None) -> frozenset[str]:
    """Return the options that a worker's command line knows, such as "--name"; empty for a command that is not Dask's.

    `distributed.cli.dask_worker.main`, a command of click's, which is what dask-jobqueue calls where nothing else is
    wanted.
    """
    from distributed.cli.dask_worker import main

    if command not in (None, "distributed.cli.dask_worker"):
        return frozenset()
    return frozenset(
        {"--help", *(name for each in main.params for name in (*each.opts, *each.secondary_opts))}
    )


def inherited_config(config: Mapping[str, Any]) -> str:
    """Return a value for `INHERITED`, by which a process starts with this one's Dask configuration and `config`."""
    import dask

    return str(dask.config.serialize(dask.config.merge(dask.config.global_config, config)))


INHERITED = "DASK_INTERNAL_INHERIT_CONFIG"
"""The environment variable that `dask.config.global_config` is filled from."""


SPEC_MODULE = "distributed.cli.dask_spec"
"""Run by `python -m`, it starts the scheduler or the workers that the file of its `--spec-file` describes."""


# --- distributed: clusters -------------------------------------------------------------------------


class LostWorkersStay:
    """Mixin for a `SpecCluster`: a worker that goes away stays wanted.

    `SpecCluster._update_worker_status` drops a worker's spec 15 seconds after its death, also where a replacement
    has come or its job waits in the queue again. And one that goes need not be known: `Cluster.wait_for_workers` reads
    the list of workers anew, ahead of what is still to be said of them, and `Cluster._update_worker_status` would
    end there, with a KeyError when the cluster closes.
    """

    def _update_worker_status(self, op: str, msg: Any) -> None:
        from distributed.deploy.cluster import Cluster

        # the base of SpecCluster, which only notes who came and who went
        note: Any = Cluster._update_worker_status
        known: Any = self.scheduler_info["workers"]  # type: ignore[attr-defined]  # mixed into one that has it
        if op != "remove" or msg in known:
            note(self, op, msg)


class WhenAwaited:
    """An awaitable whose coroutine is made when somebody awaits it."""

    def __init__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.made = partial(call, *args, **kwargs)

    def __await__(self) -> Any:
        return self.made().__await__()


class ClosesAtCtrlC:
    """Mixin for a `Client` or a `Cluster`: Ctrl-C while it closes shows nothing but itself: `_close`.

    `distributed.utils.sync` gives it a time limit, whose task may be cancelled before it has begun: Python then prints
    that the coroutine of `_close` "was never awaited".
    """

    def _close(self, *args: Any, **kwargs: Any) -> Any:
        return WhenAwaited(super()._close, *args, **kwargs)  # type: ignore[misc]  # mixed into one that has it


class ClosesMore:
    """Mixin for a `SpecCluster` that has something of its own to close: `SpecCluster._close`.

    Dask calls it from more than one place, so both methods may be called more than once; and `Cluster.close` when a
    program ends, also in a forked child, where the cluster is not the child's to close.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.opened_in = os.getpid()
        super().__init__(*args, **kwargs)

    def close(self, timeout: float | None = None) -> Any:
        """Close the cluster, unless this is a forked child of the process that opened it."""
        if os.getpid() != self.opened_in:
            return None
        return super().close(timeout)  # type: ignore[misc]  # mixed into one that has it

    async def before_closing(self) -> None:
        """Close what must go before the workers."""

    async def after_closing(self) -> None:
        """Close what the workers needed; also after an error."""

    async def _close(self) -> None:
        try:
            await self.before_closing()
            await super()._close()  # type: ignore[misc]  # mixed into one that has it
        finally:
            await self.after_closing()


async def forget_worker(cluster: Any, address: str) -> None:
    """Have the scheduler of a cluster forget a worker whose process has ended: `Scheduler.remove_worker`."""
    await cluster.scheduler.remove_worker(address, stimulus_id="worker-process-ended", close=False)


async def start_missing(cluster: Any) -> None:
    """Start the workers of a cluster's `worker_spec` that are not there: `SpecCluster._correct_state`."""
    await cluster._correct_state()


def add_specs(cluster: Any, jobs: int) -> None:
    """Add so many jobs to a cluster's `worker_spec`, under names it has not used before.

    `SpecCluster._i`, which `new_worker_spec` counts names from: Dask raises it only while a name is in the spec, and
    the name of a job that is gone may not be free yet at the scheduler.
    """
    for _ in range(jobs):
        cluster._i += 1
        cluster.worker_spec.update(cluster.new_worker_spec())


def ignore_errors_of_loop(cluster: Any) -> None:
    """Drop what goes wrong from now on in a cluster's event loop, where nobody waits for it.

    `IOLoop.asyncio_loop` of tornado.
    """
    cluster.loop.asyncio_loop.set_exception_handler(lambda *_: None)


def give_up_cluster(cluster: Any, seconds: float) -> None:
    """Stop the event loop of a cluster that is half started or half closed; Dask does not wait for it at exit.

    `SpecCluster._instances` are closed at exit; `Cluster._loop_runner` is not set yet where its start failed early,
    and has no loop yet where Ctrl-C came while that started: its thread then waits, a daemon, for nothing.
    """
    from distributed.deploy.spec import SpecCluster

    SpecCluster._instances.discard(cluster)
    runner = getattr(cluster, "_loop_runner", None)
    if runner is None or not runner.is_started():
        return
    ignore_errors_of_loop(cluster)
    try:
        runner.stop(timeout=seconds)
    except TimeoutError:  # a task of Dask's did not take its end
        pass


# --- dask ------------------------------------------------------------------------------------------


def default_config() -> dict[str, Any]:
    """Return Dask's configuration without anything of the user's: `dask.config.defaults`."""
    import dask

    defaults: dict[str, Any] = dask.config.merge(*reversed(dask.config.defaults))
    return defaults


def mark_awaited(call: Any, awaited: bool) -> None:
    """Have Dask's workers await what a callable object returns, as they would of a coroutine function.

    `__tornado_coroutine__`, by which tornado, and so `distributed.utils.iscoroutinefunction`, finds those that are
    none to `inspect`.
    """
    call.__tornado_coroutine__ = awaited


def is_awaited(call: Any) -> bool:
    """Whether `mark_awaited` was called so for a callable."""
    awaited: bool = call.__tornado_coroutine__
    return awaited


# --- dask-kubernetes -------------------------------------------------------------------------------


def kube_create_mode(mode: Any) -> Any:
    """Return a `create_mode` of `KubeCluster`, given it or its name.

    Its enum is in `dask_kubernetes.operator.kubecluster.kubecluster` alone.
    """
    from dask_kubernetes.operator.kubecluster.kubecluster import CreateMode

    return CreateMode(getattr(mode, "value", mode))


# --- cloudpickle -----------------------------------------------------------------------------------


class ReducedClass(NamedTuple):
    """How cloudpickle reduces a class that travels by value.

    Attributes:
        make: Makes the class, without its attributes.
        args: For `make`; a dict among them is the beginning of the class's body, without its `__slots__`.
        state: The attributes.
        fill: Gives the class its attributes, called with it and `state`.
    """

    make: Callable[..., type]
    args: tuple[Any, ...]
    state: Any
    fill: Callable[[type, Any], Any]


def reduced_class(obj: Any, reduced: Any) -> ReducedClass | None:
    """Read what `cloudpickle.Pickler.reducer_override` made of an object; None where that is no class by value.

    It is a tuple of six, of which the fourth and fifth are None; the first is `_make_skeleton_class`, or
    `_make_skeleton_enum` for an enum.
    """
    if not isinstance(obj, type) or not isinstance(reduced, tuple) or len(reduced) != 6:
        return None
    make, args, state, _, _, fill = reduced
    return ReducedClass(make, args, state, fill)


def code_with_file(pickler: Any, code: CodeType) -> tuple[Any, tuple[Any, ...]]:
    """Return how to reduce compiled code, with the name of its file: 3.1.3 writes "<dynamic-code>" in its place.

    `dispatch_table` of a `cloudpickle.Pickler` gives the type of code and the arguments for it, among which the name
    of the file is the first text.
    """
    make, args = pickler.dispatch_table[CodeType](code)
    at = next(at for at, arg in enumerate(args) if isinstance(arg, str))
    return make, (*args[:at], code.co_filename, *args[at + 1 :])
