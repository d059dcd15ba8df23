"""The half of a workload that builds state: dataset, model, tokenizer, once per process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class EnvironmentProvider(ABC):
    """Builds the env that `forward(idx, **env)` runs in.

    Only `build_env_local` must be written. The provider itself is not shipped: a worker builds
    its own from the class and the arguments it was made with, so a model kept on `self`
    never travels; `config` and `params` do, as they are when the run starts.

    Args:
        config: Any mapping, or whatever the subclass wants.
    """

    # subclasses keep what they like on `self`: a name that is nobody else's
    _espnet3_made_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **kwargs: Any) -> EnvironmentProvider:
        """Remember the arguments: a worker makes the same provider from them."""
        self = super().__new__(cls)
        object.__setattr__(self, "_espnet3_made_with", (args, kwargs))  # also where a subclass is frozen
        return self

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def build_env_local(self) -> dict[str, Any]:
        """Build the env in this process.

        Returns:
            A plain dict; its keys are matched to the parameter names of `forward`.
        """

    def make_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return a function without arguments that builds the env on a worker.

        The default makes the same provider again there, with the `config` and `params` this one has
        now, and calls its `build_env_local`.
        """
        cls, (args, kwargs) = type(self), self._espnet3_made_with
        now = {
            name: vars(self)[name] for name in ("config", "params") if name in getattr(self, "__dict__", {})
        }

        def setup() -> dict[str, Any]:
            provider = cls(*args, **kwargs)
            for name, value in now.items():
                object.__setattr__(provider, name, value)
            return provider.build_env_local()

        return setup


def made_with(provider: Any) -> dict[str, Any]:
    """Return what a provider was made with, as far as that is known: its config, params and other arguments.

    Args:
        provider: An `EnvironmentProvider`, or any object that has its methods.
    """
    facts = {name: getattr(provider, name) for name in ("config", "params") if hasattr(provider, name)}
    args, kwargs = getattr(provider, "_espnet3_made_with", ((), {}))
    rest = [arg for arg in args if not any(arg is known for known in facts.values())]
    more = {name: value for name, value in kwargs.items() if name not in facts}
    return {**facts, **({"args": rest} if rest else {}), **more}


def worker_setup_of(provider: Any) -> Callable[[], dict[str, Any]]:
    """Return a provider's setup function: `build_worker_setup_fn` where it defines that newer name.

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
