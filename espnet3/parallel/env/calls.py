"""A function as a plain Dask task: it finds its env where it runs, and its exception names the call."""

from __future__ import annotations

import functools
import hashlib
import inspect
import pickle
import reprlib
from collections.abc import Callable
from typing import Any

from espnet3.parallel.dask_compat import pickled_as_by_dask
from espnet3.parallel.engine import pickling
from espnet3.parallel.engine.exceptions import RemoteTraceback, describe_error, pickle_error, travels
from espnet3.parallel.env.injection import bind, name_of
from espnet3.parallel.env.store import ENVS, SetupFn
from espnet3.parallel.errors import SignatureError, WorkerSetupError, add_note
from espnet3.parallel.messages import brief
from espnet3.parallel.records import THIS_PROCESS, place_of

# its key, and what makes it in so many seconds where no plugin did
_Env = tuple[str | None, SetupFn | None, float | None]
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


class EnvCall:
    """A function that finds its env where it runs; what `wrap_func_with_worker_env` returns.

    Without a key in `env` it is the env registered last in that process. `given`: keywords for `func` that must not be
    taken for options of Dask's own `submit`.
    """

    def __init__(
        self, func: Callable[..., Any], env: _Env = (None, None, None), given: dict[str, Any] | None = None
    ) -> None:
        self.func = func
        self._env = env
        self._given = given or {}
        functools.update_wrapper(self, func, updated=())
        self.__name__ = name_of(func)  # Dask names the task after it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with this process's env."""
        try:
            return self._bound(args, kwargs)(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: it would end the worker
            lost = self._named(error, args, kwargs)
        raise lost  # out here: the original would travel along as its context

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        key, build, timeout = self._env
        if key is not None and build is not None:
            env = ENVS.borrow(key, build, timeout)
        else:
            env = ENVS.get(key if key is not None else ENVS.default, in_time=True)
        return bind(self.func, env, {**self._given, **kwargs}, len(args))

    def _named(self, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseException:
        from distributed import get_worker

        if isinstance(error, WorkerSetupError):  # no call's own, and it is the same error for all of them
            return portable_setup_error(error)
        try:
            place = place_of(str(get_worker().name))
        except ValueError:  # called directly
            place = place_of(THIS_PROCESS)
        add_note(error, f"in the call {call_text(self.func, args, {**self._given, **kwargs})}, {place}")
        return error if _survives(error) else _Parcel.of(error)

    def in_env(self, key: str) -> EnvCall:
        """Return this call with the env of a key, unless it has one of its own."""
        return EnvCall(self.func, (key, None, None), self._given) if self._env[0] is None else self

    def __reduce__(self) -> Any:
        return _Packed, (pickling.dumps((self.func, self._env, self._given)), self.__name__)

    def __dask_tokenize__(self) -> Any:
        # Dask's own tokens unpickle what was pickled, which overwrites the classes of the caller's script
        return "EnvCall", hashlib.sha256(pickling.dumps((self.func, self._env[0], self._given))).hexdigest()


class _Packed:
    def __init__(self, blob: bytes, name: str) -> None:
        self._blob = blob
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return EnvCall(*pickle.loads(self._blob))(*args, **kwargs)


def wrap_func_with_worker_env(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return `func` with the worker's env injected by name when it is called there.

    Args:
        func: Any callable, classes too, but no coroutine function; one that is wrapped already is
            returned as it is.

    Returns:
        A picklable callable. A keyword the caller gives that the env also holds raises
        `EnvConflictError`; a name bound by a positional argument is simply not injected. An exception
        of `func` is its own, with a note that names the call.

    Raises:
        TypeError: It cannot be called, or is a coroutine function.
    """
    return func if isinstance(func, (EnvCall, _Packed)) else EnvCall(plain_function(func))


def unwrapped(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside an `EnvCall`; any other as it is."""
    if not callable(func):
        raise TypeError(
            f"the first argument must be a function, such as abs and not abs(3), and {brief(func, 100)} is not callable"
        )
    return func.func if isinstance(func, EnvCall) else func


def plain_function(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside an `EnvCall`, or any other that is no coroutine function."""
    func = unwrapped(func)
    if inspect.iscoroutinefunction(func):
        raise SignatureError(
            f"{name_of(func)} is a coroutine function, and items are ordinary calls: pass "
            "`lambda x: asyncio.run(func(x))`, or submit it through a client of get_client that has no env"
        )
    return func


def setup_key(setup: SetupFn | None) -> str | None:
    """Return the key of a submitted call's env: by content, as a function that is made again for each call is the same.

    None where the call brings no setup of its own.
    """
    return f"submit-{hashlib.sha256(pickling.dumps(setup)).hexdigest()}" if setup is not None else None


def call_text(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Word a call for a note, long arguments shortened."""
    given = [_SHORT.repr(arg) for arg in args]
    given += [f"{name}={_SHORT.repr(value)}" for name, value in kwargs.items()]
    return f"{name_of(func)}({', '.join(given)})"


def _survives(error: BaseException) -> bool:
    # else Dask alone would lose it, or its notes
    if not isinstance(error, Exception):  # SystemExit ends the event loop that gathers it
        return False
    try:
        back = pickle.loads(pickled_as_by_dask(error))
    except Exception:  # user classes may raise anything while being pickled
        return False
    return type(back) is type(error) and vars(back).get("__notes__") == error.__notes__


class _Parcel(Exception):  # noqa: N818  not an error of its own
    def __init__(self, blob: bytes, text: str) -> None:
        super().__init__(text)
        self._blob = blob

    @classmethod
    def of(cls, error: BaseException) -> BaseException:
        said, text = f"{type(error).__qualname__}: {error}", describe_error(error)[2]
        blob = pickle_error(error) if isinstance(error, Exception) else None
        sent = RuntimeError(said) if blob is None else cls(blob, said[:1000])
        for note in error.__notes__ if blob is None else ():
            add_note(sent, note)
        sent.__cause__ = RemoteTraceback(text)
        return sent

    def __reduce__(self) -> Any:
        return _unpack, (self._blob,)


def _unpack(blob: bytes) -> BaseException:
    error: BaseException = pickle.loads(blob)[0]
    return error


def portable_setup_error(error: WorkerSetupError) -> WorkerSetupError:
    """Return an error without the cause, where that cannot be pickled; the message holds it in words."""
    copy = type(error)(*error.args)
    if travels(error.__cause__):
        copy.__cause__ = error.__cause__
    return copy
