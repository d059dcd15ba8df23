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
from contextlib import suppress
from functools import lru_cache, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from espnet3.parallel.messages import masked, printable

if TYPE_CHECKING:
    from espnet3.parallel.records import ItemFailure

_P = ParamSpec("_P")
_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)
_MOST_CAUSES = 10
_NO_ANSWER = re.compile(
    r"did not answer|tim(?:ed|e) ?out|no response|connection (?:reset|closed|lost)|broken pipe", re.IGNORECASE
)
# what runs this package's own code for it: their frames between two of ours say as little as ours
_CARRIERS = sys.stdlib_module_names | {
    "asyncssh",
    "cloudpickle",
    "dask",
    "dask_cuda",
    "dask_jobqueue",
    "dask_kubernetes",
    "distributed",
    "kr8s",
    "tornado",
}


class ParallelError(Exception):
    """Base of all errors raised by `espnet3.parallel`; their text has no secrets, and nothing that a terminal obeys."""

    def __str__(self) -> str:
        return printable(masked(self._espnet3_text()))

    def _espnet3_text(self) -> str:
        return super().__str__()


class ConfigError(ParallelError, ValueError):
    """A `parallel` block or an argument is wrong; the message says where, the value and the fix.

    Attributes:
        problems: Each problem of a block, beginning with its key; empty where the error is about something else.
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

    The message holds the worker's traceback; the original exception, where it can be pickled, is
    the `__cause__`.
    """


class EnvTypeError(WorkerSetupError, ValueError):
    """A provider or `setup_fn` returned something that is not a dict."""


class ItemError(ParallelError, RuntimeError):
    """One item failed and the run was told to stop (`on_error="raise"`).

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

    It is raised at the second such death. In a run with an `output_dir` one is enough, if the process ended by
    itself (a segmentation fault, an exit) and was not killed from outside.
    """


class TooManyFailuresError(ParallelError, RuntimeError):
    """More items failed than `max_failures` allows.

    Attributes:
        failures: What failed in this session, by the error's type: how many items, and the first one's record.
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
        exit_code: Its exit code; None where it could not be started, or did not end in time.
        stderr: What it printed as its error.
    """

    def __init__(self, command: str, exit_code: int | None, stderr: str, hint: str = "") -> None:
        super().__init__(command, exit_code, stderr, hint)
        self.command = command
        self.exit_code = exit_code
        self.stderr = stderr
        self.hint = hint

    @property
    def may_have_queued(self) -> bool:
        """Whether the scheduler may have taken a job all the same: it was its answer that was lost."""
        return self.exit_code == 0 or _NO_ANSWER.search(self.stderr) is not None

    def _espnet3_text(self) -> str:
        how = "could not be started" if self.exit_code is None else f"ended with exit code {self.exit_code}"
        if self.may_have_queued:
            job, how = "a job may have been queued", how if self.exit_code is not None else "was ended"
        else:
            job = "no job was queued"
        printed = self.stderr.strip() or "(it printed nothing)"
        hint = f"\n{self.hint}" if self.hint else ""
        return f"{job} by {self.command!r}, which {how}:\n{printed}{hint}"


# --- an item's error is also of the type that the item raised -----------------------------------------

# `raise` in a generator turns these two into another error
_NOT_TO_RAISE = (StopIteration, StopAsyncIteration)
# Fields that say more about the message, which a traceback would print in place of ours or beside it
_OF_THE_MESSAGE = (SyntaxError, NameError, AttributeError)
_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_OWN = frozenset({"failure", "index", "worker", "args", "__notes__"})
_MOST_TYPES = 256  # classes kept: a program that makes exception types as it goes must not grow by it
_KIND = "_espnet3_kind"


def item_error_of(error: BaseException, failure: ItemFailure) -> ItemError:
    """Return an item's `ItemError` for the exception it raised; that is its cause.

    It is an instance of the exception's type too, with its attributes, unless the type is not an `Exception`, or cannot
    be combined with another class (other C fields or `__slots__`, attributes that cannot be set, ...).
    """
    kind = getattr(type(error), _KIND, type(error))  # of an item in whose own run an item has failed
    found = ItemError(failure)
    alone = issubclass(ItemError, kind) or issubclass(kind, (ItemError, *_NOT_TO_RAISE))
    if issubclass(kind, Exception) and not alone:
        with suppress(Exception):  # user classes may raise anything when one derives from them
            found = _rebuilt(kind, failure, _fields(error), dict(vars(error)))
    found.__cause__ = error
    return found


@lru_cache(_MOST_TYPES)
def _combined(kind: type[Any]) -> Any:
    return type(ItemError.__name__, (ItemError, kind), {**_LOOKS, _KIND: kind})


