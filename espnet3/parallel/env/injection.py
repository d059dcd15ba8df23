"""Give a function its env entries.

They are matched by name: a parameter that the caller left open and that the env (see `store`) holds.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, ModuleType
from typing import Any

from espnet3.parallel.errors import EnvConflictError, SignatureError
from espnet3.parallel.messages import counted

# options of `run` that are tried with other functions, too
_OF_RUN = ("n_workers", "parallel", "output_dir", "on_error", "max_retries", "seed", "progress")
_of_builtin = functools.lru_cache(maxsize=32)(inspect.signature)  # parsing their text takes 0.3 ms


def name_of(func: Any) -> str:
    """Return a function's name for messages; of a partial, that of its function, of an object, its class."""
    if isinstance(func, functools.partial):
        return name_of(func.func)
    if inspect.ismethod(func):
        return name_of(func.__func__)
    for name in ("__qualname__", "__name__"):
        # an object may answer to any name, or raise anything
        has = inspect.getattr_static(func, name, None) is not None
        if has and isinstance(found := getattr(func, name), str):
            return found
    return type(func).__qualname__


def bind(
    func: Callable[..., Any],
    env: Mapping[str, Any],
    kwargs: Mapping[str, Any] | None = None,
    n_positional: int = 1,
) -> Callable[..., Any]:
    """Fix what the caller and the env give by name; the positional arguments stay open."""
    kwargs = dict(kwargs or {})
    fixed = func.keywords if isinstance(func, functools.partial) else {}
    both = sorted({*kwargs, *fixed} & set(env))
    if both:
        names = ", ".join(repr(n) for n in both)
        raise EnvConflictError(
            f"Argument conflict in {name_of(func)}: {names} given as a keyword and also a name of the worker env; "
            "rename the keyword, or drop it and let the env supply it"
        )
    is_builtin = isinstance(func, BuiltinFunctionType) and isinstance(func.__self__, ModuleType)
    try:
        parameters = list((_of_builtin if is_builtin else inspect.signature)(func).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature takes no names from an env
        return functools.partial(func, **kwargs) if kwargs else func
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = positional[:n_positional]
    by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    kinds = {p.kind for p in parameters}
    open_names = inspect.Parameter.VAR_KEYWORD in kinds
    injected = {k: v for k, v in env.items() if k not in taken and (open_names or k in by_name)}
    given = {**injected, **kwargs}
    # a decorator may supply what the function it wraps asks for
    if inspect.getattr_static(func, "__wrapped__", None) is None:
        if len(taken) < n_positional and inspect.Parameter.VAR_POSITIONAL not in kinds:
            raise SignatureError(
                f"{name_of(func)} is called with {counted(n_positional, 'argument')} by position, and takes "
                f"{len(positional) or 'none'}"
            )
        required = [p.name for p in parameters if p.default is p.empty and p.name in (*positional, *by_name)]
        if missing := [name for name in required if name not in taken and name not in given]:
            names, has = (", ".join(map(repr, each)) for each in (missing, env))
            raise SignatureError(
                f"{name_of(func)} needs {names}, which the env does not hold (it holds: {has or 'nothing'}); "
                "return it from the provider or the setup function, pass it as a keyword, or give it a default"
            )
    unknown = [] if open_names else [k for k in given if k not in by_name]
    if clash := unknown or [k for k in given if k in taken]:
        why = "is not a parameter of it" if unknown else "is already bound by the item"
        if clash[0] in _OF_RUN:
            why += f"; run(func, items, {clash[0]}=...) takes it, and set_parallel a block for all calls"
        raise SignatureError(
            f"{name_of(func)} was given the keyword {', '.join(map(repr, clash))}, which {why}"
        )
    return functools.partial(func, **given) if given else func
