"""Note the items that a worker slot is inside, in memory that outlives the worker.

    worker slot ── which items, since when: one write per step ──> a page of a file in the pool's
    driver      <── reads it when the worker has died ────────────  private folder (same host only)

The file is mapped by both ends and has no name any more once the driver has opened it. Where the two
are on different hosts there is none, and the driver knows only which chunk a dead worker held.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_PAGE = struct.Struct("=qqqqd")
_CHUNK, _STEP = struct.Struct("=qq"), struct.Struct("=qqd")
_pack_step, _monotonic = _STEP.pack_into, time.monotonic
_ALL = -1  # items: the whole chunk, on its way in or out
SETUP = -1  # start of the chunk: none yet, the run's env is being built


@dataclass(frozen=True, slots=True)
class InFlight:
    """The content of a mark."""

    run: int
    start: int  # of the chunk, in the dispatch order
    at: int  # position of the first item in progress
    items: int  # how many there are at most; 0 where nothing has begun, -1 for all from `at` on
    since: float  # when they began, by `time.monotonic`; 0 between steps


class Mark:
    """The worker's end, in the pool's private folder; "" where the driver is on another host."""

    def __init__(self, folder: str) -> None:
        self._memory: Any = bytearray(_PAGE.size)
        self.name = ""
        if folder:
            self._share(folder)

    def _share(self, folder: str) -> None:
        path = os.path.join(folder, f"mark-{os.getpid()}-{id(self):x}")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                # written, not only sized: a hole would end this process when the disk is full
                os.write(fd, bytes(mmap.PAGESIZE))
                self._memory = mmap.mmap(fd, mmap.PAGESIZE)
            finally:
                os.close(fd)
        except OSError:  # the disk is full, or the folder is gone with the driver: do without
            return
        self.name = os.path.basename(path)

    def begin(self, run: int, start: int) -> None:
        """Note a chunk that has come; its items may end this process as soon as they are unpickled."""
        self._write(0)
        _CHUNK.pack_into(self._memory, 0, run, start)
        self._write(_ALL)

    def step(self, at: int, items: int) -> None:
        """Note that a step of items begins."""
        _pack_step(self._memory, _CHUNK.size, at, items, _monotonic())

    def leave(self, done: int) -> None:
        """Note that the items are done; their results may end this process while they are pickled."""
        self._write(done or _ALL)

    def clear(self) -> None:
        """Note that the answer to the chunk is sent, or the env built."""
        self._write(0)

    def _write(self, items: int) -> None:
        _pack_step(self._memory, _CHUNK.size, 0, items, 0.0)


class Window:
    """The driver's end: reads the mark whose name the worker has sent; OSError where it is not there."""

    def __init__(self, folder: str, name: str) -> None:
        path = os.path.join(folder, os.path.basename(name))
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            self._memory = mmap.mmap(fd, _PAGE.size, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
            os.unlink(path)

    def read(self) -> InFlight:
        """Read the mark as it is now."""
        return InFlight(*_PAGE.unpack_from(self._memory))

    def in_setup(self, run: int | None = None) -> bool:
        """Return whether the slot is building the env of a run, or of any."""
        seen = self.read()
        return run in (None, seen.run) and seen.start == SETUP and seen.items != 0

    def within(self, run: int, start: int, items: Sequence[Any]) -> tuple[int, int] | None:
        """Return a chunk's items in progress, as (first, how many); None if it has not begun."""
        seen = self.read()
        if (seen.run, seen.start) != (run, start) or not seen.items:
            return None
        left = len(items) - seen.at
        return seen.at, left if seen.items < 0 else min(seen.items, left)
