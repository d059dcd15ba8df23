"""Arguments of a runner, checked before anything is done with them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from inspect import signature
from math import isfinite
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from espnet3.parallel.checks import (
    MOST_SECONDS,
    RESUME,
    Choice,
    Flag,
    Inside,
    Kind,
    Location,
    Number,
    Whole,
    argument,
)
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import ConfigError, SignatureError, explained
from espnet3.parallel.messages import did_you_mean, shown, warn_caller
from espnet3.parallel.runner.hooks import is_default, is_in_batches_of_one, takes_lists

_TABLES = ("pandas", "polars", "cudf", "modin")

_KINDS: dict[str, Kind] = {
    "async_mode": Flag(),
    "async_num_workers": Whole(least=1, none="None"),
    "async_result_dir": Location(),
    "async_specs_dir": Location(),
    "batch_size": Whole(none="None"),  # a positive one: when the runner is called
    "every_rank": Flag(),
    "item_timeout": Number(above=0, most=MOST_SECONDS, none="None"),
    "max_failures": Number(least=0, none="None"),
    "max_retries": Whole(least=0),
    "on_error": Choice(("raise", "record"), quoted=True),
    "output_dir": Location(none="None"),
    "progress": Flag(),
    "resume": RESUME,
    "retry_failed": Flag(),
    "seed": Whole(none="None"),
    "shard_subdir": Inside(),
    "split_batches": Flag(),
    "setup_timeout": Number(above=0, most=MOST_SECONDS, none="None"),
}


def checked(name: str, value: Any) -> Any:
    """Return an argument of `BaseRunner` as a plain Python value; a path as a `Path`."""
    kind = _KINDS[name]
    found = argument(name, value, kind)
    if name == "max_failures" and found is not None and found > 1 and found != int(found):
        raise ConfigError(
            f"{name} must be a whole number of items, or a share of them below 1, or None, not {shown(value)}"
        )
    return Path(found) if isinstance(kind, Location) and found is not None else found


def checked_batch_size(size: Any) -> Any:
    """Return a runner's batch size, which may have been set after it was made, when the runner is called."""
    return argument("batch_size", size, Whole(least=1, none="None"))


def check_provider(provider: Any) -> None:
    """Raise `ConfigError` where it is a class."""
    if isinstance(provider, type):
        raise ConfigError(
            f"the provider must be an object, and {provider.__qualname__} is the class: make one, "
            f"{provider.__qualname__}(config)"
        )


def check_builds(provider: Any) -> None:
    """Raise `ConfigError` where a provider has no way to build an env, when its runner is called.

    A runner is made with whatever it is given: code of its own that needs no env may be used without one.
    """
    build = inspect.getattr_static(provider, "build_env_local", None)
    if build is None or not callable(provider.build_env_local):
        raise ConfigError(
            f"the provider must have a method build_env_local, and {shown(provider)} has none: derive a class from "
            "EnvironmentProvider that returns the env from it, and make it: MyProvider(config)"
        )


def check_indices(indices: Any) -> None:
    """Reject iterables that are almost certainly a mistake: a text, a mapping, a table."""
    kind = type(indices)
    name, package = kind.__name__, kind.__module__.partition(".")[0]
    if isinstance(indices, (str, bytes, bytearray, memoryview)):
        fix = f"[{shown(indices)}] is a list of one; list(...) gives its characters or bytes one by one"
    elif isinstance(indices, Mapping):
        fix = "list(...) gives its keys, list(... .items()) its pairs"
    elif package in _TABLES and name in ("DataFrame", "Series"):
        numbers = "df.index" if package == "pandas" else "range(len(df))"
        values = "list(series)" if name == "Series" else 'df.to_dict("records") or df["column"].to_list()'
        fix = f"{numbers} gives the rows' labels; for the values themselves, {values}"
    elif isinstance(indices, Integral):
        fix = f"range({indices}) counts that far"
    elif indices is None:
        fix = "is a `return` missing where they are made? range(n) counts to n"
    elif isinstance(indices, float):
        fix = f"range({int(indices)}) counts that far" if isfinite(indices) else "range(n) counts to n"
    elif inspect.getattr_static(indices, "shape", None) is not None and indices.shape == ():
        fix = f"it has no dimension; range({shown(indices)}) counts that far, [{shown(indices)}] is a list of one"
    else:
        return
    raise TypeError(
        f"indices must be an iterable of the indices that forward gets, and this is of type {name}: {fix}"
    )


_WARNED: set[tuple[type, int]] = set()  # runners and sizes: a recipe makes a runner for each test set


def check_finishing(runner: Any, name: str, given: tuple[str, ...]) -> None:
    """Raise a SignatureError where a method that is called at a run's end does not take what it will be given."""
    try:
        signature(getattr(runner, name)).bind(*given)
    except TypeError as error:
        call = f"{name}({', '.join(given)})"
        raise SignatureError(
            f"{type(runner).__qualname__}.{name} is called as {call} when all items are done, and does not take that "
            f"({error}): define it as {call.replace('(', '(self, ')}"
        ) from None


