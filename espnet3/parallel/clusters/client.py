"""The Dask client this package hands out, and how one is opened for a `parallel` block."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import pickle
import shutil
import tempfile
import time
import uuid
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import dask
from distributed import Client, LocalCluster, WorkerPlugin
from distributed.core import Status

from espnet3.parallel.backends import BACKENDS, GPU_VARIABLE, Backend, Kind, load_cluster_class
from espnet3.parallel.backends.machine import chosen_gpus
from espnet3.parallel.clusters.options import scratch_base
from espnet3.parallel.clusters.security import PRELOAD, local_security
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.dask_compat import has_tasks, interrupted_before_start, sockets_of, worker_plugins
from espnet3.parallel.dask_compat.clusters import guard_listeners, ignore_errors_of_loop
from espnet3.parallel.env.calls import EnvCall, portable_setup_error, wrap_func_with_worker_env
from espnet3.parallel.env.store import ENVS, SetupFn, check_setup, forget_worker, name_worker
from espnet3.parallel.errors import ConfigError, WorkerSetupError, explained, of_options
from espnet3.parallel.local.dask.cluster import ForkedCluster, drop, local_cluster
from espnet3.parallel.local.fork_server import own_processes
from espnet3.parallel.local.forking import SCRATCH
from espnet3.parallel.local.pages import PrivatePages, new_secret
from espnet3.parallel.pilots.dask import pools
from espnet3.parallel.pilots.dask.pools import close_pool
from espnet3.parallel.pilots.worker_cluster import cluster_of

logger = logging.getLogger(__name__)


def _is_an_error(record: logging.LogRecord) -> bool:
    _, error, _ = record.exc_info or (None, None, None)
    closed = isinstance(error, OSError) and record.levelno <= logging.INFO
    return not (closed or isinstance(error, asyncio.CancelledError) or interrupted_before_start(error))


# Ctrl-C while a cluster starts or closes ends tasks and connections of Dask's, and each is logged with its traceback
for _part in "batched", "client", "core", "scheduler", "worker":
    logging.getLogger(f"distributed.{_part}").addFilter(_is_an_error)
logging.getLogger("tornado.application").addFilter(_is_an_error)
# a task that closes something may be cancelled before it has begun
warnings.filterwarnings(
    "ignore",
    r"coroutine '(Client\._close|KubeCluster\._close|_close_threads)' was never awaited",
    RuntimeWarning,
)

_LOOK = 1.0  # seconds between looks at the demand, where the number of workers follows it
_IDLE = 30.0  # seconds without work, after which workers beyond the minimum go
_GRACE = 2.0  # seconds to close for workers whose calls are not wanted any more


class DictReturnWorkerPlugin(WorkerPlugin):
    """Builds an env on every worker as soon as it is registered.

    A worker whose plugin raises does not start, and a run waits for it until `start_timeout`.

    Args:
        setup_fn: Returns the env, a dict.
        lazy: Have the first item build it instead; one that finds it broken brings the traceback to the driver.
        timeout: Seconds that this may take then.

    Raises:
        SignatureError: It cannot be called without arguments.
        EnvTypeError: On registration (a `ValueError`), if it returns anything else.
        WorkerSetupError: On registration, if it raises.
    """

    def __init__(self, setup_fn: SetupFn, *, lazy: bool = False, timeout: float | None = None) -> None:
        check_setup(setup_fn)
        self.setup_fn, self.lazy, self.timeout = setup_fn, lazy, timeout
        self.key = f"plugin-{uuid.uuid4().hex}"

    def setup(self, worker: Any) -> None:
        """Build the env in the worker's process and make it the default there."""
        name_worker(worker.id)
        ENVS.register(self.key, self.setup_fn, default=True, timeout=self.timeout)
        if self.lazy:
            return
        lost: WorkerSetupError | None = None
        try:
            ENVS.get(self.key)
        except WorkerSetupError as error:
            ENVS.drop(self.key)
            lost = portable_setup_error(error)
        if lost is not None:  # out here: the original would travel along as its context
            raise lost

    def teardown(self, worker: Any) -> None:
        """Forget the env, and the name of a worker that was a thread of the driver, which goes on."""
        ENVS.drop(self.key)
        if worker.status is Status.closing:
            forget_worker(worker.id)


def env_of(client: Any) -> DictReturnWorkerPlugin | None:
    """Return the plugin whose env items of a client get: that of `get_client(setup_fn=...)`, else the last one."""
    if isinstance(client, EnvClient) and client.espnet3_env is not None:
        return client.espnet3_env
    plugins = map(_unpickled, reversed(worker_plugins(client)))
    return next((each for each in plugins if isinstance(each, DictReturnWorkerPlugin)), None)


