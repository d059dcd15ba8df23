"""The messages of scripts while they work."""

from __future__ import annotations

import logging

_OURS = ("espnet3", "dataset", "src")


def show_logs(level: int = logging.INFO) -> None:
    """Show this project's messages on standard error, and only warnings of everything else.

    The handler sits on our loggers, not on the root: there it would also print each step of the
    Dask scheduler.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    for name in _OURS:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        if not logger.handlers:
            logger.addHandler(handler)
            logger.propagate = False
