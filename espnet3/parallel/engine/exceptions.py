"""An item's exception: as a record, on its way to the driver, and as the caller finally sees it."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from espnet3.parallel.checks import own_attribute
from espnet3.parallel.engine import pickling
from espnet3.parallel.errors import PoisonItemError, add_note, is_ours, item_error_of
from espnet3.parallel.messages import brief, masked, printable
from espnet3.parallel.records import ItemFailure

# raised by users' classes while they are pickled, loaded or shown; a KeyboardInterrupt is the user's own
ANYTHING = (Exception, SystemExit, GeneratorExit)

_MOST_CAUSES = 10  # that travel with an exception
# of cudaGetErrorString, and NVML's of a GPU that is gone; those of one call alone, such as memory, are not among them
_SPOILING = (
    *("uncorrectable ECC error", "uncorrectable NVLink error", "hardware stack error", "device-side assert"),
    *("unspecified launch failure", "illegal memory access", "illegal instruction was encountered"),
    *("misaligned address", "launch timed out and was terminated", "devices are busy or unavailable"),
    *("no CUDA-capable device is detected", "CUDA error: unknown error", "GPU is lost"),
    # the driver's own names, by numba and cuda-python
    *("CUDA_ERROR_ASSERT", "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_HARDWARE_STACK_ERROR"),
    *("CUDA_ERROR_ILLEGAL_", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT"),
    "CUDA_ERROR_MISALIGNED_ADDRESS",
)


def describe_error(error: BaseException) -> tuple[str, str, str]:
    """Return an exception's type name, message and traceback text; secrets in them are masked."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    text = text_of(error)
    below = below_ours(error.__traceback__)
    try:
        trace = "".join(traceback.format_exception(kind, error, below))
    except ANYTHING:  # Python before 3.13 asks for `__notes__`, where a class of the user's may raise
        trace = "".join([*traceback.format_tb(below), f"{name}: {text}\n"])
    return name, masked(text), masked(trace)


def text_of(error: BaseException) -> str:
    """Return an exception's message, as it is."""
    try:
        return str(error)
    except ANYTHING as wrong:
        return f"(message unavailable: its __str__ raised {type(wrong).__name__})"


def below_ours(trace: TracebackType | None) -> TracebackType | None:
    """Cut this package's frames off the start of a traceback, unless it has only those."""
    found = trace
    while found is not None and is_ours(found.tb_frame.f_globals.get("__name__", "")):
        found = found.tb_next
    return found or trace


def let_go(error: BaseException) -> None:
    """Clear this package's frames around an item: they hold the env, and lead back to the exception."""
    trace, frame = error.__traceback__, None
    while trace is not None and is_ours(trace.tb_frame.f_globals.get("__name__", "")):
        frame, trace = trace.tb_frame, trace.tb_next
    while frame is not None and is_ours(frame.f_globals.get("__name__", "")):
        above = frame.f_back
        with suppress(RuntimeError):  # it is still running
            frame.clear()
        frame = above


def stack_text(frame: FrameType, below: tuple[str, ...]) -> str:
    """Format a frame's stack below the modules whose names begin so; "" for a frame of theirs."""
    found = []
    for one, line in traceback.walk_stack(frame):  # the innermost first
        if one.f_globals.get("__name__", "").startswith(below):
            break
        found.append((one, line))
    return "".join(traceback.StackSummary.extract(reversed(found)).format())


def may_be_cudas(error: BaseException) -> bool:
    """Return whether an exception may be CUDA's own: torch.AcceleratorError, cupy's and XLA's, or numba's."""
    return isinstance(error, RuntimeError) or type(error).__name__.startswith(("Cuda", "CUDA"))


def spoilt_cuda(error: BaseException) -> str:
    """Explain an exception after which CUDA is unusable in this process, with its GPUs; "" for any other."""
    if not (may_be_cudas(error) and any(word in text_of(error) for word in _SPOILING)):
        return ""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = "" if seen is None else f" (CUDA_VISIBLE_DEVICES={seen})"
    return (
        f"No CUDA call of this process{gpus} can succeed any more: nvidia-smi on its host, and lines with Xid in its "
        "kernel's log, say whether the GPU is at fault"
    )


def failure_of(
    error: BaseException,
    index: Any,
    attempts: int,
    worker: str,
    cause: str = "error",
    seconds: float | None = None,
) -> ItemFailure:
    """Make the record of a failed item from its exception, in the process where it was raised."""
    name, message, text = describe_error(error)
    message = "\n".join(filter(None, (message, spoilt_cuda(error))))
    return ItemFailure(index, name, message, text, attempts, worker, cause, seconds)


