"""Waiting for what sends no event: looking again and again, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    true: Callable[[], object], seconds: float = 600.0, every: float = 0.01, said: Callable[[], object] = str
) -> None:
    """Wait until something is so.

    Args:
        true: Asked again and again; may raise an AssertionError that says more.
        seconds: How long a busy machine may take.
        every: Seconds between looks.
        said: Makes what the error says beside that.

    Raises:
        AssertionError: It was not so within that time.
    """
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain; {said()}"
        time.sleep(every)
