"""The half of a workload that builds state: dataset, model, tokenizer, once per process."""

from __future__ import annotations

import copy
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import PurePath
from types import FrameType
from typing import Any

from espnet3.parallel.checks import SignatureOfInit, refuse_incomplete

_MOST_COPIED = 10_000  # lists, dicts and configs among a provider's arguments: more are data, and no settings
# In these a provider sets what every process sets for itself
_MAKING = {"__init__", "__post_init__", "build_env_local", "make_worker_setup_fn", "build_worker_setup_fn"}
_DEEPEST = 50  # levels that are copied: more are a value that holds itself


class EnvironmentProvider(ABC):
    """Builds the env that `forward(idx, **env)` runs in.

    Only `build_env_local` must be written. The provider itself is not shipped: a worker builds
    its own from the class and the arguments it was made with, so a model kept on `self`
    never travels. What was changed since does: `config` and `params`, an argument kept on `self`, each
    attribute that was set from outside (`provider.beam = 5`), and plain data that a method of its own has
    set since it was made, as they are when the run starts.

    Args:
        config: Any mapping, or whatever the subclass wants.
    """

    # subclasses keep what they like on `self`: names that are nobody else's
    _espnet3_made_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    _espnet3_made_from: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})  # the same, as they were then
    _espnet3_set: frozenset[str] = frozenset()

    __signature__ = SignatureOfInit()

    def __new__(cls, *args: Any, **kwargs: Any) -> EnvironmentProvider:
        """Remember the arguments: a worker makes the same provider from them."""
        refuse_incomplete(cls, EnvironmentProvider)
        self = super().__new__(cls)
        # by object: also where a subclass is frozen
        object.__setattr__(self, "_espnet3_made_with", (args, kwargs))
        object.__setattr__(self, "_espnet3_made_from", _copied((args, kwargs)))
        return self

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; what is set from outside, and plain data that a method sets later, goes to workers too.

        What is set while the provider is made, or while it builds an env, is set there by the same code. Of what its
        other methods set, objects stay: as a rule they are built when first asked for, as they will be there.
        """
        super().__setattr__(name, value)
        here = inspect.currentframe()
        caller = here.f_back if here is not None else None
        inside = _methods_above(self, caller)
        if not inside or (not inside & _MAKING and _is_plain(value)):
            super().__setattr__("_espnet3_set", self._espnet3_set | {name})

    @abstractmethod
    def build_env_local(self) -> dict[str, Any]:
        """Build the env in this process.

        Returns:
            A plain dict; its keys are matched to the parameter names of `forward`.
        """

    def make_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return a function without arguments that builds the env on a worker.

        The default makes the same provider again there, with what was changed in this one since, and calls its
        `build_env_local`. What is changed after this call does not count.
        """
        cls, (args, kwargs), now = type(self), self._espnet3_made_from, _copied(state_now(self))

        def setup() -> dict[str, Any]:
            provider = cls(*args, **kwargs)
            for name, value in now.items():
                object.__setattr__(provider, name, value)
            return provider.build_env_local()

        return setup

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return the same as `make_worker_setup_fn`: its newer name. A subclass overrides either."""
        return self.make_worker_setup_fn()


def state_now(provider: Any) -> dict[str, Any]:
    """Return the attributes that a provider made again must be given: those that may have changed since.

    These are `config` and `params`, what was set from outside, and the lists, dicts and configs among the
    arguments that it keeps as they are: their owner may have changed them.
    """
    here: dict[str, Any] = getattr(provider, "__dict__", {})
    shared = _containers(getattr(provider, "_espnet3_made_with", ()))
    wanted = {"config", "params"} | getattr(provider, "_espnet3_set", frozenset())
    return {
        name: value
        for name, value in here.items()
        if name in wanted or (id(value) in shared and not name.startswith("_espnet3_"))
    }


def made_with(provider: Any) -> dict[str, Any]:
    """Return what a provider was made with, as far as that is known: its config, params and other arguments.

    What was set from outside counts as such an argument.

    Args:
        provider: An `EnvironmentProvider`, or any object that has its methods.
    """
    names = ["config", "params", *sorted(getattr(provider, "_espnet3_set", ()))]
    facts = {name: getattr(provider, name) for name in names if hasattr(provider, name)}
    args, kwargs = getattr(provider, "_espnet3_made_with", ((), {}))
    rest = [arg for arg in args if not any(arg is known for known in facts.values())]
    more = {
        name: value
        for name, value in kwargs.items()
        if name not in facts and not any(value is known for known in facts.values())
    }
    return {**facts, **({"args": rest} if rest else {}), **more}


def carried_by(setup: Callable[[], Any] | None) -> dict[str, Any]:
    """Return what a setup function takes along to a worker, by name; of a provider's, its attributes by theirs."""
    code = getattr(setup, "__code__", None)
    if code is None:
        return {}
    cells = getattr(setup, "__closure__", None) or ()
    carried = {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)}
    if code.co_filename == __file__:  # that of `make_worker_setup_fn`
        carried = {**carried.pop("now"), **carried}
    return carried


