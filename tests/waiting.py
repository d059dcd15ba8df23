"""Waiting for what sends no event: looking again and again, with a limit."""

import time
from collections.abc import Callable


def wait_until(
    true: Callable[[], object], seconds: float = 600.0, every: float = 0.01, said: Callable[[], object] = str
) -> None:
    """Wait until something is so, with a look every so many seconds; an error adds what `said` returns."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain; {said()}"
        time.sleep(every)
