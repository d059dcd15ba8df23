"""Files that a shard's processes leave: marks of items in progress, losses, and the number of failures."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from espnet3.parallel.detached.layout import LOSSES, MARK, InFlight, Layout
from espnet3.parallel.engine.blame import Loss
from espnet3.parallel.ledger.files import make_folder, open_to_write, read_or_none, write_json
from espnet3.parallel.records import ProcessEnd

_WIDTH = 320  # bytes: each mark covers the one before in one write
_REST = 10  # after a look at the folder of failures, none for this many times as long as it took


class Marks:
    """The marks of one shard, whose lease is held.

    If the mark of an earlier worker says that it died over items, that is added to the shard's losses.
    """

    def __init__(self, folder: Path, losses: LossFile) -> None:
        earlier = read_mark(folder)
        if _died_over_items(earlier):
            begin, end = earlier["in_flight"]
            losses.add(Loss(begin, end - begin, ProcessEnd(**earlier.get("end", {}))))
        self._mark: dict[str, Any] = {
            "in_flight": None,
            "ok": earlier.get("ok", 0),
            "failed": earlier.get("failed", 0),
            "job": job_name(os.getsid(0)),
            "pid": os.getpid(),
        }
        self._fd = os.open(
            folder / MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
        )
        self.note()  # a death is counted once
        os.ftruncate(self._fd, _WIDTH + 1)

    def note(self, **facts: Any) -> None:
        """Note fields of `InFlight`, in place of their earlier values."""
        self._mark.update(facts)
        if self._fd >= 0:
            os.pwrite(self._fd, json.dumps(self._mark).encode().ljust(_WIDTH) + b"\n", 0)

    def close(self) -> None:
        """Note that nothing is in flight, and close the file."""
        self.note(in_flight=None, hook="")
        fd, self._fd = self._fd, -1
        os.close(fd)


def job_name(session: int) -> str:
    """Return a name for the processes of a session on this host: a job's own, and the child that does its work."""
    return f"{os.uname().nodename}/{session}"


def note_end(folder: Path, job: str, end: ProcessEnd) -> bool:
    """Add to a dead worker's mark how it ended; only the process that waited for it knows."""
    mark = read_mark(folder)
    if mark.get("job") != job or not (_died_over_items(mark) or mark.get("hook")):
        return False
    if "end" not in mark:  # a process closer to it has noted that already
        write_json(folder / MARK, {**mark, "end": asdict(end)})
    return True


def excuse_dead(folder: Path) -> None:
    """Note that a dead worker was killed on purpose, and that its mark blames no item."""
    mark = read_mark(folder)
    if _died_over_items(mark) or mark.get("hook"):
        write_json(folder / MARK, {**mark, "stopping": True})


def hook_of_death(folder: Path) -> str:
    """Return the writer hook that a dead worker was in, by its mark; "" where it was in none."""
    mark = read_mark(folder)
    return "" if mark.get("stopping") else mark.get("hook", "")


def _died_over_items(mark: dict[str, Any]) -> bool:
    return bool(mark.get("in_flight")) and not mark.get("stopping")


def read_mark(folder: Path) -> dict[str, Any]:
    """Return a shard's mark; empty where there is none, or the host went down while it was written."""
    mark = read_or_none(folder / MARK, InFlight) or {}
    return mark if len(mark.get("in_flight") or (0, 0)) == 2 else {}


class _Held(TypedDict, total=False):
    losses: list[Loss]


class LossFile:
    """The losses of one shard, on disk: in which items its processes ended, or took too long.

    Written by the next process, or the one that kills; read by every attempt at the shard. What follows from them is
    in `engine.blame`.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / LOSSES
        found = read_or_none(self._file, _Held) or {}  # damaged: the host went down while it was written
        self.losses = [Loss.from_json(values) for values in found.get("losses", [])]

    @property
    def n_late(self) -> int:
        """The number of processes that were killed because a call took too long."""
        return sum(loss.seconds is not None for loss in self.losses)

    def add(self, loss: Loss) -> None:
        """Add a loss."""
        self._write([*self.losses, loss])

    def forget(self, positions: Collection[int]) -> None:
        """Drop the losses of single items, which run as if for the first time.

        Items that were in progress with others stay suspects and go one by one.
        """
        kept = [loss for loss in self.losses if loss.items > 1 or loss.begin not in positions]
        if len(kept) < len(self.losses):
            self._write(kept)

    def _write(self, losses: list[Loss]) -> None:
        self.losses = losses
        write_json(self._file, {"losses": [loss.to_json() for loss in losses]})


# --- failed items, over all jobs of a run ---


class Budget:
    """The failures of one shard, against the limit of the whole run, `max_failures`.

    A shard with failures has a file in `detached/failed`, as many bytes long as it has failed items: one listing
    of the folder counts them all, each job writes only its own file, and a run without failures costs nothing.
    """

    def __init__(self, layout: Layout, shard: int, limit: float | None, total: int) -> None:
        self._layout = layout
        self._shard = shard
        self._limit = limit  # failed items, or a share of the `total` below 1; None: no limit
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
    """Write the number of failed items of a shard."""
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
