"""What earlier attempts at a shard have left against its items, and what this one leaves for the next."""

from __future__ import annotations

import signal
from pathlib import Path

from espnet3.parallel.detached.job.log import say
from espnet3.parallel.detached.losses import LossFile
from espnet3.parallel.detached.marks import Marks
from espnet3.parallel.detached.spec import JobSpec
from espnet3.parallel.engine.blame import History, Loss
from espnet3.parallel.engine.watch import Late, end_process
from espnet3.parallel.records import ItemFailure, ProcessEnd


class ShardBlame:
    """The blame in one attempt at a shard.

    Args:
        folder: The shard's folder; its lease is held.
        spec: The shard.
        worker: This process, for the records of failures.

    Attributes:
        worker: As given.
        marks: Where this process says what it is in.
        suspects: Positions that go one by one.
        one_by_one: Whether several items were in progress at a loss.
    """

    def __init__(self, folder: Path, spec: JobSpec, worker: str) -> None:
        self._file = LossFile(folder)
        self.marks = Marks(folder, self._file)
        self._history = History(spec.policy, self._file.losses)
        self._spec = spec
        self.worker = worker
        self.suspects = set(self._history.suspects)
        self.one_by_one = any(loss.items > 1 for loss in self._file.losses)

    def failures(self) -> dict[int, ItemFailure]:
        """Return the failures of the positions that do not go again."""
        spec = self._spec
        return {
            at: self._history.failure(at, spec.items[at - spec.begin], self.worker, self.worker)
            for at in self._history.failed
        }

    def too_late(self, late: Late) -> None:
        """Note which items in flight took too long, and end this process with them; called by the watching thread."""
        try:
            begin = (self.marks.in_flight or (self._spec.begin, 0))[0] + late.position
            killed = ProcessEnd(signal=signal.SIGKILL)
            self._file.add(Loss(begin, late.items, killed, seconds=late.seconds, stack=late.stack))
            self.marks.excuse()
            say(f"killing this process: {late.items} items from position {begin} took {late.seconds:.1f} s")
        finally:
            end_process()
