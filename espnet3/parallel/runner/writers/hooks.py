"""The hooks of a runner with files of its own, and how a shard calls them.

    open_writers(shard_dir) ──> write_record(writers, result, state) for each ──> close_writers(writers, state)

Where a runner overrides one of `init_state`, `reduce_state` and `finalize_state`, the shard calls these three in their
place, and what the base makes of them calls the hooks above.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from espnet3.parallel.checks import own_attribute
from espnet3.parallel.env.injection import bind, name_of
from espnet3.parallel.errors import SignatureError

if TYPE_CHECKING:
    from espnet3.parallel.engine.steps import Call

WRITER_HOOKS = ("open_writers", "write_record", "close_writers")
STATE_HOOKS = ("init_state", "reduce_state", "finalize_state")
_STATIC = ("forward", "batch_forward", *WRITER_HOOKS, *STATE_HOOKS)
_CALLED_ONCE = (
    "forward",
    "write_record",
    "close_writers",
    *STATE_HOOKS,
)  # what they return is not iterated over
_DEFAULT = "_espnet3_default"

F = TypeVar("F", bound=Callable[..., Any])


def default(hook: F) -> F:
    """Mark a hook as the base's own, so that a job can see which ones a runner has overridden."""
    setattr(hook, _DEFAULT, True)
    return hook


def is_default(runner: type, name: str) -> bool:
    """Whether a runner has a hook from its base, and not one of its own."""
    hook = inspect.getattr_static(runner, name)
    return own_attribute(getattr(hook, "__func__", hook), _DEFAULT) is True


def writes_files(runner: type) -> bool:
    """Whether a runner writes files of its own: it overrides a writer hook, a state hook or `merge`."""
    return not all(is_default(runner, name) for name in (*WRITER_HOOKS, *STATE_HOOKS, "merge"))


def make_static(runner: type) -> None:
    """Check that what runs on workers takes no `self`; a function that the class body only assigns is made static.

    Such a function (`write_record = Other.write_record`) was written to be called as it is.
    """
    for name in _STATIC:
        own = inspect.getattr_static(runner, name)
        if inspect.isfunction(own):  # plain, so a method: also one that a mixin brings
            if not _is_assigned(runner, name, own):
                raise SignatureError(
                    f"{runner.__qualname__}.{name} must be static: it runs on workers, where there is no self. "
                    f"Put @staticmethod above it and take what it needs from the env"
                )
            setattr(runner, name, staticmethod(own))
        func = getattr(own, "__func__", own)
        if inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func):
            raise SignatureError(
                f"{runner.__qualname__}.{name} must be a plain function: nothing would await what an `async "
                "def` returns. Call asyncio.run(...) in it"
            )
        if inspect.isgeneratorfunction(func) and name in _CALLED_ONCE:
            raise SignatureError(
                f"{runner.__qualname__}.{name} must be a plain function: nothing would run what a function with "
                "`yield` returns. Return a list"
            )


def _is_assigned(runner: type, name: str, function: Any) -> bool:
    """Whether a class holds a function under a name that a `def` elsewhere has made, and not as a method."""
    owner = next(base for base in runner.__mro__ if name in vars(base))
    made_here = (owner.__module__, f"{owner.__qualname__}.{name}")
    first = next(iter(inspect.signature(function).parameters), "")
    return (function.__module__, function.__qualname__) != made_here and first not in ("self", "cls")