def _reduced(error: ItemError, _: object = None) -> Any:
    attributes = {name: value for name, value in vars(error).items() if name not in _OWN}
    state = {"__notes__": error.__notes__} if "__notes__" in vars(error) else None
    return _rebuilt, (getattr(type(error), _KIND), error.failure, _fields(error), attributes), state


# What both classes may have, and an `ItemError` is to have as it always has it.
_LOOKS: dict[str, Any] = {
    "__doc__": ItemError.__doc__,
    "__module__": ItemError.__module__,
    "__qualname__": ItemError.__qualname__,
    "__str__": ItemError.__str__,
    "__repr__": BaseException.__repr__,
    "__reduce_ex__": _reduced,
    "__reduce__": _reduced,  # what tblib asks for, which distributed has pickle exceptions of the time of its import
    "__eq__": object.__eq__,
    "__hash__": object.__hash__,
}


def _fields(error: BaseException) -> dict[str, Any]:
    """Return what an exception's constructor has put into fields that are in no `__dict__`: errno, filename, ..."""
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
    """Make the error of an item; also where it is unpickled."""
    error: ItemError = _combined(kind)(failure)  # type: ignore[arg-type]  # mypy takes a class for an instance
    for name, value in fields.items():
        with suppress(AttributeError, TypeError):  # one that is read only, or that takes no None
            setattr(error, name, value)
    vars(error).update({name: value for name, value in attributes.items() if name not in _OWN})
    if isinstance(error, SyntaxError):
        error.msg = ItemError.__str__(error)  # a traceback prints this in place of the text
    return error


# --- how they are shown ----------------------------------------------------------------------------


def explained(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Have what a user calls raise errors that explain themselves without the frames of this package.

    These are its own errors, what else it raises on purpose (a TypeError of an argument) or explains in a note
    (`say_where`), and Ctrl-C.
    """

    @wraps(call)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return call(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            if not _says_enough(error):
                raise
            raise without_our_frames(error)  # noqa: B904  the same error

    return called


def explained_items(results: Iterator[_T]) -> Generator[_T, None, None]:
    """Yield results, and raise errors between them as `explained` does."""
    try:
        yield from results
    except (Exception, KeyboardInterrupt) as error:
        if not _says_enough(error):
            raise
        raise without_our_frames(error)  # noqa: B904  the same error


def without_our_frames(error: _E) -> _E:
    """Return an error without the frames of this package, which say nothing to who called it; its causes alike.

    Frames of other code stay, such as those of a provider that has raised it. Of an error about
    workers, a cause that has none and whose words it repeats is left out. With `ESPNET3_TRACEBACK=full` all stay.
    """
    if os.environ.get("ESPNET3_TRACEBACK") == "full":
        return error
    one: BaseException = error
    one.__traceback__ = _others(one.__traceback__)
    for _ in range(_MOST_CAUSES):
        cause = one.__cause__
        if cause is None:
            break
        of_workers = isinstance(one, NoWorkersError)
        cause.__traceback__ = _others(cause.__traceback__, ours=of_workers)
        if of_workers and cause.__traceback__ is None and str(cause) in str(one):
            one.__cause__ = cause.__cause__
        else:
            one = cause
    return error


def say_where(error: BaseException, note: str) -> None:
    """Add a note to an error that is not ours, in words that say to who made the call what is wrong with it."""
    add_note(error, note)
    try:
        error._espnet3_explained = True  # type: ignore[attr-defined]  # a mark, read below
    except AttributeError:  # of a class with slots: its frames are shown
        pass


def add_note(error: BaseException, note: str) -> None:
    """Attach a note as Python 3.11 does; on 3.10 it is kept, though not printed."""
    own = vars(error)  # a class of the user's may answer to any other name, or raise anything
    if not isinstance(own.get("__notes__"), list):
        own["__notes__"] = []
    own["__notes__"].append(printable(masked(note)))


def _others(trace: TracebackType | None, *, ours: bool = False) -> TracebackType | None:
    """Return a traceback without our frames, and without those of what carries them that ours have called."""
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
    """Whether a module of that name is of this package, and no part of it that users' tests run."""
    inside = module == "espnet3.parallel" or module.startswith("espnet3.parallel.")
    return inside and not module.startswith("espnet3.parallel.testing.")


def _says_enough(error: BaseException) -> bool:
    """Whether an error says what is wrong: it is of our classes, we have raised it, or explained it."""
    if isinstance(error, (ParallelError, KeyboardInterrupt)) or "_espnet3_explained" in vars(error):
        return True
    if not isinstance(error, (TypeError, ValueError, AttributeError)):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and is_ours(trace.tb_frame.f_globals.get("__name__", ""))
