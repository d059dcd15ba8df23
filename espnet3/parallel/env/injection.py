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


def name_of(func: Any) -> str:
    """Return a function's name for messages; of a partial, that of its function, of an object, its class."""
    if isinstance(func, functools.partial):
        return name_of(func.func)
    if inspect.ismethod(func):
        return name_of(func.__func__)
    for name in ("__qualname__", "__name__"):
        # an object may answer to any name, or raise anything
        if inspect.getattr_static(func, name, None) is None:
            continue
        if isinstance(found := getattr(func, name), str):
            return found
    return type(func).__qualname__


_of_builtin = functools.lru_cache(maxsize=32)(inspect.signature)  # parsing their text takes 0.3 ms


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
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = {p.name for p in positional[:n_positional]}
    by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    open_names = any(p.kind is p.VAR_KEYWORD for p in parameters)
    accepted = by_name - taken
    injected = {k: v for k, v in env.items() if k in accepted or (open_names and k not in taken)}
    given = {**injected, **kwargs}
    # a decorator may supply what the function it wraps asks for
    if inspect.getattr_static(func, "__wrapped__", None) is None:
        _check_complete(func, parameters, positional, n_positional, given, env)
    unknown = [] if open_names else [k for k in given if k not in by_name]
    if clash := unknown or [k for k in given if k in taken]:
        names = ", ".join(repr(k) for k in clash)
        why = "is not a parameter of it" if unknown else "is already bound by the item"
        raise SignatureError(f"{name_of(func)} was given the keyword {names}, which {why}")
    return functools.partial(func, **given) if given else func


def _check_complete(
    func: Callable[..., Any],
    parameters: list[inspect.Parameter],
    positional: list[inspect.Parameter],
    n_positional: int,
    given: Mapping[str, Any],
    env: Mapping[str, Any],
) -> None:
    if len(positional) < n_positional and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise SignatureError(
            f"{name_of(func)} is called with {counted(n_positional, 'argument')} by position, and takes "
            f"{len(positional) or 'none'}"
        )
    left = positional[n_positional:] + [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    required = [p for p in left if p.default is p.empty]
    missing = [p.name for p in required if p.name not in given]
    if missing:
        names = ", ".join(repr(n) for n in missing)
        has = ", ".join(repr(k) for k in env) or "nothing"
        raise SignatureError(
            f"{name_of(func)} needs {names}, which the env does not hold (it holds: {has}); "
            "return it from the provider or the setup function, pass it as a keyword, or give it a default"
        )
