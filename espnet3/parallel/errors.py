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
from collections.abc import Callable, Generator, Iterator
from functools import wraps
from opcode import opmap
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from espnet3.parallel.messages import masked, printable

if TYPE_CHECKING:
    from espnet3.parallel.records import ItemFailure

_P = ParamSpec("_P")
_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)
_RAISE = opmap["RAISE_VARARGS"]
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
    if trace is None or not is_ours(trace.tb_frame.f_globals.get("__name__", "")):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE
