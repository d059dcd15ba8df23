"""Every exception this package raises on purpose.

    ParallelError
    ├── ConfigError              (ValueError)    the `parallel` block or an argument is wrong
    │   └── NoOutputDirError     (RuntimeError)  a runner that writes files has no folder for them
    ├── MissingPackageError      (ImportError, RuntimeError)  a backend's package is not installed
    ├── SignatureError           (TypeError)     forward/func does not fit what it would be given
    ├── EnvConflictError         (ValueError)    a keyword is given by the caller and by the env
    ├── BatchLengthError         (ValueError)    batch_forward returned another number of results
    ├── WorkerSetupError         (RuntimeError)  the env could not be built on a worker
    │   └── EnvTypeError         (ValueError)    it was built, and is not a dict
    ├── ItemError                (RuntimeError)  one item failed and on_error is "raise"
    │   └── PoisonItemError                      one item ended its worker process
    ├── TooManyFailuresError     (RuntimeError)  max_failures was passed
    ├── NoWorkersError           (RuntimeError)  no worker came, or none is left
    │   └── SubmissionError                      the scheduler refused a job
    └── LedgerError              (RuntimeError)  about a run folder; its own tree is in ledger/errors.py

The second base lets code that only knows the standard library's types catch them too.
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from espnet3.parallel.messages import masked, printable

if TYPE_CHECKING:
    from espnet3.parallel.records import ItemFailure

_P = ParamSpec("_P")
_T = TypeVar("_T")
_MOST_CAUSES = 10
_NO_ANSWER = r"(?i)did not answer|tim(?:ed|e) ?out|no response|connection (?:reset|closed|lost)|broken pipe"
# libraries that call this package's code back: their frames say as little as ours
_CARRIERS = sys.stdlib_module_names | {
    *("asyncssh", "cloudpickle", "dask", "dask_cuda", "dask_jobqueue", "dask_kubernetes", "distributed"),
    *("kr8s", "tornado"),
}


class ParallelError(Exception):
    """Base of all errors raised by `espnet3.parallel`; secrets and control characters in their text are masked."""

    def __str__(self) -> str:
        return printable(masked(self._espnet3_text()))

    def _espnet3_text(self) -> str:
        return super().__str__()


class ConfigError(ParallelError, ValueError):
    """A `parallel` block or an argument is wrong; the message says where, the value and the fix.

    Attributes:
        problems: Each problem of a block, beginning with its key; empty for other errors.
    """

    problems: tuple[str, ...] = ()


class NoOutputDirError(ConfigError, RuntimeError):
    """A runner writes files of its own, and was given no `output_dir`."""


class MissingPackageError(ParallelError, ImportError, RuntimeError):
    """A backend needs a package that is not installed; the message holds the `pip install` line."""


class SignatureError(ParallelError, TypeError):
    """A function's parameters do not fit what the env and the caller would give it."""


class EnvConflictError(ParallelError, ValueError):
    """A keyword given by the caller is also a name of the worker env."""


class BatchLengthError(ParallelError, ValueError):
    """`batch_forward` returned another number of results than it was given indices."""


class WorkerSetupError(ParallelError, RuntimeError):
    """The env could not be built in a worker process (or in this one).

    The message holds the worker's traceback; the `__cause__` is the original exception, if it can be pickled.
    """


class EnvTypeError(WorkerSetupError, ValueError):
    """A provider or `setup_fn` returned something that is not a dict."""


class ItemError(ParallelError, RuntimeError):
    """One item failed in a run with `on_error="raise"`.

    Attributes:
        failure: The `ItemFailure` record of the item.
        index: The failed index, as the caller gave it.
        worker: The worker that ran it.

    The original exception is the `__cause__`.
    """

    def __init__(self, failure: ItemFailure) -> None:
        super().__init__(failure)
        self.failure = failure
        self.index = failure.index
        self.worker = failure.worker

    def _espnet3_text(self) -> str:
        f = self.failure
        again = f" after {f.attempts} attempts" if f.attempts > 1 else ""
        return f"{f.name} failed {f.place}{again}: {f.error_type}: {f.message}"


class PoisonItemError(ItemError):
    """One item ended its worker process: a crash, not an exception of the item.

    The second such death raises it. In a run with an `output_dir` one is enough, if the process ended by itself (a
    segmentation fault, an exit).
    """


