"""Tell whether this thread runs items for a driver, or imports a module for one."""

from __future__ import annotations

import linecache
import threading
from collections.abc import Callable
from inspect import currentframe
from types import FrameType
from typing import Any

from espnet3.parallel.errors import ConfigError

_LOADERS = ("exec_module", "load_module")  # the names that the import system calls them by
# modules that import a user's modules for a driver: in a worker, in a detached job, and in an observer of one
_FOR_A_DRIVER = (
    "espnet3.parallel.pilots.worker",
    "espnet3.parallel.env.calls",
    "espnet3.parallel.detached.job_spec",
    "espnet3.parallel.detached.job.",
    "distributed.",
)


class RunReachedError(BaseException):
    """Ends the loading of a script without a `__main__` guard where it runs something: its classes stand above.

    Not an Exception, so that the script's own `except Exception` does not swallow it.
    """


class _Thread(threading.local):
    depth = 0  # of items that run for a driver
    # as for `loop.on_a_worker`
    report: Callable[[Any], None] | None = None
    leave: Callable[[Any], None] | None = None
    values: list[Any] | None = None  # results so far of the outermost `run_items`
    loop: Any = None  # of the innermost `run_items`


THREAD = _Thread()
SCRIPTS = set[str]()  # names of the modules that are scripts, loaded for their classes


def inside_item() -> bool:
    """Return whether this thread runs items for a driver: runs within them happen right here."""
    return THREAD.depth > 0


def refuse_in_import() -> None:
    """Refuse to run anything from the top level of a module that is imported for a driver.

    Each worker of such a run would import the module, and so begin another one: processes without end.
    """
    frame = currentframe()
    top: FrameType | None = None
    while frame is not None:
        if top is None and frame.f_code.co_name == "<module>":
            # importlib has a frame of its own between
            callers = (frame.f_back, frame.f_back and frame.f_back.f_back)
            if any(each is not None and each.f_code.co_name in _LOADERS for each in callers):
                top = frame
        elif top is not None and str(frame.f_globals.get("__name__")).startswith(_FOR_A_DRIVER):
            break
        frame = frame.f_back
    if frame is None or top is None:
        return
    name, file = top.f_globals.get("__name__"), top.f_code.co_filename
    if name in SCRIPTS:
        raise RunReachedError
    line = linecache.getline(file, top.f_lineno).strip()
    raise ConfigError(
        f"the module {name} runs something when it is imported ({file}, line {top.f_lineno}: {line}), and each worker "
        "or job that imports it would run that again, without end: put the line into a function, or under "
        "`if __name__ == '__main__':`"
    )