def check_batches(runner: Any) -> None:
    """Warn of a batch size without `batch_forward`, and of a `batch_forward` without a size."""
    kind, size = type(runner), runner.batch_size
    own = kind.batch_forward
    if size is not None and size < 1:
        return  # an error of its own, when the runner is called
    if takes_lists(kind, size):
        if (kind, size) not in _WARNED:
            _WARNED.add((kind, size))
            warn_caller(
                f"batch_size={size}, and {kind.__qualname__} has no batch_forward: its forward is given lists of up to "
                f"{size} indices, and write_record what it returns for a list. Define batch_forward(indices, **env), "
                "which returns one result per index, to have results and failures index by index, or leave batch_size "
                "out if forward takes one index"
            )
    elif size is not None and is_default(kind, "batch_forward"):
        warn_caller(
            f"batch_size={size} has no effect, as the runner has no batch_forward: define batch_forward(indices, "
            "**env), which returns one result per index, or leave batch_size out"
        )
    elif size is None and not is_default(kind, "batch_forward") and not own.__module__.startswith("espnet3."):
        only = is_in_batches_of_one(kind.forward)
        now = "it is called for one index at a time" if only else "it is not called: forward is"
        warn_caller(f"{own.__qualname__} is there and batch_size is not, so {now}; give a batch_size")


F = TypeVar("F", bound=Callable[..., Any])


def with_suggestions(init: F) -> F:
    """Have a runner's constructor say what was meant, where it lacks its provider or is given what it does not know."""
    known = list(signature(init).parameters)[1:]

    @explained
    @wraps(init)
    def checked_init(self: Any, *args: Any, **kwargs: Any) -> None:
        made = type(self).__qualname__
        for name, value in kwargs.items():
            if name not in known:
                meant = _elsewhere(name, value, known) or did_you_mean(name, known)
                raise TypeError(f"{made}() has no argument {shown(name)}.{meant} It takes {', '.join(known)}")
        if not args and "provider" not in kwargs:
            raise TypeError(f"{made}() needs a provider, which builds the env: {made}(MyProvider(config))")
        if len(args) > 1 and isinstance(args[1], (str, PathLike)):  # the second one is batch_size
            place = shown(os.fspath(args[1]))
            raise TypeError(f"{made}(): pass the folder as output_dir: {made}(provider, output_dir={place})")
        init(self, *args, **kwargs)

    return checked_init  # type: ignore[return-value]  # the same signature, by wraps


def with_indices(call: F) -> F:
    """Have a call of a runner without its indices say what it lacks, by the runner's own name."""

    @explained
    @wraps(call)
    def checked_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not args and "indices" not in kwargs:
            raise TypeError(
                f"{type(self).__qualname__} objects are called with the indices that forward gets, such as "
                "runner(range(100))"
            )
        return call(self, *args, **kwargs)

    return checked_call  # type: ignore[return-value]  # the same signature, by wraps


_WORKERS = ("n_workers", "num_workers", "workers", "max_workers", "n_jobs", "nj")
_BLOCKS = ("parallel", "parallel_config", "set_parallel")


def _elsewhere(name: str, value: Any, known: list[str]) -> str:
    """Return a sentence where an argument belongs to the parallel block or to the provider; else ""."""
    keys = {each.name for each in fields(ParallelConfig)} - set(known)
    key = "n_workers" if name in _WORKERS else name
    if key not in keys and (guess := did_you_mean(name, {*keys, *known}, cutoff=0.8)):
        key = guess.split("'")[1]
    if key in keys:
        return f" It belongs to the parallel block: set_parallel({{{key!r}: {shown(value, key)}}}), before the call."
    if name in _BLOCKS:
        block = shown(value, name) if isinstance(value, Mapping) else "{'env': 'local', 'n_workers': 4}"
        return f" The parallel block is registered: set_parallel({block}), before the call."
    if name in ("config", "params"):
        return f" It belongs to the provider: MyProvider({name}=...)."
    if name == "item_cost":
        return " It is an attribute or a method: runner.item_cost = lambda idx: ..."
    return ""


_CALLED_BY = ("run", "start", "execute", "map", "submit", "process", "infer")


def no_attribute(runner: Any, name: str) -> AttributeError:
    """Return the error for an attribute that a runner does not have; it says what was meant."""
    what = f"{type(runner).__qualname__!r} object has no attribute {name!r}"
    if name in _CALLED_BY:
        return AttributeError(f"{what}: call the runner itself, runner(indices)")
    known = [one for one in dir(type(runner)) + list(vars(runner)) if not one.startswith("_")]
    return AttributeError(what + (did_you_mean(name, known) and f".{did_you_mean(name, known)}"))