class TooManyFailuresError(ParallelError, RuntimeError):
    """More items failed than `max_failures` allows.

    Attributes:
        failures: For each type of error in this session, the number of items and the first one's record.
    """

    def __init__(self, message: str, failures: dict[str, tuple[int, ItemFailure]] | None = None) -> None:
        super().__init__(message)
        self.failures = dict(failures or {})


class NoWorkersError(ParallelError, RuntimeError):
    """No worker connected within `start_timeout`, or every worker is gone for good."""


class SubmissionError(NoWorkersError):
    """A scheduler's command failed, or its answer tells no job.

    Attributes:
        command: The command line.
        exit_code: Its exit code; None if it could not be started, or did not end in time.
        stderr: Its error output.
    """

    def __init__(self, command: str, exit_code: int | None, stderr: str, hint: str = "") -> None:
        super().__init__(command, exit_code, stderr, hint)
        self.command = command
        self.exit_code = exit_code
        self.stderr = stderr
        self.hint = hint

    @property
    def may_have_queued(self) -> bool:
        """Whether the scheduler may have taken a job, and only its answer was lost."""
        return self.exit_code == 0 or re.search(_NO_ANSWER, self.stderr) is not None

    def _espnet3_text(self) -> str:
        job = "a job may have been queued" if self.may_have_queued else "no job was queued"
        how = f"ended with exit code {self.exit_code}"
        if self.exit_code is None:
            how = "was ended" if self.may_have_queued else "could not be started"
        printed = self.stderr.strip() or "(it printed nothing)"
        hint = f"\n{self.hint}" if self.hint else ""
        return f"{job} by {self.command!r}, which {how}:\n{printed}{hint}"


# --- an item's error is also of the type that the item raised ---------------------------------------

# `raise` in a generator turns these two into another error
_NOT_TO_RAISE = (StopIteration, StopAsyncIteration)
# Their fields belong to their message, and a traceback would print them beside ours
_OF_THE_MESSAGE = (SyntaxError, NameError, AttributeError)
_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_OWN = frozenset({"failure", "index", "worker", "args", "__notes__"})
_MOST_TYPES = 256  # classes kept: a program may make exception types without end
_KIND = "_espnet3_kind"


def item_error_of(error: BaseException, failure: ItemFailure) -> ItemError:
    """Return the `ItemError` of an item, caused by the exception that the item raised.

    It is also an instance of the exception's type, with its attributes, unless that is not an `Exception` or cannot be
    combined with another class (other C fields or `__slots__`, attributes that cannot be set, ...).
    """
    kind = getattr(type(error), _KIND, type(error))  # of an item whose own run failed
    found = ItemError(failure)
    alone = issubclass(ItemError, kind) or issubclass(kind, (ItemError, *_NOT_TO_RAISE))
    if issubclass(kind, Exception) and not alone:
        with suppress(Exception):  # a user's class may raise anything when another derives from it
            found = _rebuilt(kind, failure, _fields(error), dict(vars(error)))
    found.__cause__ = error
    return found


@lru_cache(_MOST_TYPES)
def _combined(kind: type[Any]) -> Any:
    return type(ItemError.__name__, (ItemError, kind), {**_LOOKS, _KIND: kind})


def _reduced(error: ItemError, _: object = None) -> Any:
    attributes = dict(vars(error))
    state = {"__notes__": error.__notes__} if "__notes__" in attributes else None
    return _rebuilt, (getattr(type(error), _KIND), error.failure, _fields(error), attributes), state


# Attributes that an `ItemError` takes from its own class, whatever the other one has
_LOOKS: dict[str, Any] = {
    "__doc__": ItemError.__doc__,
    "__module__": ItemError.__module__,
    "__qualname__": ItemError.__qualname__,
    "__str__": ItemError.__str__,
    "__repr__": BaseException.__repr__,
    "__reduce_ex__": _reduced,
    "__reduce__": _reduced,  # called by tblib, by which distributed pickles exceptions
    "__eq__": object.__eq__,
    "__hash__": object.__hash__,
}


def _fields(error: BaseException) -> dict[str, Any]:
    if isinstance(error, _OF_THE_MESSAGE):
        return {}
    names = {
        name
        for base in type(error).__mro__
        if base not in (BaseException, Exception, object)
        for name, one in vars(base).items()
        if isinstance(one, _FIELDS) and not name.startswith("__")
    }
    return {name: getattr(error, name) for name in sorted(names - _OWN) if hasattr(error, name)}