class RemoteTraceback(Exception):  # noqa: N818  not an error of its own: the worker's traceback as a cause
    """Shows the worker's traceback under the exception that came from there."""

    def __str__(self) -> str:
        return printable(masked(f"\n\n{self.args[0]}"))


def pickle_error(error: BaseException | None) -> bytes | None:
    """Pickle an exception with as many of its causes as can be loaded again; None if it cannot."""
    if error is None:
        return None
    let_go(error)
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and len(chain) <= _MOST_CAUSES:
        chain.append(cause)
    for n in range(len(chain), 0, -1):
        with suppress(*ANYTHING):  # the failure record says it in words
            blob = pickling.dumps([_plain(one) for one in chain[:n]])
            pickle.loads(blob)
            return blob
    return None


@dataclass
class _Bare:
    error: BaseException

    def __reduce__(self) -> Any:
        args = tuple(_plain(arg) for arg in self.error.args)
        attributes = {name: value for name, value in vars(self.error).items() if travels(value)}
        return _without_constructor, (type(self.error), args, attributes)


def _plain(value: Any) -> Any:
    if travels(value):
        return value
    if isinstance(value, BaseException):
        return _Bare(value)
    if isinstance(value, (list, tuple)):  # an exception group holds its exceptions in one
        return [_plain(each) for each in value]
    return brief(value, 500)


def travels(value: Any) -> bool:
    """Return whether a value can be pickled, and loaded again."""
    try:
        pickle.loads(pickling.dumps(value))  # many exceptions can be pickled and not loaded
    except ANYTHING:
        return False
    return True


def _without_constructor(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(attributes)
    return error


def load_error(blob: bytes | None, failure: ItemFailure | None = None) -> BaseException | None:
    """Load an exception that a worker pickled, with its causes; where that fails, make one of its record, if any."""
    try:
        error, *causes = pickle.loads(blob or b"")
    except ANYTHING:  # its class cannot be imported here, or has not travelled
        return recorded_error(failure) if failure is not None else None
    for effect, cause in zip([error, *causes], causes, strict=False):
        effect.__cause__ = cause
    for each in _chain(error):
        # Dask has them pickled without columns, so that carets would point anywhere
        each.__traceback__ = None
    return error  # type: ignore[no-any-return]  # pickle_error made the bytes of an exception


def named_error(error: BaseException, failure: ItemFailure | None, position: int) -> BaseException:
    """Return an item's own exception with a note that names the item, as `parallel_*` raise it."""
    if failure is None:
        return error
    if failure.cause == "poison":
        error = PoisonItemError(failure)
    note = f"in item {position} ({brief(failure.index)}), {failure.place}"
    if failure.attempts > 1:
        note += f", tried {failure.attempts} times"
    add_note(error, note)
    show_remote(error, failure)
    return error


def item_error(error: BaseException, failure: ItemFailure | None) -> BaseException:
    """Return the `ItemError` of a failed item, caused by its own exception and of its type too, as runners raise it."""
    if failure is None:  # not an item's: the runner's own mistake, as it is
        return error
    if failure.cause == "poison":
        return PoisonItemError(failure)
    show_remote(error, failure)
    return item_error_of(error, failure)


def recorded_error(failure: ItemFailure) -> BaseException:
    """Make an exception of a record's type, where that is loaded here, with its message."""
    module, _, name = failure.error_type.rpartition(".")
    kind = own_attribute(sys.modules.get(module or "builtins"), name)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(Exception):  # a user's class may raise anything
            return _without_constructor(kind, (failure.message,), {})  # type: ignore[no-any-return]  # of that type
    return RuntimeError(f"{failure.error_type}: {failure.message}")


def show_remote(error: BaseException, failure: ItemFailure) -> None:
    """Show an exception without our frames, and under its first cause the worker's traceback, which has all causes."""
    let_go(error)
    error.__traceback__ = below_ours(error.__traceback__)
    if failure.traceback and error.__traceback__ is None:
        first = _chain(error)[-1]
        if not isinstance(first, RemoteTraceback):
            first.__cause__ = RemoteTraceback(failure.traceback)


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and all(each is not known for known in chain):
        chain.append(each)
        each = each.__cause__ if each.__cause__ is not None or each.__suppress_context__ else each.__context__
    return chain
