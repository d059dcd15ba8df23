"""`espnet3.parallel.run`: a runner and a provider made of functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

from espnet3.parallel.base_runner import BaseRunner, call_runner
from espnet3.parallel.checks import Fits, argument
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.env.injection import name_of
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.errors import EnvConflictError, SignatureError, explained
from espnet3.parallel.messages import did_you_mean, shown
from espnet3.parallel.parallel import active_config, before_loading
from espnet3.parallel.provenance import FUNCTION
from espnet3.parallel.runner.arguments import check_indices

if TYPE_CHECKING:
    from pathlib import Path

    from espnet3.parallel.env.store import SetupFn
    from espnet3.parallel.records import ItemFailure, RunSummary


class Given(EnvironmentProvider):
    """A provider of an env that is given as it is."""

    def build_env_local(self) -> dict[str, Any]:
        """Return the config, which is the env."""
        return dict(self.config or {})

    def make_worker_setup_fn(self) -> SetupFn:
        """Return a function that workers know, which takes the env along: less to pickle than a provider's."""
        # workers are starting meanwhile, as in all functions below
        from espnet3.parallel.env.store import Adding

        return Adding(dict, self.config or {})


# those of runners, but for the batches that a function has none of
_OF_RUNNERS = inspect.signature(BaseRunner.__init__).parameters
_OPTIONS = [name for name in _OF_RUNNERS if name not in ("self", "provider", "batch_size", "split_batches")]
_PLACES = {"output_dir", "shard_subdir"}  # given to a function that has a parameter of the name
_ENV = 'a mapping from parameter names to values (a backend is chosen by parallel={"env": ...})'
# names of other libraries
_CALLED = {
    **dict.fromkeys(
        ("n_jobs", "nj", "jobs", "processes", "max_workers", "num_workers", "num_proc"), "n_workers"
    ),
    **dict.fromkeys(("timeout", "time_limit"), "item_timeout"),
    **dict.fromkeys(("retries", "tries"), "max_retries"),
    **dict.fromkeys(("initializer", "init", "setup_fn"), "setup"),
    **dict.fromkeys(("folder", "out_dir", "logging_dir", "cache"), "output_dir"),
    **dict.fromkeys(("config", "backend", "executor", "client"), "parallel"),
}


@explained
def run(  # noqa: D417  BaseRunner describes the others
    fn: Callable[..., Any],
    items: Iterable[Any],
    *,
    n_workers: int | str | None = None,
    parallel: Any = None,
    env: Mapping[str, Any] | None = None,
    setup: SetupFn | None = None,
    item_cost: Callable[[Any], float] | None = None,
    output_dir: str | Path | None = None,
    resume: bool | str = True,
    on_error: str = "raise",
    max_retries: int = 0,
    max_failures: float | None = None,
    retry_failed: bool = False,
    item_timeout: float | None = None,
    seed: int | None = None,
    progress: bool = True,
    async_mode: bool = False,
    **more: Any,
) -> Any:
    """Run `fn(item, **env)` for each item: in parallel, with progress, recorded failures, a run folder, detached jobs.

    Args:
        fn: A function of one item; its other parameters are taken from the env by their names. A class, a method, a
            `functools.partial` or any other callable will do; detached jobs and `setup` need one that `def` has made.
        items: Any iterable; a run folder stores the items beside their results, so short ones (numbers, names, paths)
            are best.
        n_workers: Workers of this call, in place of the registered number.
        parallel: A `parallel` block for this call, in place of the registered one.
        env: The function's other arguments, ready to be sent to workers.
        setup: A function without arguments that returns further ones, once in each process: models belong here.
        item_cost: A function from an item to its cost in any unit; the most expensive start first.
        output_dir: As for `BaseRunner`, and so are the arguments below.
        **more: Arguments of `fn`, as in `env`, and further ones of `BaseRunner`, which come first.

    Returns:
        The results in the order of the items: a list, or with `output_dir` a sequence that reads the folder lazily.
        Both have `ok`, `failures`, `summary` and `to_pandas()`. With `async_mode` a `DetachedRun`.

    Raises:
        ConfigError: An option is wrong.
        EnvConflictError: An argument of `fn` is given twice, or is also one of what `setup` returns.
        SignatureError: `fn` cannot be called, or does not fit its arguments.
        TypeError: `more` has a name that neither `fn` nor `BaseRunner` takes, or the items are a text or a mapping.
        ItemError: The first failed item, unless `on_error="record"`.
    """
    taken = {name: value for name, value in locals().items() if name not in ("fn", "items", "more")}
    taken |= {name: more.pop(name) for name in list(more) if name in _OPTIONS}
    config = None if parallel is None else ParallelConfig.parse(parallel)
    if n_workers is not None:
        config = replace(config or active_config(), n_workers=n_workers)  # type: ignore[arg-type]  # a text is checked there
    with before_loading(here=async_mode, config=config):
        return _run(fn, items, config, more, taken)


