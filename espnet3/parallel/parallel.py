"""The functions of `espnet3.parallel`: from `set_parallel` to `parallel_submit`."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, _GeneratorContextManager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from espnet3.parallel.backends import BACKENDS, Kind
from espnet3.parallel.config import ParallelConfig, registered
from espnet3.parallel.engine.inside import inside_item, refuse_in_import
from espnet3.parallel.errors import explained, explained_items
from espnet3.parallel.messages import shown

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from espnet3.parallel.clusters.client import EnvClient
    from espnet3.parallel.env.store import SetupFn

# The registered block; None is the default. Without an underscore, since code written for ESPnet3 reads it here, and
# tests set it to None.
parallel_config: ParallelConfig | DictConfig | None = None
_parsed: tuple[Any, ParallelConfig] = (None, ParallelConfig())  # of the block above
_open_clients: list[tuple[int | None, Any]] = []  # with the thread that opened it
_mine: ContextVar[tuple[Any, ...]] = ContextVar("espnet3_open_clients", default=())


def __getattr__(name: str) -> Any:
    # the base of the first is one of Dask's
    homes = {"DictReturnWorkerPlugin": "clusters.client", "wrap_func_with_worker_env": "env.calls"}
    if name in homes:
        return getattr(import_module(f"espnet3.parallel.{homes[name]}"), name)
    if name == "_DASK_AVAILABLE":  # tests written for ESPnet3 ask for it
        return find_spec("distributed") is not None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@explained
def set_parallel(config: Any = None, **keys: Any) -> None:  # noqa: D417  keys belong into the mapping
    """Register the configuration of later calls.

    Args:
        config: A mapping, `DictConfig` or `ParallelConfig` with `env`, `n_workers` and `options`;
            None restores the default (local, one worker). It is checked and copied at once.

    Raises:
        ConfigError: With every mistake in it.
    """
    global parallel_config
    if keys:
        raise TypeError(f"set_parallel takes one mapping: set_parallel({shown(keys)})")
    parallel_config = None if config is None else registered(config)


def get_parallel_config() -> ParallelConfig | DictConfig | None:
    """Return the registered configuration; None if there is none, and calls run on one local worker.

    Returns:
        For a registered `DictConfig` a copy of it, with its keys and `env`, `n_workers` and `options`; else a
        `ParallelConfig`. Both are read by attribute or as a mapping.
    """
    if parallel_config is None or isinstance(parallel_config, ParallelConfig):
        return parallel_config
    return copy.deepcopy(parallel_config)


def active_config() -> ParallelConfig:
    """Return the registered configuration, parsed."""
    global _parsed
    now = parallel_config
    if _parsed[0] is not now:
        _parsed = (now, ParallelConfig.parse(now))
    return _parsed[1]


@explained
def build_client(config: Any = None) -> EnvClient:
    """Start the cluster of a configuration and return a client; closing it closes both.

    Args:
        config: As for `set_parallel`; None takes the registered one.

    Raises:
        ConfigError: The configuration is wrong.
        MissingPackageError: Its backend is not installed.
    """
    from espnet3.parallel.runner.execute import start_client

    return start_client(active_config() if config is None else ParallelConfig.parse(config), default=True)


make_client = _make_client = build_client


def build_local_gpu_cluster(n_workers: int, options: Mapping[str, Any] | None = None) -> EnvClient:
    """Start workers on this machine's GPUs, one each, and return a client; closing it closes both.

    Args:
        n_workers: Number of workers, and of GPUs.
        options: As under `env: local_gpu`.

    Raises:
        ConfigError: There are fewer GPUs, or an option is wrong.
        MissingPackageError: `dask_cuda` is not installed.
    """
    env = next(row.name for row in BACKENDS.values() if row.kind is Kind.GPU)
    return build_client({"env": env, "n_workers": n_workers, "options": options})


make_local_gpu_cluster = build_local_gpu_cluster


class _WithBlock(_GeneratorContextManager["EnvClient"]):
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no {name!r} before the block: with get_client(...) as client: client.{name}")


def get_client(config: Any = None, setup_fn: SetupFn | None = None) -> AbstractContextManager[EnvClient]:
    """Open a client for a `with` block; its `map` and `submit` inject the worker env.

    Inside the block, `parallel_*` and runners called without `client=` use it, and so do Dask's own functions. A thread
    (or asyncio task) uses the innermost client that it opened itself, or else the main thread's. The end of the block
    closes client and cluster; an exception (Ctrl-C too) kills the workers first.

    Args:
        config: As for `set_parallel`; None takes the registered one.
        setup_fn: Builds the env, a dict, once per worker process, on first use.
    """
    return _WithBlock(explained_items, (_opened(config, setup_fn),), {})


def _opened(config: Any, setup_fn: SetupFn | None) -> Iterator[EnvClient]:
    from espnet3.parallel.env.store import check_setup
    from espnet3.parallel.runner.execute import start_client

    parsed = active_config() if config is None else ParallelConfig.parse(config)
    check_setup(setup_fn)
    with start_client(parsed, default=True) as client:
        if setup_fn is not None:
            from espnet3.parallel.clusters.client import DictReturnWorkerPlugin
            from espnet3.parallel.pilots.dask.pools import register

            plugin = DictReturnWorkerPlugin(setup_fn, lazy=True, timeout=parsed.setup_timeout)
            register(client, plugin, "env")
            client.espnet3_env = plugin
        entry = (threading.get_ident(), client)
        _open_clients.append(entry)
        _mine.set((*_mine.get(), client))
        try:
            yield client
        finally:
            _mine.set(tuple(c for c in _mine.get() if c is not client))
            _open_clients.remove(entry)


def active_client(client: Any = None) -> Any:
    """Return `client`, else the open client of `get_client` for this call, else None.

    It is the innermost one of this thread (or asyncio task), else of the main thread; an item uses only its own.
    """
    if client is not None:
        if not hasattr(client, "scheduler_info"):
            raise TypeError(
                f"client must be a Dask client, not {client!r:.100}; pass further arguments of the function by name"
            )
        return client
    opened, main = list(_open_clients), threading.main_thread().ident
    # a block may have ended in another context
    mine = [each for each in _mine.get() if any(each is one for _, one in opened)]
    of_main = [] if inside_item() else [each for thread, each in opened if thread == main]
    return (mine or of_main or [None])[-1]


def before_loading(
    client: Any = None, *, here: bool = False, config: ParallelConfig | None = None
) -> AbstractContextManager[None]:
    """Start a run's processes while the block loads its modules; `here` starts none."""
    refuse_in_import()
    if here or (config is None and active_client(client) is not None):
        return nullcontext()
    from espnet3.parallel.local.fork_server import head_start

    return head_start(config or active_config())


