"""Whether this thread is running items for a driver."""

from __future__ import annotations

import threading


class _Thread(threading.local):
    """This thread's count of the drivers, one inside the other, for whom it is running items."""

    depth = 0


THREAD = _Thread()


def inside_item() -> bool:
    """Whether this thread is running items for a driver: what they call in turn runs right here."""
    return THREAD.depth > 0
