"""The functions of `espnet3.parallel`: from `set_parallel` to `parallel_submit`."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ParamSpec

from espnet3.parallel.backends.backend import Kind
from espnet3.parallel.backends.table import BACKENDS
from espnet3.parallel.config import ParallelConfig, registered
from espnet3.parallel.engine.exceptions import add_note, named_error
from espnet3.parallel.engine.loop import inside_item
from espnet3.parallel.engine.settling import Block
from espnet3.parallel.engine.work import Chunk, Work, as_items, as_stream
from espnet3.parallel.env.calls import call_text, unwrapped, wrap_func_with_worker_env
from espnet3.parallel.env.injection import bind, name_of
from espnet3.parallel.env.store import SetupFn, check_setup
from espnet3.parallel.env.worker_id import named_here
from espnet3.parallel.errors import SignatureError
from espnet3.parallel.runner.background import submit_call, submit_in_background
from espnet3.parallel.runner.execute import Task, config_of, outcomes, owned_client, runs_here, start_client
from espnet3.parallel.runner.inline import build_here

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from espnet3.parallel.clusters.client import DictReturnWorkerPlugin, EnvClient

__all__ = [
    "DictReturnWorkerPlugin",
    "build_client",
    "build_local_gpu_cluster",
    "get_client",
    "get_parallel_config",
    "make_client",
    "make_local_gpu_cluster",
    "parallel_for",
    "parallel_map",
    "parallel_submit",
    "set_parallel",
    "wrap_func_with_worker_env",
]

_MAX_BUFFERED = (
    32  # chunks (8 MB each at most) that an ordered parallel_for holds back while it waits for a slow one
)

# What is registered; None is the default. A module's attribute without an underscore, since code written for ESPnet3
# reads it here, and tests set it to None.
parallel_config: ParallelConfig | DictConfig | None = None
_parsed: tuple[Any, ParallelConfig] = (None, ParallelConfig())  # of the one before
_open_clients: list[tuple[int | None, Any]] = []  # with the thread that opened it
_mine: ContextVar[tuple[Any, ...]] = ContextVar("espnet3_open_clients", default=())
_lock = threading.Lock()


def __getattr__(name: str) -> Any:
    if name == "DictReturnWorkerPlugin":  # a subclass of a Dask class, so made when first asked for
        from espnet3.parallel.clusters.client import DictReturnWorkerPlugin

        return DictReturnWorkerPlugin
    if name == "_DASK_AVAILABLE":  # tests written for ESPnet3 ask for it
        return find_spec("distributed") is not None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def set_parallel(config: Any) -> None:
    """Register the configuration that later calls use.

    Args:
        config: A mapping, `DictConfig` or `ParallelConfig` with `env`, `n_workers` and `options`;
            None goes back to the default (local, one worker). It is checked and copied at once.

    Raises:
        ConfigError: With everything that is wrong in it.
    """
    global parallel_config
    parallel_config = None if config is None else registered(config)


def get_parallel_config() -> ParallelConfig | DictConfig:
    """Return the registered configuration; `local` with one worker if there is none.

    Returns:
        A `DictConfig` where a `DictConfig` was registered: a copy, with its keys and `env`, `n_workers` and `options`.
        Else a `ParallelConfig`. Both are read by attribute or as a mapping.
    """
    return (
        active_config()
        if parallel_config is None or isinstance(parallel_config, ParallelConfig)
        else copy.deepcopy(parallel_config)
    )


def active_config() -> ParallelConfig:
    """Return the registered configuration as what this package works with."""
    global _parsed
    now = parallel_config
    if _parsed[0] is not now:
        _parsed = (now, ParallelConfig.parse(now))
    return _parsed[1]


def build_client(config: Any = None) -> EnvClient:
    """Start the cluster of a configuration and return a client; closing it closes both.

    Args:
        config: As for `set_parallel`; None takes the registered one.

    Raises:
        ConfigError: The configuration is wrong.
        MissingPackageError: Its backend is not installed.
    """
    return start_client(active_config() if config is None else ParallelConfig.parse(config), default=True)


make_client = build_client


def build_local_gpu_cluster(n_workers: int, options: Mapping[str, Any] | None = None) -> EnvClient:
    """Start workers on this machine's GPUs, one each, and return a client; closing it closes both.

    Args:
        n_workers: Workers, of which each gets a GPU.
        options: As under `env: local_gpu`.

    Raises:
        ConfigError: There are fewer GPUs, or an option is wrong.
        MissingPackageError: `dask_cuda` is not installed.
    """
    env = next(row.name for row in BACKENDS.values() if row.kind is Kind.GPU)
    return build_client({"env": env, "n_workers": n_workers, "options": options})


make_local_gpu_cluster = build_local_gpu_cluster


P = ParamSpec("P")


class _Block(AbstractContextManager["EnvClient"]):
    """What `get_client` returns: the client is there inside the `with` block, and this is not the client."""

    def __init__(self, opened: AbstractContextManager[EnvClient]) -> None:
        self._opened = opened

    def __enter__(self) -> EnvClient:
        return self._opened.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._opened.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"get_client(...) has no attribute {name!r}: its client is open inside a block, `with get_client(...) as "
            f"client: client.{name}`; build_client(...) returns one that you close yourself"
        )


def _as_block(
    open_client: Callable[P, AbstractContextManager[EnvClient]],
) -> Callable[P, AbstractContextManager[EnvClient]]:
    """Have the missing `with` named where what a function returns is taken for the client."""

    @wraps(open_client)
    def block(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[EnvClient]:
        return _Block(open_client(*args, **kwargs))

    return block


@_as_block
@contextmanager
def get_client(config: Any = None, setup_fn: SetupFn | None = None) -> Iterator[EnvClient]:
    """Open a client for a `with` block; its `map` and `submit` inject the worker env.

    While it is open, `parallel_*` and runners called without `client=` use it, and so do Dask's own
    functions. Where threads (or asyncio tasks) have opened clients, each uses its own innermost one; a
    thread without one uses the main thread's. Leaving it closes client and cluster; leaving it by
    an exception (Ctrl-C too) kills the workers first.

    Args:
        config: As for `set_parallel`; None takes the registered one.
        setup_fn: Builds the env, a dict, once per worker process, when it is first needed.
    """
    parsed = active_config() if config is None else ParallelConfig.parse(config)
    check_setup(setup_fn)
    with owned_client(parsed, default=True) as client, client:
        if setup_fn is not None:
            from espnet3.parallel.clusters.client import LazyEnvPlugin

            plugin = LazyEnvPlugin(setup_fn, parsed.setup_timeout)
            client.register_plugin(plugin, name="env")
            client.espnet3_env = plugin.key
        entry = (threading.get_ident(), client)
        with _lock:
            _open_clients.append(entry)
        _mine.set((*_mine.get(), client))
        try:
            yield client
        finally:
            _mine.set(tuple(c for c in _mine.get() if c is not client))
            with _lock:
                _open_clients.remove(entry)


def active_client(client: Any = None) -> Any:
    """Return `client`, else the open `get_client` that a call without one means, else None.

    That is the innermost this thread (or asyncio task) has opened, else the innermost of the main
    thread, else of the only thread that has any; an item uses none but its own.
    """
    if client is not None:
        if not hasattr(client, "scheduler_info"):
            raise TypeError(
                f"client must be a Dask client, not {client!r:.100}; what the function needs besides its item is "
                "given by name"
            )
        return client
    with _lock:
        opened = list(_open_clients)
    for mine in reversed(_mine.get()):  # one that was left in another context is still among them
        if any(mine is each for _, each in opened):
            return mine
    threads = {thread for thread, _ in opened}
    main = threading.main_thread().ident
    if inside_item() or not (main in threads or len(threads) == 1):
        return None
    return [each for thread, each in opened if thread == main or main not in threads][-1]


def parallel_map(
    func: Callable[..., Any],
    data: Iterable[Any],
    client: Any = None,
    setup_fn: SetupFn | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Return `[func(x, **kwargs) for x in data]`, computed in parallel, in the order of `data`.

    `espnet3.parallel.run(func, data, env={...})` does the same with what runners have: progress, recorded failures, a
    folder from which an interrupted run goes on, detached jobs.

    Args:
        func: Called with one item; parameters that the env holds are injected by name.
        data: The items.
        client: A Dask client to run on; None takes the open `get_client`, else the registered
            configuration (this process, if that says one local worker).
        setup_fn: Builds the env for this call.
        **kwargs: Given to every call of `func`.

    Raises:
        Exception: The first failing item's own, with a note that names the item.
        EnvConflictError: A keyword is also a name of the env.
        WorkerSetupError: The env could not be built.
    """
    task = _task(func, setup_fn, kwargs)
    items = as_items(data, "data")
    results: list[Any] = [None] * len(items)
    if not items:
        return results
    with outcomes(task, Work(items), active_client(client), active_config()) as (pairs, _):
        for chunk, block in pairs:
            results[chunk.start : chunk.start + len(block.values)] = block.values
            if block.error is not None:
                raise named_error(block.error, block.stop, chunk.start + len(block.values))
    return results


