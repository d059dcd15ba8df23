"""The half of a workload that builds state: dataset, model, tokenizer, once per process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class EnvironmentProvider(ABC):
    """Builds the env that `forward(idx, **env)` runs in.

    Only `build_env_local` must be written. The provider itself is not shipped: a worker builds
    its own from the class and the arguments it was made with, so an attribute set later, or a
    model kept on `self`, never travels.

    Args:
        config: Any mapping, or whatever the subclass wants.
    """

    _made_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **kwargs: Any) -> EnvironmentProvider:
        self = super().__new__(cls)
        self._made_with = (args, kwargs)
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

        The default makes the same provider again there and calls its `build_env_local`.
        """
        cls, (args, kwargs) = type(self), self._made_with

        def setup() -> dict[str, Any]:
            return cls(*args, **kwargs).build_env_local()

        return setup


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