@functools.lru_cache(maxsize=16)
def _unpickled(plugin: bytes) -> Any:
    try:
        return pickle.loads(plugin)
    except Exception:  # of any kind: it is another program's, of a package that is not here
        logger.debug("a plugin of the workers cannot be read here", exc_info=True)
        return None


# Dask's methods have no types, and `mypy --strict` of a user would refuse to call them
_Untyped: Any = Client


class EnvClient(_Untyped):  # type: ignore[misc]  # see above
    """A `distributed.Client` whose `map` and `submit` inject the worker env, and that owns its cluster.

    With `default` Dask's own functions (`wait`, `dask.compute`, `distributed.get_client`) find it.
    """

    espnet3_env: DictReturnWorkerPlugin | None = None  # of `get_client(setup_fn=...)`
    espnet3_dashboard_shown = False

    def __init__(self, cluster: Any, config: ParallelConfig, *, default: bool = False) -> None:
        self._espnet3_cluster = cluster
        self._espnet3_pid = os.getpid()
        self.espnet3_config = config
        super().__init__(cluster, set_as_default=default)
        _CLIENTS.add(self)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.espnet3_abort()
        try:
            super().__exit__(kind, error, trace)
        except ValueError:  # entered in another context: in an earlier cell of a notebook
            self.close()

    def sync(self, *args: Any, **kwargs: Any) -> Any:
        """Do as `Client.sync`, through which all requests to the scheduler go; a forked child would wait for ever."""
        if os.getpid() != self._espnet3_pid:
            raise pools.of_the_parent()
        return super().sync(*args, **kwargs)

    @explained
    def map(self, func: Callable[..., Any], *iterables: Any, **kwargs: Any) -> Any:
        """Do as `Client.map`, with the worker env."""
        return super().map(self._with_env(func), *iterables, **kwargs)

    @explained
    def submit(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do as `Client.submit`, with the worker env."""
        return super().submit(self._with_env(func), *args, **kwargs)

    def _with_env(self, func: Callable[..., Any]) -> Callable[..., Any]:
        pools.check_client(self)
        if inspect.iscoroutinefunction(func) and env_of(self) is None:
            return func  # Dask awaits it; with an env it is refused
        call = wrap_func_with_worker_env(func)
        return call.in_env(self.espnet3_env.key) if isinstance(call, EnvCall) and self.espnet3_env else call

    def close(self, *args: Any, **kwargs: Any) -> Any:
        """Close the pilots, the client and its cluster; in a forked child, where all that is its parent's, nothing."""
        if os.getpid() != self._espnet3_pid:
            return None
        if self._espnet3_cluster is None:  # closed before
            return super().close(*args, **kwargs)
        cluster, self._espnet3_cluster = self._espnet3_cluster, None
        with ExitStack() as rest:  # closed at Ctrl-C too: the cluster is known here alone now
            rest.callback(_close_cluster, cluster)
            rest.callback(super().close, *args, **kwargs)
            close_pool(self)
        return None

    def espnet3_abort(self) -> None:
        """Kill its local processes at once; workers that are threads are closed without waiting for their calls."""
        cluster = self._espnet3_cluster
        if cluster is None or os.getpid() != self._espnet3_pid:  # closed, or a parent's
            return
        # tasks cut off on the loop fail now, and their log lines have no reader
        ignore_errors_of_loop(cluster)
        if isinstance(cluster, ForkedCluster):
            for each in list(cluster.supervisor.workers):
                cluster.supervisor.stop(each, grace=0)
            if not cluster.processes:
                cluster.sync(_close_threads, cluster, callback_timeout=_GRACE)

    def __del__(self) -> None:
        """Leave the closing to the program's end.

        Dask's own would wait for an event loop that may be gone, or be this very thread's.
        """


_CLIENTS: weakref.WeakSet[EnvClient] = weakref.WeakSet()


def _forked() -> None:
    for client in list(_CLIENTS):
        pools.let_go(sockets_of(client))
        if client.cluster is not None:
            client.cluster.shutdown_on_close = False  # else Dask would close it when the child ends


os.register_at_fork(after_in_child=_forked)


def _close_cluster(cluster: Any) -> None:
    try:
        cluster.close()
    except BaseException:  # Ctrl-C: it is half closed now
        if isinstance(cluster, LocalCluster):
            drop(cluster)
        raise
    cluster.espnet3_remove()


def open_client(config: ParallelConfig, *, default: bool = False) -> EnvClient:
    """Start the cluster of a `parallel` block and connect to it."""
    guard_listeners()
    base = config.options.get("local_directory") if own_processes(config) else None
    with ExitStack() as undo:
        scratch = _scratch(base or scratch_base())
        # made before the cluster: at exit the last finalizer is called first, and Dask's own need the folder
        remove = weakref.finalize(_remove, _remove, scratch, os.getpid())
        undo.callback(remove)
        with of_options(config.env), dask.config.set({"temporary-directory": scratch}):
            cluster = _open_cluster(config, scratch)
        undo.callback(cluster.close)
        cluster.espnet3_remove = remove
        client = EnvClient(cluster, config, default=default)
        undo.pop_all()
    cluster_of(client).remove_at_end(scratch)
    known = weakref.ref(client)  # the cluster must not keep its client alive

    def wanted() -> bool:
        there = known()
        return there is not None and (pools.has_work(there) or has_tasks(there))

    cluster_of(client).wanted = wanted
    if config.adapt is not None:
        cluster.loop.add_callback(_follow, cluster, wanted, **config.adapt)
    return client


async def _follow(cluster: Any, wanted: Callable[[], bool], minimum: int, maximum: int) -> None:
    # not by Dask's own autoscalers: they ask its scheduler, which does not know of the chunks that workers pull
    size, busy = minimum, time.monotonic()
    while cluster.status.name in ("created", "starting", "running"):
        now, target = time.monotonic(), size
        if wanted():
            busy, target = now, maximum
        elif now - busy > _IDLE:
            target = minimum
        if target != size:
            try:
                await cluster.scale(target)
                size = target
            except Exception as error:  # of a server that does not answer: the next look asks again
                logger.warning("the number of workers could not be changed to %d: %s", target, error)
        await asyncio.sleep(_LOOK)


def _scratch(base: Any) -> str:
    try:
        if base is not None:
            os.makedirs(base, exist_ok=True)
        return tempfile.mkdtemp(prefix=SCRATCH, dir=base)
    except OSError as error:
        raise ConfigError(
            f"Dask cannot write to {base or tempfile.gettempdir()}: {error.strerror}"
        ) from error


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def dashboard_of(client: Any) -> str | None:
    """Return the address of the dashboard of a cluster of ours, once: each client shows it once."""
    if not isinstance(client, EnvClient) or client.espnet3_dashboard_shown or find_spec("bokeh") is None:
        return None
    client.espnet3_dashboard_shown = True
    options = client.espnet3_config.options
    scheduler = options.get("scheduler_kwargs") or {}
    if options.get("dashboard_address", "") is None or not scheduler.get("dashboard", True):
        return None
    link: str = client.dashboard_link
    if getattr(client.cluster, "certificate", None) is not None:  # see preload.py
        link = link.replace("http://", "https://", 1)
    return link


async def _close_threads(cluster: Any) -> None:
    closing = [worker.close(executor_wait=False) for worker in cluster.workers.values()]
    await asyncio.gather(*closing, return_exceptions=True)


def _open_cluster(config: ParallelConfig, scratch: str) -> Any:
    row = BACKENDS[config.env]
    if own_processes(config):
        options = local_security(config)
        options.pop(GPU_VARIABLE, None)
        options["local_directory"] = scratch  # also of those that take a dead one's place
        return local_cluster(config, options)
    start: Any = start_dask_cuda
    if row.kind is Kind.BATCH:
        from espnet3.parallel.clusters.job_cluster import start_jobs as start
    elif row.kind is Kind.SSH:
        from espnet3.parallel.clusters.ssh_cluster import start_ssh as start
    elif row.kind is Kind.KUBERNETES:
        from espnet3.parallel.clusters.pod_cluster import start_kube as start
    return start(row, config)


def start_dask_cuda(row: Backend, config: ParallelConfig) -> Any:
    """Start one worker for each GPU of this machine by dask-cuda, for options that only it understands."""
    options = gpu_options(config)
    make: Any = load_cluster_class(row)
    if (security := local_security(config).get("security")) is not None:
        options["security"] = security
        options["preload"] = [*options.get("preload", []), PRELOAD]  # for the pages of workers
    return type("GpuCluster", (make, PrivatePages), {"pages": new_secret(config)})(**options)


def gpu_options(config: ParallelConfig) -> dict[str, Any]:
    """Return what dask-cuda's cluster is made with."""
    options = dict(config.options)
    gpus = chosen_gpus(options, config.n_workers)
    numbers = [int(gpu) if gpu.isdigit() else gpu for gpu in gpus]  # dask-cuda tells them from names by type
    if options.get("dashboard_address", "") is None:  # the user wants none
        options["scheduler_kwargs"] = {**(options.get("scheduler_kwargs") or {}), "dashboard": False}
    options["preload_nanny"] = [*(options.get("preload_nanny") or []), PRELOAD]
    for name in ("dashboard_address", "worker_dashboard_address"):
        if options.get(name) is None:  # Dask's default is every interface
            options[name] = "127.0.0.1:0"
    return {**options, "n_workers": config.n_workers, GPU_VARIABLE: numbers}
