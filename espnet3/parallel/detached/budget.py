"""How many items of a run have failed, over all of its jobs, wherever they run.

A shard with failures has a file in `detached/failed`, as many bytes long as it has failed items: one listing
of the folder counts them all, each job writes only its own file, and a run without failures costs nothing.
"""

from __future__ import annotations

import os
import time

from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.ledger.files import make_folder, open_to_write

_REST = 10  # after a look at the folder, none for this many times as long as it took


class Budget:
    """The failures of one shard, against the limit of the whole run.

    Args:
        layout: The run's paths.
        shard: The shard.
        limit: `max_failures`: a number of items, or a share below 1; None: no limit.
        total: Items of the run.

    Attributes:
        own: How many items of this shard have failed.
    """

    def __init__(self, layout: Layout, shard: int, limit: float | None, total: int) -> None:
        self._layout = layout
        self._shard = shard
        self._limit = limit
        self._total = total
        self._next_look = 0.0
        file = layout.failures / str(shard)
        self.own = file.stat().st_size if limit is not None and file.exists() else 0

    def add(self, failed: int) -> None:
        """Count more failed items of this shard, or fewer."""
        if self._limit is not None and failed:
            self.own += failed
            count_failures(self._layout, self._shard, self.own)

    def exceeded(self, last: bool = False) -> str:
        """Return a sentence if too many items of the run have failed; empty if they have not."""
        begin = time.monotonic()
        if self._limit is None or not self.own or (begin < self._next_look and not last):
            return ""
        failed = sum(entry.stat().st_size for entry in os.scandir(self._layout.failures))
        now = time.monotonic()
        self._next_look = now + _REST * (now - begin)
        if failed <= (self._limit * self._total if 0 < self._limit < 1 else self._limit):
            return ""
        return f"{failed} of {self._total} items failed, and max_failures is {self._limit:g}"


def count_failures(layout: Layout, shard: int, failed: int) -> None:
    """Write down how many items of a shard have failed."""
    file = layout.failures / str(shard)
    if not failed:
        file.unlink(missing_ok=True)
        return
    make_folder(layout.failures)
    fd = open_to_write(file, 0)
    try:
        os.ftruncate(fd, failed)
    finally:
        os.close(fd)
