"""The envs that live in this process.

An env is a dict built once per process (a provider's `build_env_local`, a `setup_fn`).
"""

from __future__ import annotations

import functools
import inspect
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from espnet3.parallel.checks import own_attribute
from espnet3.parallel.engine.exceptions import describe_error, stack_text
from espnet3.parallel.engine.watch import AwakeClock
from espnet3.parallel.env.injection import name_of
from espnet3.parallel.errors import EnvTypeError, SignatureError, WorkerSetupError
from espnet3.parallel.messages import brief

if TYPE_CHECKING:
    from pathlib import Path

SetupFn = Callable[[], dict[str, Any]]

_MOST_PAUSE = 0.25  # seconds between two looks at the time
# the variable by which code tells the workers apart, wherever it runs: in a Dask worker its id, in a detached job its
# first shard; not set where the driver runs items itself
_NAME = "DASK_WORKER_ID"
_BORROWED = 4  # envs of `parallel_submit` that a process keeps: a program has one or two, and they are large


class _Env:
    def __init__(self, build: SetupFn, timeout: float | None) -> None:
        self.build = build
        self.timeout = timeout
        self.lock = threading.Lock()
        self.value: dict[str, Any] | None = None
        self.error: WorkerSetupError | None = None
        self.is_default = self.is_borrowed = False


class EnvStore:
    """The envs of one process by key; each is built once, on first use, under its own lock."""

    def __init__(self) -> None:
        self._envs: dict[str, _Env] = {}  # the last one that was made the default, or borrowed, comes last
        self._lock = threading.RLock()

    @property
    def default(self) -> str | None:
        """The key of the env that was made the default last and has not been dropped."""
        with self._lock:
            return next((key for key, env in reversed(self._envs.items()) if env.is_default), None)

    def register(
        self, key: str, build: SetupFn, *, default: bool = False, timeout: float | None = None
    ) -> None:
        """Make `build` known under `key`; nothing is built yet."""
        with self._lock:
            entry = self._envs.setdefault(key, _Env(build, timeout))
            if default:
                entry.is_default = True
                self._envs[key] = self._envs.pop(key)

    def get(self, key: str | None, *, in_time: bool = False) -> dict[str, Any]:
        """Return the env of `key`, building it if this is its first use; None gives an empty one.

        `in_time`: within the timeout it was registered with. That is for plain Dask tasks, which can only answer by
        returning: the env is built in a thread of its own, and given up with its stack when the time is over.
        """
        if key is None:
            return {}
        return self._in_time(self._envs[key]) if in_time else self._built(self._envs[key])

    def _built(self, entry: _Env) -> dict[str, Any]:
        with entry.lock:
            if entry.error is not None:
                raise entry.error
            if entry.value is None:
                try:
                    entry.value = build_env(entry.build)
                except WorkerSetupError as error:
                    entry.error = error
                    raise
            return entry.value

    def _in_time(self, entry: _Env) -> dict[str, Any]:
        if entry.timeout is None or entry.value is not None:
            return self._built(entry)
        answer: queue.SimpleQueue[WorkerSetupError | None] = queue.SimpleQueue()

        def build() -> None:
            watch = setup_watch(entry.timeout, lambda text: answer.put(WorkerSetupError(text)))
            with watch, suppress(WorkerSetupError):  # the entry has it
                self._built(entry)
            answer.put(None)

        threading.Thread(target=build, name="env-build", daemon=True).start()
        if (late := answer.get()) is not None:
            raise late
        return self._built(entry)

    def borrow(self, key: str, build: SetupFn, timeout: float | None) -> dict[str, Any]:
        """Return an env without an owner: of those, the last few that were used stay."""
        with self._lock:
            entry = self._envs[key] = self._envs.pop(key, _Env(build, timeout))
            entry.is_borrowed = True
            for old in [each for each, env in self._envs.items() if env.is_borrowed][:-_BORROWED]:
                del self._envs[old]  # a call that is using one holds on to it
        try:
            return self._in_time(entry)
        except WorkerSetupError:
            with self._lock:
                if self._envs.get(key) is entry:
                    self.drop(key)
            raise

    def drop(self, key: str) -> None:
        """Forget an env, so that its memory can go."""
        with self._lock:
            self._envs.pop(key, None)

    def clear(self) -> None:
        """Forget all envs: the process ends, and what they hold open is closed."""
        with self._lock:
            self._envs.clear()


ENVS = EnvStore()


