"""The losses of a shard: in which items its processes ended, or took too long. What follows is in `engine.blame`.

Written by whoever finds out, which is the next process, or the one that kills; read by every attempt at the shard.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TypedDict

from espnet3.parallel.detached.layout import LOSSES
from espnet3.parallel.engine.blame import Loss
from espnet3.parallel.ledger.files import read_or_none, write_json


class _Held(TypedDict, total=False):
    losses: list[Loss]


class LossFile:
    """The losses of one shard, on disk.

    Args:
        folder: The shard's folder.

    Attributes:
        losses: All of them, in order; `begin` is a position in the run's index list.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / LOSSES
        found = read_or_none(self._file, _Held) or {}  # damaged: the host went down while it was written
        self.losses = [Loss.from_json(values) for values in found.get("losses", [])]

    @property
    def n_late(self) -> int:
        """How many processes were killed because a call took too long."""
        return sum(loss.seconds is not None for loss in self.losses)

    def add(self, loss: Loss) -> None:
        """Note another one."""
        self.losses.append(loss)
        self._write()

    def forget(self, positions: Collection[int]) -> None:
        """Drop what is held against single items: they are to run as if for the first time.

        Those that were in progress with others stay suspects, and go one by one.
        """
        kept = [loss for loss in self.losses if loss.items > 1 or loss.begin not in positions]
        if len(kept) < len(self.losses):
            self.losses = kept
            self._write()

    def _write(self) -> None:
        write_json(self._file, {"losses": [loss.to_json() for loss in self.losses]})