def _methods_above(instance: Any, frame: FrameType | None) -> set[str]:
    """Return the names of the methods of an object, or functions that are given it first, that code runs for."""
    found = set()
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is instance:
            found.add(code.co_name)
        frame = frame.f_back
    return found


def _is_plain(value: Any) -> bool:
    """Whether a value is data: numbers, texts, paths, and not very many of them in lists, dicts and sets."""
    left, seen = [value], 0
    while left:
        one = left.pop()
        seen += 1
        if seen > _MOST_COPIED:
            return False
        if type(one) is dict:
            left += [*one.keys(), *one.values()]
        elif type(one) in (list, tuple, set, frozenset):
            left += one
        elif not (one is None or isinstance(one, (bool, int, float, complex, str, bytes, PurePath))):
            return False
    return True


def _copied(value: Any) -> Any:
    """Return a copy of lists, dicts and configs, in any depth; all other objects are the same in the copy.

    Of arguments with very many of them nothing is copied: they are data, which nobody edits by hand.
    """
    return value if len(_containers(value)) > _MOST_COPIED else _copy(value)


def _copy(value: Any, depth: int = 0) -> Any:
    if depth < _DEEPEST and type(value) is dict:
        return {key: _copy(item, depth + 1) for key, item in value.items()}
    if depth < _DEEPEST and type(value) in (list, tuple):
        return type(value)(_copy(item, depth + 1) for item in value)
    return copy.deepcopy(value) if _is_config(value) else value


def _containers(value: Any) -> set[int]:
    """Return the identities of the lists, dicts and configs in a value, or of too many of them where there are more."""
    found: set[int] = set()
    left = [value]
    while left and len(found) <= _MOST_COPIED:
        one = left.pop()
        if id(one) in found:
            continue
        if type(one) is dict:
            left += one.values()
        elif type(one) in (list, tuple):
            left += one
        elif not _is_config(one):
            continue
        found.add(id(one))
    return found


def _is_config(value: Any) -> bool:
    omegaconf = sys.modules.get("omegaconf")  # a value can only be OmegaConf's where it is loaded
    return omegaconf is not None and bool(omegaconf.OmegaConf.is_config(value))


def worker_setup_of(provider: Any) -> Callable[[], dict[str, Any]]:
    """Return a provider's setup function, by the newer of the two names where it has both.

    Args:
        provider: An `EnvironmentProvider`, or any object that has its methods.
    """
    newer = getattr(provider, "build_worker_setup_fn", None)
    if newer is not None:
        return newer()  # type: ignore[no-any-return]  # the user's method
    make = getattr(provider, "make_worker_setup_fn", None)
    if make is not None:
        return make()  # type: ignore[no-any-return]  # the user's method
    return provider.build_env_local  # type: ignore[no-any-return]  # a duck-typed provider
