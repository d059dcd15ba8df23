"""The files of one shard in its job: outcomes to which it appends, and what is held against its items."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

from espnet3.parallel.detached.job.stopping import say
from espnet3.parallel.detached.job_spec import JobSpec
from espnet3.parallel.detached.layout import positions, stretches
from espnet3.parallel.detached.marks import LossFile, Marks
from espnet3.parallel.engine.blame import History, Loss
from espnet3.parallel.engine.settling import Block
from espnet3.parallel.engine.watch import Late, end_process
from espnet3.parallel.ledger.files import Appender, make_folder, write_json
from espnet3.parallel.ledger.lease import Lease
from espnet3.parallel.ledger.lines import encode_failure
from espnet3.parallel.ledger.scan import FAILED, LEFT, OK
from espnet3.parallel.ledger.split import DONE, ERRORS, RESULTS, SPEC, TIMES
from espnet3.parallel.records import ItemFailure, ProcessEnd
from espnet3.parallel.timing.recorder import TimesRecorder


class ShardOutcomes:
    """The folder of a shard's outcomes, to which its attempts append, one at a time."""

    def __init__(self, spec: JobSpec, lease: Lease) -> None:
        self.folder = Path(spec.run) / spec.outcomes
        self.state = bytearray(len(spec.items))  # one byte for each of its items: `LEFT`, `OK` or `FAILED`
        self._spec = spec
        self._lease = lease
        self._files: dict[str, Appender] = {}
        shards = spec.total // max(1, len(spec.items))  # of about this size
        self.times = TimesRecorder(self.append_times, spec.items, first=spec.begin, workers=shards)
        self.n_lines = 0  # that this attempt has appended
        self._lines = {RESULTS: 0, ERRORS: 0}
        make_folder(self.folder)
        if not (self.folder / SPEC).exists():
            facts = {"run_id": spec.run_id, "indices": spec.indices_sha256, "shard": spec.shard}
            write_json(self.folder / SPEC, {"schema": 1, **facts})
        for begin, end in spec.skip:
            self._take(range(begin, end), OK)
        self._take(self._read(ERRORS), FAILED)
        self._take(self._read(RESULTS), OK)
        self.failed_before = {at for at, state in enumerate(self.state, spec.begin) if state == FAILED}

    @property
    def ok(self) -> int:
        """Items with a result."""
        return self.state.count(OK)

    @property
    def failed(self) -> int:
        """Items with a failure."""
        return self.state.count(FAILED)

    def left(self) -> list[list[int]]:
        """Return the stretches [begin, end) of positions to run, in order."""
        return stretches(self.state, self._spec.begin, (LEFT, FAILED) if self._spec.retry_failed else (LEFT,))

    def append(self, begin: int, block: Block) -> None:
        """Put a block's outcomes on disk, results first, and the failure that stops the shard last."""
        values, failed = block.values, set(block.failed)
        self._put(RESULTS, [value for place, value in enumerate(values) if place not in failed])
        self._take([begin + place for place in range(len(values)) if place not in failed], OK)
        for place in block.failed:
            self.append_failure(begin + place, values[place])
        if block.stop is not None:
            self.append_failure(begin + len(values), block.stop)

    def append_failure(self, position: int, failure: ItemFailure) -> None:
        """Put one failure on disk."""
        self._put(ERRORS, [encode_failure(position, failure)])
        self._take([position], FAILED)

    def append_times(self, lines: list[bytes]) -> None:
        """Note how long items took: lines of `timing`, which no outcome depends on."""
        if TIMES not in self._files:
            self._files[TIMES] = Appender(self.folder / TIMES, durable=False)
        self._files[TIMES].append(lines)

    def close(self, done: bool) -> None:
        """Close the files; with `done`, leave the mark of a shard that is complete."""
        self.times.flush()
        files, self._files = self._files, {}
        for file in files.values():
            file.close()
        if done:
            write_json(self.folder / DONE, {"results": self._lines[RESULTS], "errors": self._lines[ERRORS]})

    def _put(self, name: str, lines: list[bytes]) -> None:
        if not lines:
            return
        self._lease.check()
        if name not in self._files:
            self._files[name] = Appender(self.folder / name)
        self._files[name].append(lines)
        self._lines[name] += len(lines)
        self.n_lines += len(lines)

    def _read(self, name: str) -> Iterator[int]:
        for position in positions(self.folder / name):
            self._lines[name] += 1
            yield position

    def _take(self, positions: Iterator[int] | range | list[int], state: int) -> None:
        begin, n = self._spec.begin, len(self.state)
        for position in positions:
            if 0 <= position - begin < n:
                self.state[position - begin] = state


class ShardBlame:
    """What earlier attempts at a shard have left against its items, and what this one leaves for the next."""

    def __init__(self, folder: Path, spec: JobSpec, worker: str) -> None:
        self._file = LossFile(folder)
        self.marks = Marks(folder, self._file)
        self._history = History(spec.policy, self._file.losses)
        self._spec = spec
        self._worker = worker
        self.suspects = set(self._history.suspects)  # positions that go one by one
        self.one_by_one = any(loss.items > 1 for loss in self._file.losses)

    def failures(self) -> dict[int, ItemFailure]:
        """Return the failures of the positions that do not go again."""
        spec = self._spec
        return {
            at: self._history.failure(at, spec.items[at - spec.begin], self._worker, self._worker)
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
