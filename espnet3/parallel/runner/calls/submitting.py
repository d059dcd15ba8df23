"""What `parallel_submit` does: one call in this process, on processes of its own, or as a task of a client."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.env.calls import call_text, unwrapped
from espnet3.parallel.env.injection import bind
from espnet3.parallel.env.store import SetupFn, check_setup
from espnet3.parallel.env.worker_id import named_here
from espnet3.parallel.errors import add_note
from espnet3.parallel.runner.execute import config_of, runs_here
from espnet3.parallel.runner.inline import build_here


def submit(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    client: Any,
    config: ParallelConfig,
    setup_fn: SetupFn | None,
    kwargs: dict[str, Any],
) -> Any:
    """Do what `parallel_submit` says, on a client (or None) and by a configuration."""
    func = unwrapped(func)
    check_setup(setup_fn)
    if client is not None:
        from espnet3.parallel.runner.calls.background import submit_to_client

        return submit_to_client(client, func, args, kwargs, setup_fn, config_of(client, config).setup_timeout)
    if runs_here(config):
        with named_here():
            return _submit_here(func, args, config, setup_fn, kwargs)
    from espnet3.parallel.runner.calls.background import submit_to_workers  # here: others need none of it

    return submit_to_workers(config, func, args, kwargs, setup_fn)


def _submit_here(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    config: ParallelConfig,
    setup_fn: SetupFn | None,
    kwargs: dict[str, Any],
) -> Future[Any]:
    future: Future[Any] = Future()
    env = build_here(setup_fn, config.setup_timeout) if setup_fn is not None else {}
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
