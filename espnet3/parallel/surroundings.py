"""A process's surroundings, read in the caller's process and given to one that works for it: a row of `PARTS` each.

A worker of this machine is given all of them, a worker of a node and a detached job those that mean the same anywhere.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

_LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


class Part(NamedTuple):
    """One part of a process's surroundings; its value is plain data."""

    read: Callable[[], Any]
    give: Callable[[Any], object]
    anywhere: bool = True  # it means the same on another machine
    imported: bool = False  # modules change it when they are imported


def search_path() -> list[str]:
    """Return `sys.path` for another process, relative entries spelled out."""
    return [os.path.abspath(entry) for entry in sys.path]


def _set_all(words: list[str], now: list[str]) -> None:
    words[:] = now


def _umask() -> int | None:
    with open("/proc/self/status", "rb", 0) as status:  # `os.umask` would change it, for every thread
        said = status.read(256).partition(b"\nUmask:")[2].split(None, 1)
    return int(said[0], 8) if said else None  # Linux says it since 4.7; gVisor does not


def _limits() -> dict[str, int]:
    return {name: resource.getrlimit(which)[0] for name, which in _LIMITS.items()}


def _set_limits(soft: Mapping[str, int]) -> None:
    for name, most in soft.items():
        now, hard = resource.getrlimit(_LIMITS[name])
        if most != now:
            resource.setrlimit(_LIMITS[name], (most, hard))


class _Named(type):
    """A class of warnings known by name: the module that defines it may not be loaded, and need not be."""

    def __subclasscheck__(cls, other: type) -> bool:
        # a detached job has the caller's script under the name that multiprocessing gives it
        modules = {cls.__module__, "__mp_main__" if cls.__module__ == "__main__" else cls.__module__}
        same = (each for each in other.__mro__ if each.__qualname__ == cls.__qualname__)
        return any(each.__module__ in modules for each in same)


def _filters() -> list[Any]:
    def plain(text: Any) -> Any:
        return [text.pattern, text.flags] if isinstance(text, re.Pattern) else text

    return [
        [action, plain(message), f"{kind.__module__}:{kind.__qualname__}", plain(module), line]
        for action, message, kind, module, line in warnings.filters
        if isinstance(kind, type)
    ]


def _set_filters(filters: list[Any]) -> None:
    def pattern(text: Any) -> Any:
        return re.compile(*text) if isinstance(text, (list, tuple)) else text

    def kind(name: str) -> type:
        module, _, path = name.partition(":")
        found = vars(sys.modules[module]).get(path) if module in sys.modules else None
        body = {"__module__": module, "__qualname__": path}
        return found if isinstance(found, type) else _Named(path, (Warning,), body)

    warnings.resetwarnings()
    warnings.filters.extend(  # type: ignore[attr-defined]  # a list, which typeshed shows as a sequence
        (action, pattern(message), kind(name), pattern(module), line)
        for action, message, name, module, line in filters
    )


# in the order in which they are given
PARTS = {
    "variables": Part(lambda: dict(os.environ), os.environ.update, anywhere=False),
    "search path": Part(search_path, lambda path: _set_all(sys.path, path), anywhere=False),
    "working folder": Part(os.getcwd, os.chdir, anywhere=False),
    "limits": Part(_limits, _set_limits, anywhere=False),
    "processors": Part(
        lambda: sorted(os.sched_getaffinity(0)), lambda cpus: os.sched_setaffinity(0, cpus), anywhere=False
    ),
    "arguments": Part(lambda: list(map(str, sys.argv)), lambda words: _set_all(sys.argv, words)),
    "umask": Part(_umask, lambda mask: mask is None or os.umask(mask)),
    "stack size": Part(threading.stack_size, threading.stack_size),
    "recursion limit": Part(sys.getrecursionlimit, sys.setrecursionlimit),
    "warning filters": Part(_filters, _set_filters, imported=True),
}
if sys.platform != "linux":  # elsewhere neither can be read without a change of it, or at all
    del PARTS["processors"], PARTS["umask"]
if hasattr(sys, "get_int_max_str_digits"):  # since Python 3.10.7
    PARTS["limit of digits"] = Part(sys.get_int_max_str_digits, sys.set_int_max_str_digits)
# names of those that mean the same on another machine, and of those that no import changes
PORTABLE = [name for name, part in PARTS.items() if part.anywhere]
SETTLED = [name for name, part in PARTS.items() if not part.imported]


def surroundings(names: Iterable[str] = PARTS) -> dict[str, Any]:
    """Return this process's surroundings as plain data: all, or those of some names."""
    return {name: PARTS[name].read() for name in names}


def give(values: Mapping[str, Any]) -> str:
    """Give this process the surroundings of another; return what could not be given, "" where all was."""
    for name, value in values.items():
        try:
            PARTS[name].give(value)
        except (OSError, RuntimeError, ValueError) as error:
            return f"it cannot have the caller's {name}, {value!r:.200}: {error}"
    return ""