def _rebuilt(
    kind: type[Any], failure: ItemFailure, fields: dict[str, Any], attributes: dict[str, Any]
) -> ItemError:
    error: ItemError = _combined(kind)(failure)  # type: ignore[arg-type]  # mypy takes a class for an instance
    for name, value in fields.items():
        with suppress(AttributeError, TypeError):  # a read-only field, or one that refuses None
            setattr(error, name, value)
    vars(error).update({name: value for name, value in attributes.items() if name not in _OWN})
    if isinstance(error, SyntaxError):
        error.msg = ItemError.__str__(error)  # a traceback prints this instead of the text
    return error


@contextmanager
def of_options(env: str) -> Iterator[None]:
    """Make what the class of a cluster raises an error about the options of a block that it was given."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ImportError, RuntimeError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(error, ParallelError) or isinstance(cause, RuntimeError):  # a worker was killed, say
            raise
        said = repr(cause) if isinstance(cause, LookupError) else cause
        raise ConfigError(f"options of {env}: {said}") from error


# --- how they are shown ----------------------------------------------------------------------------


def explained(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Remove this package's frames from errors that need no traceback of ours.

    These are its own errors, a TypeError, ValueError or AttributeError that it raises, errors of code that it calls for
    the user, those that a note of `say_where` explains, and Ctrl-C.
    """

    @wraps(call)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return call(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            _remove_our_frames(error)
            raise

    return called


def explained_items(results: Iterator[_T]) -> Generator[_T, None, None]:
    """Yield results; errors between them are raised as by `explained`."""
    try:
        yield from results
    except (Exception, KeyboardInterrupt) as error:
        _remove_our_frames(error)
        raise


def _remove_our_frames(error: BaseException) -> None:
    # those of other code stay, such as a provider's; an error about workers loses a cause whose words it repeats
    if os.environ.get("ESPNET3_TRACEBACK") == "full" or not _says_enough(error):
        return
    one = error
    one.__traceback__ = _others(one.__traceback__)
    for _ in range(_MOST_CAUSES):
        if (cause := one.__cause__) is None:
            break
        of_workers = isinstance(one, NoWorkersError)
        cause.__traceback__ = _others(cause.__traceback__, ours=of_workers)
        if of_workers and cause.__traceback__ is None and str(cause) in str(one):
            one.__cause__ = cause.__cause__
        else:
            one = cause
    if sys.version_info < (3, 11):  # whose bare `raise` brings the removed frames back
        raise error


def say_where(error: BaseException, note: str) -> None:
    """Explain an error that is not ours to the caller, by a note."""
    add_note(error, note)
    with suppress(AttributeError):  # its class has slots, and its frames stay
        error._espnet3_explained = True  # type: ignore[attr-defined]  # a mark, read below


def add_note(error: BaseException, note: str) -> None:
    """Attach a note as Python 3.11 does; Python 3.10 keeps it without printing it."""
    own = vars(error)  # a user's class may raise anything at another name
    if not isinstance(own.get("__notes__"), list):
        own["__notes__"] = []
    own["__notes__"].append(printable(masked(note)))


def _others(trace: TracebackType | None, *, ours: bool = False) -> TracebackType | None:
    others = list[TracebackType]()
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        ours = is_ours(module) or (ours and module.partition(".")[0] in _CARRIERS)
        if not ours:
            others.append(trace)
        trace = trace.tb_next
    for each in reversed(others):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace


def is_ours(module: str) -> bool:
    """Return whether a module is of this package, except for `testing`, which users' tests run."""
    return f"{module}.".startswith("espnet3.parallel.") and not module.startswith("espnet3.parallel.testing.")


def _says_enough(error: BaseException) -> bool:
    if isinstance(error, (ParallelError, KeyboardInterrupt)) or "_espnet3_explained" in vars(error):
        return True
    of_user, is_enough, trace = False, False, error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if is_ours(module):
            of_user, is_enough = False, isinstance(error, (TypeError, ValueError, AttributeError))
        else:
            of_user = is_enough = of_user or module.partition(".")[0] not in _CARRIERS
        trace = trace.tb_next
    return is_enough
