"""Which env entries a function is given, and the envs that live in this process.

An env is a dict built once per process (a provider's `build_env_local`, a `setup_fn`). Its
entries reach a function by name: a parameter that the caller left open and the env holds.
"""

from __future__ import annotations

import functools
import inspect
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from espnet3.parallel.errors import EnvConflictError, EnvTypeError, SignatureError, WorkerSetupError

SetupFn = Callable[[], dict[str, Any]]


def name_of(func: Callable[..., Any]) -> str:
    """Return a function's name for messages."""
    return getattr(func, "__qualname__", None) or getattr(func, "__name__", None) or repr(func)


def bind(
    func: Callable[..., Any],
    env: Mapping[str, Any],
    kwargs: Mapping[str, Any] | None = None,
    n_positional: int = 1,
    strict: bool = True,
) -> Callable[..., Any]:
    """Fix what the caller and the env give by name; the positional arguments stay open.

    Args:
        func: The function to be called per item.
        env: This process's env.
        kwargs: Keywords the caller gave for every item.
        n_positional: How many positional arguments each call will bring; their names are not
            injected.
        strict: Check that nothing required is left open.

    Returns:
        A callable of the positional arguments alone.

    Raises:
        EnvConflictError: A keyword is both in `kwargs` and in the env.
        SignatureError: A required parameter is in neither, or a keyword fits no parameter.
    """
    kwargs = dict(kwargs or {})
    both = sorted(set(kwargs) & set(env))
    if both:
        names = ", ".join(repr(n) for n in both)
        raise EnvConflictError(
            f"{name_of(func)}: {names} given as a keyword and also a name of the worker env; "
            "rename the keyword, or drop it and let the env supply it"
        )
    try:
        parameters = list(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature takes no names from an env
        return functools.partial(func, **kwargs) if kwargs else func
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = {p.name for p in positional[:n_positional]}
    by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    open_names = any(p.kind is p.VAR_KEYWORD for p in parameters)
    accepted = by_name - taken
    injected = {k: v for k, v in env.items() if k in accepted or (open_names and k not in taken)}
    given = {**injected, **kwargs}
    if strict:
        _check(func, parameters, positional[n_positional:], taken, given, env, open_names)
    return functools.partial(func, **given) if given else func


def _check(
    func: Callable[..., Any],
    parameters: list[inspect.Parameter],
    rest: list[inspect.Parameter],
    taken: set[str],
    given: Mapping[str, Any],
    env: Mapping[str, Any],
    open_names: bool,
) -> None:
    left = rest + [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    missing = [p.name for p in left if p.default is p.empty and p.name not in given]
    if missing:
        names = ", ".join(repr(n) for n in missing)
        has = ", ".join(repr(k) for k in env) or "nothing"
        raise SignatureError(
            f"{name_of(func)} needs {names}, which the env does not hold (it holds: {has}); "
            "return it from the provider or setup_fn, pass it as a keyword, or give it a default"
        )
    known = {p.name for p in parameters}
    unknown = [k for k in given if k not in known] if not open_names else []
    clash = [k for k in given if k in taken]
    if unknown or clash:
        names = ", ".join(repr(k) for k in (unknown or clash))
        why = "is not a parameter of it" if unknown else "is already bound by the item"
        raise SignatureError(f"{name_of(func)} was given the keyword {names}, which {why}")


# --- envs of this process -------------------------------------------------------------------------


class _Env:
    def __init__(self, build: SetupFn, timeout: float | None) -> None:
        self.build = build
        self.timeout = timeout
        self.lock = threading.Lock()
        self.value: dict[str, Any] | None = None
        self.error: WorkerSetupError | None = None


class EnvStore:
    """The envs of one process by key; each is built once, on first use, under its own lock."""

    def __init__(self) -> None:
        self._envs: dict[str, _Env] = {}
        self._lock = threading.Lock()
        self.default: str | None = None

    def register(
        self, key: str, build: SetupFn, *, default: bool = False, timeout: float | None = None
    ) -> None:
        """Make `build` known under `key`; nothing is built yet."""
        with self._lock:
            if key not in self._envs:
                self._envs[key] = _Env(build, timeout)
            if default:
                self.default = key

    def get(self, key: str | None) -> dict[str, Any]:
        """Return the env of `key`, building it if this is its first use; None gives an empty one.

        Raises:
            WorkerSetupError: If it cannot be built; remembered, so it is not tried per item.
        """
        if key is None:
            return {}
        with self._lock:
            entry = self._envs[key]
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

    def get_in_time(self, key: str | None) -> dict[str, Any]:
        """As `get`, within the timeout the env was registered with.

        For plain Dask tasks, which can only answer by returning: the env is built in a thread of
        its own, and given up with its stack when the time is over.
        """
        with self._lock:
            entry = self._envs[key] if key is not None else None
        if entry is None or entry.timeout is None or entry.value is not None:
            return self.get(key)
        answer: queue.Queue[Any] = queue.Queue()

        def build() -> None:
            with SetupWatch(entry.timeout, lambda text: answer.put(WorkerSetupError(text))):
                try:
                    answer.put(self.get(key))
                except WorkerSetupError as error:
                    answer.put(error)

        threading.Thread(target=build, name="env-build", daemon=True).start()
        first = answer.get()
        if isinstance(first, WorkerSetupError):
            raise first
        return first  # type: ignore[no-any-return]  # the env, put above

    def drop(self, key: str) -> None:
        """Forget an env, so that its memory can go."""
        with self._lock:
            self._envs.pop(key, None)
            if self.default == key:
                self.default = None


ENVS = EnvStore()


def build_env(build: SetupFn) -> dict[str, Any]:
    """Call a provider's or user's setup function and check what it returns.

    Raises:
        EnvTypeError: It returned something that is not a dict.
        WorkerSetupError: It raised; the cause is the original exception.
    """
    try:
        env = build()
    except (WorkerSetupError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise _not_built(error) from error
    except SystemExit as error:  # a provider must not end its worker quietly
        raise _not_built(error) from error
    if not isinstance(env, dict):
        raise EnvTypeError(
            f"a provider or setup_fn must return a dict of env entries, and this one returned "
            f"{type(env).__name__}: {env!r:.200}"
        )
    wrong = [k for k in env if not isinstance(k, str)]
    if wrong:
        raise EnvTypeError(
            f"the env's keys must be strings (they are matched to parameter names), and {wrong[0]!r} is not"
        )
    return env


def _not_built(error: BaseException) -> WorkerSetupError:
    return WorkerSetupError(
        f"the env could not be built: {type(error).__name__}: {error}\n\n{traceback.format_exc()}"
    )


class SetupWatch:
    """Calls `report` with the builder's current stack when an env is not built in time.

    A thread cannot be interrupted from outside, so the report is the way out: the driver gives
    up on the worker, which is then killed with its cluster.
    """

    def __init__(self, timeout: float | None, report: Callable[[str], None]) -> None:
        self.timeout = timeout
        self._report = report
        self._thread = threading.get_ident()
        self._timer: threading.Timer | None = None

    def __enter__(self) -> SetupWatch:
        if self.timeout is not None:
            self._timer = threading.Timer(self.timeout, self._fire)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        frame = sys._current_frames().get(self._thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(its thread has ended)"
        self._report(setup_timeout_message(self.timeout or 0.0, stack))


def setup_timeout_message(timeout: float, stack: str) -> str:
    """Word the error of an env that was not ready in time."""
    return (
        f"the env was not built within setup_timeout = {timeout:g} s (raise it in the `parallel` block "
        f"if loading really takes longer); at {time.strftime('%H:%M:%S')} the provider was here:\n\n{stack}"
    )


# --- plain Dask calls -----------------------------------------------------------------------------


class EnvCall:
    """A function that finds its env where it runs; what `wrap_func_with_worker_env` returns.

    Args:
        func: The user's function.
        key: Env to use; None means the one registered last in the process it runs in.
        build: How to build that env, where the process may not know it yet.
        given: Keywords for `func` that must not be taken for options of Dask's own `submit`.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        key: str | None = None,
        build: SetupFn | None = None,
        given: dict[str, Any] | None = None,
    ) -> None:
        self.func = func
        self.key = key
        self.build = build
        self.given = given or {}
        functools.update_wrapper(self, func, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with this process's env."""
        if self.key is not None and self.build is not None:
            ENVS.register(self.key, self.build)
        broken: WorkerSetupError | None = None
        try:
            env = ENVS.get_in_time(self.key if self.key is not None else ENVS.default)
        except WorkerSetupError as error:
            broken = _portable(error)
        if broken is not None:  # raised out here: the original would travel along as its context
            raise broken
        return bind(self.func, env, {**self.given, **kwargs}, len(args), strict=False)(*args)

    def __reduce__(self) -> Any:
        return EnvCall, (self.func, self.key, self.build, self.given)


def _portable(error: WorkerSetupError) -> WorkerSetupError:
    """Return an error without the cause, where that cannot be pickled; the message holds it in words."""
    import cloudpickle

    copy = type(error)(*error.args)
    try:
        cloudpickle.loads(cloudpickle.dumps(error.__cause__))
    except Exception:  # user classes may raise anything while being pickled
        return copy
    copy.__cause__ = error.__cause__
    return copy


def wrap_func_with_worker_env(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return `func` with the worker's env injected by name when it is called there.

    Args:
        func: Any callable; one that is wrapped already is returned as it is.

    Returns:
        A picklable callable. A keyword the caller gives that the env also holds raises
        `EnvConflictError`; a name bound by a positional argument is simply not injected.
    """
    return func if isinstance(func, EnvCall) else EnvCall(func)
