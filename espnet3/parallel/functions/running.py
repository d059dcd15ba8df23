"""`espnet3.parallel.run`: a runner and a provider made of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.env.calls import unwrapped
from espnet3.parallel.env.store import SetupFn, check_setup
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.errors import ConfigError, SignatureError, explained
from espnet3.parallel.messages import shown
from espnet3.parallel.provenance import FUNCTION


class Given(EnvironmentProvider):
    """A provider of an env that is given as it is."""

    def build_env_local(self) -> dict[str, Any]:
        """Return the config, which is the env."""
        return dict(self.config or {})


@explained
def run(
    fn: Callable[..., Any],
    items: Iterable[Any],
    *,
    env: Mapping[str, Any] | None = None,
    setup: SetupFn | None = None,
    item_cost: Callable[[Any], float] | None = None,
    **options: Any,
) -> Any:
    """Run `fn(item, **env)` for each item, as a runner runs its `forward`: progress, failures, run folder, jobs.

    Args:
        fn: A function of one item; its other parameters are taken from the env by their names.
        items: The items; a run folder stores them beside their results, so short ones (numbers, names) are best.
        env: The function's other arguments, ready to be sent to workers.
        setup: In place of `env`, a function without arguments that builds it, once in each process: models belong here.
        item_cost: A function from an item to its cost in any unit; the most expensive start first.
        **options: Arguments of `BaseRunner`: `output_dir`, `on_error`, `max_retries`, `seed`, `async_mode`, ...

    Returns:
        The results in the order of the items, as a runner's call; with `async_mode` a `DetachedRun`.

    Raises:
        ConfigError: Both `env` and `setup` were given, or an option is wrong.
        SignatureError: `fn` is not a function, or does not fit its arguments.
        ItemError: The first failed item, unless `on_error="record"`.
    """
    fn = unwrapped(fn)
    if not isinstance(fn, (FunctionType, BuiltinFunctionType)):
        raise SignatureError(
            f"run takes a function (def or lambda), and {shown(fn)} is of type {type(fn).__name__}: put the "
            "content of a partial or an object into env={...}, so that a later run can compare it"
        )
    if env is not None and setup is not None:
        raise ConfigError("env and setup are two ways to give the env: leave one of them out")
    if env is not None and not isinstance(env, Mapping):
        raise ConfigError(f"env must be a mapping from parameter names to values, not {shown(env)}")
    check_setup(setup)
    provider = Given(dict(env or {})) if setup is None else _provider_of(setup)
    return runner_of(fn, item_cost)(provider, **options)(items)


def runner_of(fn: Any, item_cost: Callable[[Any], float] | None = None) -> type[BaseRunner]:
    """Return a runner's class under a function's name: the function's code identifies the run."""
    body: dict[str, Any] = {"forward": staticmethod(fn), FUNCTION: staticmethod(fn)}
    if item_cost is not None:
        body["item_cost"] = staticmethod(item_cost)
    return type(fn.__name__, (BaseRunner,), {**body, **_place(fn)})


def _provider_of(setup: SetupFn) -> EnvironmentProvider:
    fn = unwrapped(setup)
    body = {
        "build_env_local": staticmethod(fn),
        FUNCTION: staticmethod(fn),
    }  # nothing of this module: it is no user's code
    name = getattr(fn, "__name__", type(fn).__name__)
    made: Any = type(name, (EnvironmentProvider,), {**body, **_place(fn)})
    return made()  # type: ignore[no-any-return]  # of the class above


def _place(fn: Any) -> dict[str, Any]:
    return {
        "__module__": getattr(fn, "__module__", None) or "builtins",
        "__qualname__": getattr(fn, "__qualname__", type(fn).__qualname__),
        "__doc__": getattr(fn, "__doc__", None),
    }
