"""Looking at a run again and again, until nobody works on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

_POLL = (0.1, 10.0)  # seconds between two looks: at first, and after a while
_SHARE = 0.05  # of the time waited so far, between those


class Status(Protocol):
    """What a look at a run returns."""

    @property
    def alive(self) -> bool:
        """Whether somebody may still write."""
        ...


S = TypeVar("S", bound=Status)


def watch(
    look: Callable[[], S], timeout: float | None = None, seen: Callable[[S], object] | None = None
) -> S:
    """Look at a run until nobody works on it any more."""
    begin = time.monotonic()
    end = None if timeout is None else begin + timeout
    while True:
        status = look()
        left = None if end is None else end - time.monotonic()
        if not status.alive or (left is not None and left <= 0):
            return status
        if seen is not None:
            seen(status)
        pause = min(_POLL[1], max(_POLL[0], _SHARE * (time.monotonic() - begin)))
        time.sleep(pause if left is None else min(pause, left))  # files on a shared disk send no event
