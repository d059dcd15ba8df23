"""The half of a workload that builds state: dataset, model, tokenizer, once per process."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Protocol

from espnet3.parallel.checks import own_attribute
from espnet3.parallel.errors import explained
from espnet3.parallel.provenance import FUNCTION
from espnet3.parallel.provenance.settings import containers, copied, editable, edited, is_data

# In these a provider sets what every process sets for itself
_MAKING = ("build_env_local", "make_worker_setup_fn", "build_worker_setup_fn")
_MORE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


class _Making(type(Protocol)):  # type: ignore[misc]  # that of protocols, which a provider may be as well
    if not TYPE_CHECKING:  # to a type checker a class is called as its `__init__` says

        @explained
        def __call__(cls, *args, **kwargs):
            made_from = copied((args, kwargs))  # before the constructor can edit them
            provider = super().__call__(*args, **kwargs)
            if isinstance(provider, EnvironmentProvider):
                # by object: also where a subclass is frozen
                object.__setattr__(provider, "_espnet3_made_with", (args, kwargs))
                object.__setattr__(provider, "_espnet3_made_from", made_from)
                object.__setattr__(provider, "_espnet3_held", editable(getattr(provider, "__dict__", {})))
            return provider

        @property
        def __signature__(cls):  # for help() and editors, which would show that of `__call__`
            whole = inspect.signature(cls.__init__)
            given = list(whole.parameters.values())[1:]
            return whole.replace(parameters=given, return_annotation=inspect.Signature.empty)


class EnvironmentProvider(metaclass=_Making):
    """Builds the env that `forward(idx, **env)` runs in.

    Only `build_env_local` must be written. The provider itself is not shipped: a worker builds
    its own from the class and the arguments it was made with, so a model kept on `self`
    never travels. What was changed since does: `config` and `params`, an argument kept on `self`, each
    attribute that was set from outside (`provider.beam = 5`), an object that a method of its own was given and
    keeps, and plain data, records included, that was set or edited since it was made; all as they are when the
    run starts.

    Args:
        config: Any mapping, or whatever the subclass wants.
    """

    # subclasses keep what they like on `self`: names that are nobody else's
    _espnet3_made_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    _espnet3_made_from: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})  # the same, as they were then
    _espnet3_set: frozenset[str] = frozenset()
    # copies of the lists, dicts and records that it held when it was made; None: it is being made
    _espnet3_held: Mapping[str, Any] | None = None

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; what is set from outside, and plain data that a method sets later, goes to workers too.

        What is set while the provider is made, or while it builds an env, is set there by the same code, and so is an
        object that a method sets which is given nothing: as a rule it builds it when first asked for.
        """
        super().__setattr__(name, value)
        if self._espnet3_held is None:
            return
        caller: FrameType = inspect.currentframe().f_back  # type: ignore[union-attr,assignment]  # there is one
        code = caller.f_code
        given = code.co_argcount + code.co_kwonlyargcount > 1 or code.co_flags & _MORE
        is_making = code.co_name in _MAKING or not (given or is_data(value))
        if not (caller.f_locals.get("self") is self and is_making):
            super().__setattr__("_espnet3_set", self._espnet3_set | {name})

    if not TYPE_CHECKING:  # for which any name would be known

        def __getattr__(self, name: str) -> Any:
            """Say what may be missing where a provider has no config, in the AttributeError of any object."""
            forgotten = f": call super().__init__(...) in {type(self).__qualname__}.__init__"
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
                + (forgotten if name in ("config", "params") else ""),
                name=name,
                obj=self,
            )

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
        cls, (args, kwargs), now = type(self), self._espnet3_made_from, copied(state_now(self))

        def setup() -> dict[str, Any]:
            provider = cls(*args, **kwargs)
            for name, value in now.items():
                object.__setattr__(provider, name, value)
            return provider.build_env_local()

        named = f"{cls.__qualname__}{'' if FUNCTION in vars(cls) else '.build_env_local'}"
        setup.builds = named  # type: ignore[attr-defined]  # its name in messages
        return setup

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return the same as `make_worker_setup_fn`: its newer name. A subclass overrides either."""
        return self.make_worker_setup_fn()


def state_now(provider: Any) -> dict[str, Any]:
    """Return the attributes that a provider made again must be given: those that may have changed since.

    These are `config` and `params`, what was set from outside, what was edited, and the lists, dicts, configs and
    records among the arguments that it keeps as they are: their owner may have changed them.
    """
    here: dict[str, Any] = getattr(provider, "__dict__", {})
    shared = containers(here.get("_espnet3_made_with", ()))
    wanted = {"config", "params"} | _changed(provider)
    return {
        name: value
        for name, value in here.items()
        if name in wanted or (id(value) in shared and not name.startswith("_espnet3_"))
    }


def _changed(provider: Any) -> set[str]:
    here: dict[str, Any] = getattr(provider, "__dict__", {})
    from_outside: frozenset[str] = here.get("_espnet3_set", frozenset())
    return edited(here.get("_espnet3_held") or {}, here) | from_outside


def built_here(provider: Any) -> Any:
    """Return the env, built by the provider itself; what it sets and edits in itself meanwhile is no change of it."""
    changed, then = _changed(provider), own_attribute(provider, "_espnet3_held")
    try:
        return provider.build_env_local()
    finally:
        if then is not None:
            now = editable({name: one for name, one in vars(provider).items() if name not in changed})
            object.__setattr__(provider, "_espnet3_held", {**then, **now})
            object.__setattr__(provider, "_espnet3_set", frozenset(changed))


def made_with(provider: Any) -> dict[str, Any]:
    """Return what a provider was made with, as far as that is known: its config, params and other arguments.

    What was set from outside, or edited since, counts as such an argument.
    """
    names = ["config", "params", *sorted(_changed(provider) - {"config", "params"})]
    facts = {name: getattr(provider, name) for name in names if hasattr(provider, name)}
    args, kwargs = own_attribute(provider, "_espnet3_made_with") or ((), {})
    known = {id(value) for value in facts.values()}
    rest = [arg for arg in args if id(arg) not in known]
    more = {name: value for name, value in kwargs.items() if name not in facts and id(value) not in known}
    return {**facts, **({"args": rest} if rest else {}), **more}


def carried_by(setup: Callable[[], Any] | None) -> dict[str, Any]:
    """Return what a setup function takes along to a worker, by name; of a provider's, its attributes by theirs."""
    if not isinstance(setup, FunctionType):
        return {}
    carried = dict(inspect.getclosurevars(setup).nonlocals)
    # that of `make_worker_setup_fn` takes attributes
    return {**carried.pop("now"), **carried} if setup.__module__ == __name__ else carried


def keywords_of(provider: Any) -> dict[str, Any]:
    """Return the keywords that a function's calls are given beside the env that its `setup` builds."""
    return (own_attribute(provider, "config") or {}) if FUNCTION in vars(type(provider)) else {}


def worker_setup_of(provider: Any) -> Callable[[], dict[str, Any]]:
    """Return a provider's setup function, by the newer of the two names where it has both; any object may be one."""
    for name in ("build_worker_setup_fn", "make_worker_setup_fn"):
        if inspect.getattr_static(provider, name, None) is not None:
            return getattr(provider, name)()  # type: ignore[no-any-return]  # the user's method
    return provider.build_env_local  # type: ignore[no-any-return]  # a duck-typed provider
