"""Arguments of a runner, checked before anything is done with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar

from espnet3.parallel.checks import MOST_SECONDS, Fits, Location, Number, is_number
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import ConfigError, SignatureError, explained
from espnet3.parallel.messages import did_you_mean, shown, warn_caller
from espnet3.parallel.runner.hooks import MADE, is_default, takes_lists

F = TypeVar("F", bound=Callable[..., Any])
_TABLES = ("pandas", "polars", "cudf", "modin")

SECONDS = Number(above=0, most=MOST_SECONDS, none="None")
SUBDIR = Location(inside="output_dir")
FAILURES = Fits(
    lambda value: is_number(value) and (0 <= value <= 1 or value == int(value) > 1),
    "a whole number of items, or a share of them below 1",
    none="None",
)


def check_builds(provider: Any) -> None:
    """Raise a ConfigError at the call of a runner whose provider cannot build an env.

    Making the runner accepts any provider, as its own methods may be used without an env.
    """
    build = inspect.getattr_static(provider, "build_env_local", None)
    if isinstance(provider, type) or build is None or not callable(provider.build_env_local):
        raise ConfigError(
            f"the provider must have a method build_env_local, and {shown(provider)} has none to call: derive a class "
            "from EnvironmentProvider that returns the env from it, and give an object of it: MyProvider(config)"
        )


def check_indices(indices: Any, name: str) -> None:
    """Reject iterables that are almost certainly a mistake: a text, a mapping, a table."""
    kind = type(indices)
    if isinstance(indices, (str, bytes, bytearray, memoryview)):
        fix = f"[{shown(indices)}] is a list of one; list(...) gives its characters or bytes one by one"
    elif isinstance(indices, Mapping):
        fix = "list(...) gives its keys, list(... .items()) its pairs"
    elif kind.__module__.partition(".")[0] in _TABLES and kind.__name__ in ("DataFrame", "Series"):
        fix = 'range(len(...)) numbers its rows; list(series) or df.to_dict("records") gives their values'
    else:
        return
    raise TypeError(
        f"{name} must be an iterable with an item for each call, not of type {kind.__name__}: {fix}"
    )


def check_finishing(runner: Any, name: str, given: tuple[str, ...]) -> None:
    """Raise a SignatureError where a method called at the end of a run does not take its arguments."""
    try:
        inspect.signature(getattr(runner, name)).bind(*given)
    except TypeError as error:
        call = f"{name}({', '.join(given)})"
        raise SignatureError(
            f"{type(runner).__qualname__}.{name} is called as {call} when all items are done, and does not take that "
            f"({error}): define it as {call.replace('(', '(self, ')}"
        ) from None


def check_effects(runner: Any) -> None:
    """Warn of an argument that has no effect without another one, and of a `batch_forward` without a size."""
    if runner.max_failures is not None and runner.on_error == "raise":
        warn_caller('max_failures has no effect: the first failed item ends the run; give on_error="record"')
    if runner.retry_failed and runner.output_dir is None:
        warn_caller("retry_failed has no effect: no earlier run is kept; give an output_dir")
    kind, size = type(runner), runner.batch_size
    own, is_own = kind.batch_forward, not is_default(kind, "batch_forward")
    # a size below 1 is an error of its own, when the runner is called
    if size is not None and size > 0 and not is_own and not takes_lists(kind, size):
        warn_caller(
            f"batch_size={shown(size)} has no effect, as the runner has no batch_forward: define batch_forward("
            "indices, **env), which returns one result per index, or leave batch_size out"
        )
    elif size is None and is_own and not str(own.__module__).startswith("espnet3."):
        only = getattr(kind.forward, MADE, False)
        now = "it is called for one index at a time" if only else "it is not called: forward is"
        warn_caller(f"{own.__qualname__} is there and batch_size is not, so {now}; give a batch_size")


def with_suggestions(init: F) -> F:
    """Have a runner's constructor answer an unknown argument with the closest name."""
    known = list(inspect.signature(init).parameters)[1:]
    block = [each.name for each in fields(ParallelConfig) if each.name not in known]

    @explained
    @wraps(init)
    def checked_init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                raise TypeError(
                    f"{type(self).__qualname__}() has no argument {shown(name)}.{did_you_mean(name, known + block)} "
                    f"It takes {', '.join(known)}; keys of the parallel block ({', '.join(block)}) are registered "
                    "before the call, such as set_parallel({'env': 'local', 'n_workers': 4})"
                )
        init(self, *args, **kwargs)

    return checked_init  # type: ignore[return-value]  # the same signature, by wraps