@dataclass(frozen=True, slots=True)
class Hooks:
    """A runner's functions, as a worker needs them.

    Attributes:
        forward: Called per item.
        batch_forward: Called per batch; None where the items are run one by one.
        open_writers: Called with a shard's folder.
        write_record: Called with each result.
        close_writers: Called at the shard's end.
        states: `init_state`, `reduce_state` and `finalize_state`, where the runner overrides one of them.
    """

    forward: Callable[..., Any]
    batch_forward: Callable[..., Any] | None
    open_writers: Callable[..., Any]
    write_record: Callable[..., Any]
    close_writers: Callable[..., Any]
    states: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]] | None = None

    @classmethod
    def of(cls, runner: Any, batched: bool) -> Hooks:
        """Read the hooks of a runner's class."""
        own_states = not all(is_default(runner, name) for name in STATE_HOOKS)
        return cls(
            runner.forward,
            runner.batch_forward if batched else None,
            runner.open_writers,
            runner.write_record,
            runner.close_writers,
            (runner.init_state, runner.reduce_state, runner.finalize_state) if own_states else None,
        )

    def check(self, env: dict[str, Any]) -> None:
        """Check an env against all of them, before the first shard."""
        env = {"shard_id": 0, **env}  # of each shard, and in no env
        self.call(env, batches=True)
        bind(self.open_writers, env)
        bind(self.write_record, env, n_positional=3)
        bind(self.close_writers, env, n_positional=2)
        for n_positional, hook in enumerate(self.states or ()):  # (), (state, result), (state)
            bind(hook, env, n_positional=(0, 2, 1)[n_positional])

    def call(self, env: dict[str, Any], *, batches: bool) -> Call:
        """Return what is called per item or per batch, bound to its env."""
        many = self.batch_forward if batches else None
        from espnet3.parallel.engine.steps import Call

        return Call(bind(self.forward, env), bind(many, env) if many is not None else None)


class ShardWriters:
    """A shard's writers and its state, from opening to closing.

    Args:
        hooks: The runner's.
        env: Of this process, with the shard's `output_dir`, `shard_subdir` and `shard_id`.
        folder: The shard's.
        number: The shard's.
    """

    def __init__(self, hooks: Hooks, env: dict[str, Any], folder: Path, number: int) -> None:
        self._hooks = hooks
        self._env = env
        self._folder = folder
        self._state: Any = new_state(folder, number)
        self._writers: Any = None
        if hooks.states is None:
            self._write = bind(hooks.write_record, env, n_positional=3)
        else:
            self._write = bind(hooks.states[1], env, n_positional=2)

    def open(self) -> None:
        """Open them."""
        if self._hooks.states is None:
            self._writers = bind(self._hooks.open_writers, self._env)(self._folder)
        else:
            init = self._hooks.states[0]
            self._state = _returned(bind(init, self._env, n_positional=0)(), init)

    def write(self, index: Any, result: Any) -> None:
        """Write one result."""
        if isinstance(self._state, dict):  # a runner's own `init_state` may return another object
            self._state["index"] = index
        if self._hooks.states is None:
            self._write(self._writers, result, self._state)
        else:
            self._state = _returned(self._write(self._state, result), self._hooks.states[1])

    def close(self) -> None:
        """Close them, also after an error."""
        if self._hooks.states is None:
            bind(self._hooks.close_writers, self._env, n_positional=2)(self._writers, self._state)
        else:
            bind(self._hooks.states[2], self._env, n_positional=1)(self._state)


def folder_entries(folder: Path, shard_subdir: str) -> dict[str, str]:
    """Return what a run folder adds to the env of its hooks: `output_dir` and `shard_subdir`, which together name it.

    Args:
        folder: The run folder.
        shard_subdir: The runner's; empty in the result where the folder does not end with it, as that of a detached
            run without an `output_dir`.
    """
    parts = Path(shard_subdir).parts
    if not parts or folder.parts[-len(parts) :] != parts:
        return {"output_dir": str(folder), "shard_subdir": ""}
    return {"output_dir": str(Path(*folder.parts[: -len(parts)])), "shard_subdir": shard_subdir}


def opened_state(runner: Any, env: dict[str, Any]) -> dict[str, Any]:
    """Return the state that the base's `init_state` begins a shard with: its writers are opened."""
    number = int(env["shard_id"])
    folder = Path(env["output_dir"], env["shard_subdir"], f"split.{number}")
    return {**new_state(folder, number), "_writers": bind(runner.open_writers, env)(folder)}


def new_state(folder: Path, number: int) -> dict[str, Any]:
    """Return the state that a shard begins with."""
    return {"shard_id": number, "shard_dir": str(folder), "records": []}


def _returned(state: Any, hook: Callable[..., Any]) -> Any:
    if state is None:
        raise TypeError(
            f"{name_of(hook)} returned None, and must return the shard's state: add `return state`"
        )
    return state