def parallel_for(
    func: Callable[..., Any],
    args: Iterable[Any],
    client: Any = None,
    setup_fn: SetupFn | None = None,
    ordered: bool = False,
    **kwargs: Any,
) -> Generator[Any, None, None]:
    """Yield `func(x, **kwargs)` for each x as results complete; `args` may never end.

    Memory is bounded: only a few chunks are computed ahead of a slow consumer; closing the
    generator early cancels them.

    Args:
        func: As for `parallel_map`.
        args: The items; taken as they are needed (a list is copied first).
        client: As for `parallel_map`.
        setup_fn: As for `parallel_map`.
        ordered: Yield in the order of `args` instead.
        **kwargs: Given to every call of `func`.

    Raises:
        Exception: As `parallel_map`, from the iteration.
    """
    task = _task(func, setup_fn, kwargs)
    return _stream(task, Work(as_stream(args, "args")), active_client(client), active_config(), ordered)


def _stream(
    task: Task, work: Work, client: Any, config: ParallelConfig, ordered: bool
) -> Generator[Any, None, None]:
    if work.empty:
        return
    waiting: dict[int, tuple[Chunk, Block]] = {}
    position = 0
    with outcomes(task, work, client, config, lambda: len(waiting) < _MAX_BUFFERED) as (pairs, _):
        for chunk, block in pairs:
            if not ordered:
                yield from block.values
                if block.error is not None:
                    raise named_error(block.error, block.stop, chunk.start + len(block.values))
                continue
            waiting[chunk.start] = (chunk, block)
            while position in waiting:
                _, done = waiting.pop(position)
                position += len(done.values)
                yield from done.values
                if done.error is not None:
                    raise named_error(done.error, done.stop, position)


