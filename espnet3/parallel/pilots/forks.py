"""What a forked child of the driver must not keep: its copies of the connections to the workers.

A connection ends when the last process that holds it does. A child that outlives a killed driver would keep the workers
waiting for it, and a cluster's jobs with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress


def let_go(descriptors: Iterable[int]) -> None:
    """Put the null device in the place of descriptors, in this process alone.

    They are not closed: the objects that they belong to would close them again, when the numbers are other files'.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for each in descriptors:
        with suppress(OSError):  # it was closed at this very moment
            os.dup2(null, each, inheritable=False)
    os.close(null)
