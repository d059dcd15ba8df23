"""Keep a forked child of the driver from its parent's connections to the workers, and from waiting for its calls.

A connection ends when the last process that holds it does. A child that outlives a killed driver would keep the workers
waiting for it, and a cluster's jobs with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from espnet3.parallel.errors import NoWorkersError


def let_go(descriptors: Iterable[int]) -> None:
    """Put the null device in the place of descriptors, in this process alone.

    They are not closed: the objects that they belong to would close them again, when the numbers are other files'.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for each in descriptors:
        with suppress(OSError):  # it was closed at this very moment
            os.dup2(null, each, inheritable=False)
    os.close(null)


class OwnFuture(Future[Any]):
    """The future of a call; a forked child, which never hears of its end, gets an error in place of a hang."""

    def __init__(self) -> None:
        super().__init__()
        self._submitter = os.getpid()

    def result(self, timeout: float | None = None) -> Any:
        """Return the call's result, or raise its exception."""
        self._refuse_a_child()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the call has raised, or None."""
        self._refuse_a_child()
        return super().exception(timeout)

    def _refuse_a_child(self) -> None:
        if os.getpid() != self._submitter and not self.done():
            raise NoWorkersError(
                "this call was submitted by the process that this one was forked from, which alone will hear of its "
                "end: wait for it before the fork, or submit it here"
            )
