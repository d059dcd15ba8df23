"""What `parallel_map` and `parallel_for` do: items through a function, in order or as they are done."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Generator, Iterable
from typing import Any

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.engine.exceptions import named_error
from espnet3.parallel.engine.settling import Block
from espnet3.parallel.engine.work import Chunk, Work, as_items, as_stream
from espnet3.parallel.env.calls import unwrapped
from espnet3.parallel.env.injection import name_of
from espnet3.parallel.env.store import SetupFn, check_setup
from espnet3.parallel.errors import SignatureError, explained_items
from espnet3.parallel.runner.execute import Task, outcomes

logger = logging.getLogger(__name__)

# chunks (8 MB each at most) that an ordered parallel_for holds back while it waits for a slow one
_MAX_BUFFERED = 32


def map_all(
    func: Callable[..., Any],
    data: Iterable[Any],
    client: Any,
    config: ParallelConfig,
    setup_fn: SetupFn | None,
    kwargs: dict[str, Any],
) -> list[Any]:
    """Do what `parallel_map` says, on a client (or None) and by a configuration."""
    task = _task(func, setup_fn, kwargs)
    items = as_items(data, "data")
    results: list[Any] = [None] * len(items)
    if not items:
        return results
    with outcomes(task, Work(items), client, config) as (pairs, _):
        for chunk, block in pairs:
            results[chunk.start : chunk.start + len(block.values)] = block.values
            if block.error is not None:
                raise named_error(block.take_error(), block.stop, chunk.start + len(block.values))
    return results


def stream(
    func: Callable[..., Any],
    args: Iterable[Any],
    client: Any,
    config: ParallelConfig,
    setup_fn: SetupFn | None,
    kwargs: dict[str, Any],
    *,
    ordered: bool,
) -> Generator[Any, None, None]:
    """Do what `parallel_for` says, on a client (or None) and by a configuration; wrong arguments raise at once."""
    task, work = _task(func, setup_fn, kwargs), Work(as_stream(args, "args"))
    asked: list[bool] = []
    results = explained_items(_results(task, work, client, config, ordered, asked))
    weakref.finalize(results, _warn_of_none_asked, name_of(func), asked)
    return results


def _warn_of_none_asked(name: str, asked: list[bool]) -> None:
    if not asked:
        logger.warning(
            "parallel_for(%s, ...) was called and no result was asked for, so that nothing has run: iterate over it, "
            "or call parallel_map",
            name,
        )


def _results(
    task: Task, work: Work, client: Any, config: ParallelConfig, ordered: bool, asked: list[bool]
) -> Generator[Any, None, None]:
    asked.append(True)
    if work.empty:
        return
    waiting: dict[int, tuple[Chunk, Block]] = {}
    position = 0
    with outcomes(task, work, client, config, lambda: len(waiting) < _MAX_BUFFERED) as (pairs, _):
        for chunk, block in pairs:
            if not ordered:
                yield from block.values
                if block.error is not None:
                    raise named_error(block.take_error(), block.stop, chunk.start + len(block.values))
                continue
            waiting[chunk.start] = (chunk, block)
            while position in waiting:
                _, done = waiting.pop(position)
                position += len(done.values)
                yield from done.values
                if done.error is not None:
                    raise named_error(done.take_error(), done.stop, position)


def _task(func: Callable[..., Any], setup_fn: SetupFn | None, kwargs: dict[str, Any]) -> Task:
    func = unwrapped(func)
    check_setup(setup_fn)
    if inspect.iscoroutinefunction(func):
        raise SignatureError(
            f"{name_of(func)} is a coroutine function, and items are ordinary calls: give "
            "`lambda x: asyncio.run(func(x))`, or submit it by the client that get_client yields"
        )
    return Task(one=func, kwargs=kwargs, setup=setup_fn, setup_here=setup_fn)
