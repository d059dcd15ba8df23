"""`parallel_map`, `parallel_for` and `parallel_submit`: items through a function, or one call of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import closing
from typing import Any

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.engine.exceptions import item_error, named_error
from espnet3.parallel.engine.loop import Block
from espnet3.parallel.engine.work import Work, as_items
from espnet3.parallel.env.calls import EnvCall, call_text, plain_function, setup_key
from espnet3.parallel.env.injection import bind
from espnet3.parallel.env.store import SetupFn, check_setup
from espnet3.parallel.errors import add_note
from espnet3.parallel.pilots.protocol import RunSpec
from espnet3.parallel.runner.execute import build_here, outcomes, runs_here

# chunks (at most 8 MB each) that an ordered parallel_for holds back behind a slow one
_MAX_BUFFERED = 32


def map_all(spec: RunSpec, data: Iterable[Any], client: Any, config: ParallelConfig) -> list[Any]:
    """Return all results, in the order of the data."""
    items = as_items(data, "data")
    results: list[Any] = [None] * len(items)
    if not items:
        return results
    with closing(outcomes(spec, Work(items), client, config)) as pairs:
        for chunk, block in pairs:
            results[chunk.start : chunk.start + len(block.values)] = block.values
            if block.error is not None:
                raise named_error(block.take_error(), block.stop, chunk.start + len(block.values))
    return results


def stream(
    spec: RunSpec, work: Work, client: Any, config: ParallelConfig, ordered: bool
) -> Generator[Any, None, None]:
    """Yield the results as they come, or in order."""
    if work.empty:
        return
    waiting, position = dict[int, Block](), 0
    found = outcomes(spec, work, client, config, may_take=lambda: len(waiting) < _MAX_BUFFERED)
    with closing(found) as pairs:
        for chunk, block in pairs:
            waiting[chunk.start] = block
            position = position if ordered else chunk.start
            while (done := waiting.pop(position, None)) is not None:
                position += len(done.values)
                yield from done.values
                if isinstance(done.error, StopIteration):  # no generator can raise one
                    raise item_error(done.take_error(), done.stop)
                if done.error is not None:
                    raise named_error(done.take_error(), done.stop, position)


def spec_of(func: Callable[..., Any], setup_fn: SetupFn | None, kwargs: dict[str, Any]) -> RunSpec:
    """Return what a function's calls run; wrong arguments raise."""
    func = plain_function(func)
    check_setup(setup_fn)
    return RunSpec(func, kwargs=kwargs, setup=setup_fn)


def submit(spec: RunSpec, args: tuple[Any, ...], client: Any, config: ParallelConfig) -> Any:
    """Return a future of one call."""
    if client is None and runs_here(config):
        return _done_here(spec, args, config.setup_timeout)
    # here: a call in this process needs none of it
    if client is None:
        from espnet3.parallel.runner.calls.background import HOSTS

        return HOSTS.submit(config, spec, args)
    from distributed import Client

    from espnet3.parallel.pilots.dask.pools import check_client

    check_client(client)
    timeout = getattr(client, "espnet3_config", config).setup_timeout  # of a client of ours
    # keywords that Dask's own `submit` would take travel with the function
    options = inspect.signature(Client.submit).parameters
    given = {name: value for name, value in spec.kwargs.items() if name in options}
    rest = {name: value for name, value in spec.kwargs.items() if name not in options}
    call = EnvCall(spec.one, (setup_key(spec.setup), spec.setup, timeout), given)
    return client.submit(call, *args, pure=False, **rest)


def _done_here(spec: RunSpec, args: tuple[Any, ...], timeout: float | None) -> Future[Any]:
    future: Future[Any] = Future()
    env = build_here(spec.setup, timeout) if spec.setup is not None else {}
    call = bind(spec.one, env, spec.kwargs, len(args))
    try:
        future.set_result(call(*args))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a future carries its call's exception to `result()`
        add_note(error, f"in the call {call_text(spec.one, args, spec.kwargs)}, in this process")
        future.set_exception(error)
    return future