def parallel_submit(
    func: Callable[..., Any],
    *args: Any,
    client: Any = None,
    setup_fn: SetupFn | None = None,
    **kwargs: Any,
) -> Any:
    """Run `func(*args, **kwargs)` on a worker and return a future.

    Args:
        func: Parameters that the env holds are injected by name.
        *args: Given to `func`.
        client: As for `parallel_map`.
        setup_fn: As for `parallel_map`.
        **kwargs: Given to `func`.

    Returns:
        A `distributed.Future` where a client is given or open; else a `concurrent.futures.Future`,
        already done if the configuration means this process.
    """
    func = unwrapped(func)
    check_setup(setup_fn)
    chosen = active_client(client)
    if chosen is None and runs_here(active_config()):
        with named_here():
            return _submit_here(func, args, kwargs, setup_fn)
    if chosen is None:
        return submit_in_background(active_config(), func, args, kwargs, setup_fn)
    config = config_of(chosen, active_config())
    return submit_call(chosen, func, args, kwargs, setup_fn, config.setup_timeout)


def _submit_here(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], setup_fn: SetupFn | None
) -> Future[Any]:
    future: Future[Any] = Future()
    env = build_here(setup_fn, active_config().setup_timeout) if setup_fn is not None else {}
    call = bind(func, env, kwargs, len(args))
    try:
        if inspect.iscoroutinefunction(func):  # in a thread: this one may have a loop that is running
            future.set_result(_run_coroutine(call(*args)))
        else:
            future.set_result(call(*args))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a future carries its call's exception to `result()`
        add_note(error, f"in the call {call_text(func, args, kwargs)}, in this process")
        future.set_exception(error)
    return future


def _run_coroutine(coroutine: Any) -> Any:
    import asyncio  # 40 ms, which nobody else should wait for before workers are started
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def _task(func: Callable[..., Any], setup_fn: SetupFn | None, kwargs: dict[str, Any]) -> Task:
    func = unwrapped(func)
    check_setup(setup_fn)
    if inspect.iscoroutinefunction(func):
        raise SignatureError(
            f"{name_of(func)} is a coroutine function, and items are ordinary calls: give "
            "`lambda x: asyncio.run(func(x))`, or submit it by the client that get_client yields"
        )
    return Task(one=func, kwargs=kwargs, setup=setup_fn, setup_here=setup_fn)