def _run(
    fn: Any, items: Any, config: ParallelConfig | None, more: dict[str, Any], taken: dict[str, Any]
) -> Any:
    from espnet3.parallel.env.calls import unwrapped
    from espnet3.parallel.env.store import check_setup

    env, setup, item_cost = (taken[name] for name in ("env", "setup", "item_cost"))
    if isinstance(env, Mapping) and (twice := more.keys() & env.keys()):
        raise EnvConflictError(
            f"{', '.join(sorted(twice))}: given as a keyword and in env; leave one of them out"
        )
    while isinstance(fn, functools.partial) and not fn.args:
        more = {**fn.keywords, **more}
        fn = fn.func
    fn = unwrapped(fn)
    if isinstance(fn, BaseRunner) or (isinstance(fn, type) and issubclass(fn, BaseRunner)):
        name = name_of(fn)
        raise SignatureError(
            f"run takes a function, and {name} is a runner: call it by itself, {name}(provider)(items)"
        )
    argument("env", env, Fits(lambda value: isinstance(value, Mapping), _ENV, none="None"))
    check_setup(setup, "setup")
    given = {**more, **(env or {})}
    _check_names(fn, more, {} if setup else {one: taken[one] for one in taken.keys() - given})
    found = _items_of(items, fn, given if setup is None else None)
    if isinstance(fn, (FunctionType, BuiltinFunctionType)) or inspect.iscoroutinefunction(fn):
        runner = runner_of(fn, item_cost)
    elif setup is None and not taken["async_mode"]:
        runner = runner_of(called, item_cost)
        # a name that no other process finds: a replay says so
        runner.__name__, runner.__qualname__ = name_of(fn), f"{name_of(fn)}.<locals>.called"
        given = {"function": fn, "arguments": given}
    else:
        raise SignatureError(
            f"with {'setup' if setup is not None else 'async_mode'} run takes a function that def has made, and "
            f"{shown(fn)} is of type {type(fn).__name__}: write a function that calls it"
        )
    provider: Any = Given(given)
    if setup is not None:
        provider = _named_after(unwrapped(setup), EnvironmentProvider, "build_env_local")()
        provider.config = given or None  # a job makes the provider again without arguments
    made = runner(provider, **{name: value for name, value in taken.items() if name in _OPTIONS})
    results = call_runner(made, found, config)
    if type(results) is list:
        results = ResultList(results, found)
    if not made.async_mode:
        results.summary = made.summary
    return results


class ResultList(list[Any]):
    """The results of a run without a folder: a list with the attributes of `Results`.

    Attributes:
        items: What each result is of.
        summary: The figures of the run (`RunSummary`).
    """

    summary: RunSummary | None = None

    def __init__(self, values: Iterable[Any] = (), items: Sequence[Any] = ()) -> None:
        super().__init__(values)
        self.items = items

    @property
    def failures(self) -> list[ItemFailure]:
        """The records of the failed items, in order."""
        from espnet3.parallel.records import ItemFailure

        return [value for value in self if isinstance(value, ItemFailure)]

    @property
    def ok(self) -> list[Any]:
        """The results of the other items, in order."""
        from espnet3.parallel.records import ItemFailure

        return [value for value in self if not isinstance(value, ItemFailure)]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame, as `Results.to_pandas` does."""
        from espnet3.parallel.ledger.merge import table  # only needed here

        return table(zip(self.items, self, strict=True), bool(self.failures))


def called(item: Any, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a class, a method or another object as a function; a run compares it by its content."""
    return function(item, **arguments)


def _check_names(fn: Any, more: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return
    usual = {**_OF_RUNNERS, **inspect.signature(run).parameters}
    for name in [*parameters][1:]:  # the first is the item's
        if name in options.keys() - _PLACES and options[name] != usual[name].default:
            raise SignatureError(
                f"{name} is an argument of run, and {name_of(fn)} has a parameter of that name: give it that one as "
                f"env={{{name!r}: ...}}"
            )
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    for name in more.keys() - parameters:
        own = list(dict.fromkeys([*list(inspect.signature(run).parameters)[2:-1], *_OPTIONS]))
        raise TypeError(
            f"neither run nor {name_of(fn)} has an argument {shown(name)}."
            f"{did_you_mean(_CALLED.get(name, name), [*own, *parameters])} run takes {', '.join(own)}"
        )


def _items_of(items: Any, fn: Any, env: Mapping[str, Any] | None) -> Sequence[Any]:
    from espnet3.parallel.engine.work import as_items

    if type(items).__name__ == "Series":  # of pandas or polars
        items = list(items)
    check_indices(items, "items")
    found = as_items(items, "items")
    if env is not None and found and type(found[0]) is tuple and isinstance(fn, FunctionType):
        parameters = inspect.signature(fn).parameters.values()
        needed = [one.name for one in parameters if one.default is one.empty and one.kind <= 1]
        open_ones = [name for name in needed if name not in env]
        if len(open_ones) == len(found[0]) > 1:
            name = name_of(fn)
            raise SignatureError(
                f"{name} takes {', '.join(open_ones)}, and each item is one argument, such as {shown(found[0])}: "
                f"write a function of the tuple, `def of_one(item): return {name}(*item)`, and run that"
            )
    return found


def runner_of(fn: Any, item_cost: Callable[[Any], float] | None = None) -> type[BaseRunner]:
    """Return a runner's class under a function's name: the function's code identifies the run."""
    cost = {} if item_cost is None else {"item_cost": staticmethod(item_cost)}
    return _named_after(fn, BaseRunner, "forward", **cost)


def _named_after(fn: Any, base: type, method: str, **more: Any) -> type[Any]:
    # nothing of this module: it is no user's code
    place = {
        "__module__": getattr(fn, "__module__", None) or "builtins",
        "__qualname__": getattr(fn, "__qualname__", type(fn).__qualname__),
        "__doc__": getattr(fn, "__doc__", None),
    }
    body = dict.fromkeys((method, FUNCTION), staticmethod(fn))
    return type(getattr(fn, "__name__", type(fn).__name__), (base,), {**body, **more, **place})
