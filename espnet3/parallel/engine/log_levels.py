"""Levels of loggers: a worker's are those of its driver, so that a record that nobody wants is never made."""

from __future__ import annotations

import logging
import threading

# what Dask and this package say of themselves goes where it always went
_OURS = ("distributed", "dask", "tornado", "bokeh", "espnet3.parallel")

Levels = tuple[
    dict[str, int], int
]  # of loggers by name, "" the root; and what `logging.disable` was called with


def is_ours(name: str) -> bool:
    """Whether a logger is Dask's or this package's."""
    return name.startswith(_OURS) and any(name == each or name.startswith(f"{each}.") for each in _OURS)


def levels_here() -> Levels:
    """Return the levels of this process's loggers, for its workers."""
    root = logging.root
    loggers = [each for each in list(root.manager.loggerDict.values()) if isinstance(each, logging.Logger)]
    by_name = {each.name: each.level for each in loggers if each.level and not is_ours(each.name)}
    return {"": root.level, **by_name}, root.manager.disable


class _Levels:
    """The levels that this process's loggers have been given, and those that they had."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._lock = threading.Lock()

    def take_over(self, levels: Levels) -> None:
        """Give this process's loggers the driver's levels; those with handlers of their own keep theirs."""
        by_name, disabled = levels
        with self._lock:
            for name in self._before.keys() - by_name.keys():
                logging.getLogger(name).setLevel(self._before.pop(name))
            for name, level in by_name.items():
                logger = logging.getLogger(name)
                if logger.level != level and not logger.handlers:
                    self._before.setdefault(name, logger.level)
                    logger.setLevel(level)
            if logging.root.manager.disable != disabled:
                logging.disable(disabled)


take_over_levels = _Levels().take_over