@dataclass(frozen=True)  # with slots it would be pickled in Python, for each run
class Adding:
    """A setup function that adds entries to another's env; what that env holds already stays."""

    build: SetupFn
    entries: dict[str, Any]
    given: str = ""  # `output_dir` as the user wrote it

    def __call__(self) -> dict[str, Any]:
        """Build the env."""
        env, entries = self.build(), dict(self.entries)
        if "output_dir" in entries and self.given:
            entries["output_dir"] = str(seen_as(entries["output_dir"], self.given))
        # anything but a dict is an error, which `build_env` words
        return {**entries, **env} if entries and isinstance(env, dict) else env


def seen_as(folder: str | Path, given: str | Path) -> Path:
    """Return a folder by the path that a user gave, where that leads to it from this process's working directory."""
    from pathlib import Path  # workers start sooner without it

    return Path(given if os.path.abspath(given) == os.path.abspath(folder) else folder)


def check_setup(setup: Any, given: str = "setup_fn") -> None:
    """Check that a setup function can be called without arguments, before anything is started."""
    if setup is None:
        return
    if not callable(setup):
        of_provider = inspect.getattr_static(setup, "build_env_local", None) is not None
        hint = "; of a provider, give its build_env_local, or make_worker_setup_fn()" if of_provider else ""
        raise SignatureError(f"{given} must be a function without arguments, not {brief(setup, 100)}{hint}")
    try:
        signature = inspect.signature(setup)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind()
    except TypeError as error:
        name = name_of(setup)
        raise SignatureError(
            f"{given} is called without arguments, and {name}: {error}; give it what it needs by "
            f"functools.partial({name}, ...)"
        ) from None


def build_env(build: SetupFn) -> dict[str, Any]:
    """Call a provider's or user's setup function and check what it returns."""
    try:
        env = build()
    except (WorkerSetupError, KeyboardInterrupt, TimeUp):
        raise
    except BaseException as error:  # SystemExit too: a provider must not end its worker quietly
        _, message, text = describe_error(error)
        raise WorkerSetupError(
            f"the env could not be built: {type(error).__name__}: {message}\n\n{text}"
        ) from error
    if not isinstance(env, dict):
        hint = ": is a `return` missing?" if env is None else ""
        raise EnvTypeError(
            f"{_builder(build)} must return a dict of env entries, and it returned {type(env).__name__}: "
            f"{brief(env)}{hint}"
        )
    wrong = [k for k in env if not isinstance(k, str)]
    if wrong:
        raise EnvTypeError(
            f"the env's keys must be strings (they are matched to parameter names), and {wrong[0]!r} is not"
        )
    return env


def _builder(build: Any) -> str:
    if isinstance(build, Adding):
        return _builder(build.build)
    if isinstance(named := own_attribute(build, "builds"), str):  # the default of a provider
        return named
    given = build.args[:1] if isinstance(build, functools.partial) else ()
    # a provider that builds in this process
    if given and inspect.getattr_static(given[0], "build_env_local", None) is not None:
        return f"{type(given[0]).__qualname__}.build_env_local"
    return name_of(build) if inspect.ismethod(build) else f"{name_of(build)} as setup_fn"


class TimeUp(BaseException):
    """Raised in a builder whose time is over, with the words for it.

    Not an Exception, so that the builder's own `except Exception` lets it pass.
    """


@contextmanager
def setup_watch(timeout: float | None, report: Callable[[str], object]) -> Iterator[None]:
    """Call `report` with words, and the builder's current stack, when a block has not built its env in time.

    A thread cannot be interrupted from outside, so the report is the way out: the driver gives
    up on the worker, which is then killed with its cluster. It is over when the block is left.
    """
    if timeout is None:
        yield
        return
    builder, over = threading.get_ident(), threading.Event()

    def watch(timeout: float) -> None:
        clock, pause = AwakeClock(), min(timeout / 10, _MOST_PAUSE)
        while not over.wait(pause):
            if clock.look(pause) >= timeout:
                report(setup_timeout_message(timeout, sys._current_frames().get(builder)))
                return

    thread = threading.Thread(target=watch, args=(timeout,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def setup_timeout_message(timeout: float, frame: FrameType | None) -> str:
    """Word the error of an env that was not ready in time, with what the provider or `setup_fn` has called."""
    of_ours = "espnet3.parallel.env.", "espnet3.parallel.env_provider"
    stack = (frame and stack_text(frame, of_ours)) or "(in this package)"
    return (
        f"the env was not built within setup_timeout = {timeout:g} s (raise it in the `parallel` block "
        f"if loading really takes longer); at {time.strftime('%H:%M:%S')} the provider was here:\n\n{stack}"
    )


def name_worker(worker: object) -> None:
    """Set the variable in a worker's process; of several workers in one process the last one's is there."""
    os.environ[_NAME] = str(worker)


def forget_worker(worker: object) -> None:
    """Remove the variable where it is this worker's: its process goes on without it."""
    if os.environ.get(_NAME) == str(worker):
        del os.environ[_NAME]