@explained
def parallel_map(
    func: Callable[..., Any],
    data: Iterable[Any],
    client: Any = None,
    setup_fn: SetupFn | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Return `[func(x, **kwargs) for x in data]`, computed in parallel, in the order of `data`.

    `espnet3.parallel.run(func, data, env={...})` adds the features of runners: progress, recorded failures, a folder
    from which an interrupted run goes on, detached jobs.

    Args:
        func: Called with one item; entries of the env are injected by parameter name.
        data: The items.
        client: A Dask client; None takes the open one of `get_client`, else the registered configuration (this
            process, for one local worker).
        setup_fn: Builds the env for this call.
        **kwargs: Passed to every call of `func`.

    Raises:
        Exception: That of the first failing item, with a note that names the item.
        EnvConflictError: A keyword is also a name of the env.
        WorkerSetupError: The env could not be built.
    """
    with before_loading(client):
        from espnet3.parallel.runner.calls.functions import map_all, spec_of

        return map_all(spec_of(func, setup_fn, kwargs), data, active_client(client), active_config())


@explained
def parallel_for(
    func: Callable[..., Any],
    args: Iterable[Any],
    client: Any = None,
    setup_fn: SetupFn | None = None,
    ordered: bool = False,
    **kwargs: Any,
) -> Generator[Any, None, None]:
    """Yield `func(x, **kwargs)` for each x as results complete; `args` may never end.

    Memory is bounded: only a few chunks run ahead of a slow consumer; closing the generator early cancels them.

    Args:
        func: As for `parallel_map`.
        args: The items, taken as needed (a list is copied first).
        client: As for `parallel_map`.
        setup_fn: As for `parallel_map`.
        ordered: Yield in the order of `args` instead.
        **kwargs: Passed to every call of `func`.

    Raises:
        Exception: As `parallel_map`, from the iteration.
    """
    refuse_in_import()
    from espnet3.parallel.engine.work import Work, as_stream
    from espnet3.parallel.runner.calls.functions import spec_of, stream

    spec, work = spec_of(func, setup_fn, kwargs), Work(as_stream(args, "args"))
    return explained_items(stream(spec, work, active_client(client), active_config(), ordered))


@explained
def parallel_submit(
    func: Callable[..., Any], *args: Any, client: Any = None, setup_fn: SetupFn | None = None, **kwargs: Any
) -> Any:
    """Run `func(*args, **kwargs)` on a worker and return a future.

    Args:
        func: Entries of the env are injected by parameter name.
        *args: Passed to `func`.
        client: As for `parallel_map`.
        setup_fn: As for `parallel_map`.
        **kwargs: Passed to `func`.

    Returns:
        A `distributed.Future` of a given or open client; else a `concurrent.futures.Future`, already done if the call
        ran in this process.
    """
    refuse_in_import()
    from espnet3.parallel.runner.calls.functions import spec_of, submit

    spec = spec_of(func, setup_fn, kwargs)
    return submit(spec, args, active_client(client), active_config())
