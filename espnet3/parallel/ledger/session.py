"""A driver's work in the run folder that it holds, from opening to closing."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from espnet3.parallel.ledger.errors import DamagedFolderError, LedgerError
from espnet3.parallel.ledger.files import Appender, now, read_json, write_json, writing
from espnet3.parallel.ledger.identity import Identity
from espnet3.parallel.ledger.lease import Lease
from espnet3.parallel.ledger.lines import encode_failure
from espnet3.parallel.ledger.merge import RECEIPT, Receipt, merge_splits
from espnet3.parallel.ledger.results import Results
from espnet3.parallel.ledger.scan import FAILED, LEFT, OK, Counted, scan_splits
from espnet3.parallel.ledger.split import DONE, SESSION, SPLIT, SplitWriter
from espnet3.parallel.messages import masked
from espnet3.parallel.records import ItemFailure

EVENTS = "events.jsonl"
SHARDS = "shards"  # a key of plans whose shards have writers of their own
SCHEMA = 1
_SHOWN = 500  # characters of an error in an event


class OpenRun(Counted):
    """A run folder in the hands of the one driver that holds its lease.

    Its methods are for one thread at a time. Made by `open_run`; a context manager that marks the
    session as done when it is left without an error.

    Attributes:
        path: The folder.
        state: As it was when the folder was opened, like `ok` and `failed`, which count it.
        plan: How the work was cut when the folder was new; a resumed run keeps to it.
        repaired: Sentences about damage and its repair.
    """

    def __init__(
        self,
        path: Path,
        run_id: str,
        identity: Identity,
        items: Sequence[Any],
        lease: Lease,
        plan: dict[str, Any],
    ) -> None:
        self.path = path
        self.run_id = run_id
        self.lease = lease
        self.plan = plan
        self._kind = SESSION if SHARDS in plan else SPLIT
        self._items = items
        self._hash: str = identity.indices["sha256"]
        spec = {"schema": SCHEMA, "run_id": run_id, "indices": self._hash}
        # finished shards can be reused only by a run that is cut the same way; noted here in case run.json is lost
        self._split = SplitWriter(path, {**spec, "plan": plan} if SHARDS in plan else spec, self._kind)
        scan = scan_splits(path, self._items, self._hash, kind=self._kind)
        self._events = Appender(path / EVENTS)
        self.state = scan.state
        self.repaired = scan.repaired
        self._noted = set(scan.repaired)
        for sentence in scan.repaired:
            self.event("repaired", what=sentence)

    def left(self, retry_failed: bool = False) -> Sequence[int]:
        """Return the positions still to be computed, in order: a range where that is all of them."""
        if not self.ok and (retry_failed or not self.failed):
            return range(len(self.state))
        found = array("q")
        for value in (LEFT, FAILED) if retry_failed else (LEFT,):
            at = self.state.find(value)
            while at >= 0:
                found.append(at)
                at = self.state.find(value, at + 1)
        return array("q", sorted(found)) if retry_failed else found

    def resuming(self, left: int) -> str:
        """Return the line to print: "resuming: 6 000 done, 4 000 left"; empty for a new run."""
        if not self.ok and not self.failed:
            return ""
        failed = f" ({_spaced(self.failed)} failed before)" if self.failed else ""
        return f"resuming: {_spaced(len(self.state) - left)} done, {_spaced(left)} left{failed}"

    def append(self, lines: Sequence[bytes], positions: Sequence[int] | None = None) -> None:
        """Put results on disk: lines of `encode_line`, in one write.

        When it returns, they survive the death of this process; a power failure may cost the last second.
        """
        self._before_write()
        self._split.append(lines, positions if isinstance(positions, range) else None)

    def append_failures(self, failures: Iterable[tuple[int, ItemFailure]]) -> None:
        """Put failed items on disk: position and record of each."""
        lines = [encode_failure(position, failure) for position, failure in failures]
        self._before_write()
        self._split.append_failures(lines)

    def has_shard(self, shard: tuple[Path, range], retry_failed: bool = False) -> bool:
        """Tell whether a shard with writers of its own was finished, and need not be run again."""
        folder, positions = shard
        try:
            said = read_json(folder / DONE)
        except (FileNotFoundError, DamagedFolderError):
            return False
        states = self.state[positions.start : positions.stop]
        whole = LEFT not in states and not (retry_failed and FAILED in states)
        return whole and said == self._mark(positions)

    def shard_done(
        self, folder: Path, positions: range, results: dict[int, bytes], failures: dict[int, ItemFailure]
    ) -> None:
        """Note that a shard's writers have been closed, and the outcomes of its items.

        The mark comes first: between the two, the shard counts as not done. A result that an earlier
        session noted is not noted again; the shard may have been repeated for one failed item.
        """
        self.lease.check()
        write_json(folder / DONE, self._mark(positions))
        self.append([line for position, line in results.items() if self.state[position] != OK])
        self.append_failures(failures.items())

    def _mark(self, positions: range) -> dict[str, Any]:
        return {"indices": self._hash, "begin": positions.start, "end": positions.stop}

    def append_times(self, lines: Sequence[bytes]) -> None:
        """Note how long items took: lines of `timing`; no outcome depends on them."""
        self._split.append_times(lines)

    def _before_write(self) -> None:
        self.lease.check()
        if self._split.folder is None:
            with writing(self.path / RECEIPT):
                (self.path / RECEIPT).unlink(missing_ok=True)  # it no longer covers everything in the folder

    def event(self, kind: str, **facts: Any) -> None:
        """Note in `events.jsonl` that something happened now."""
        # escaped to ASCII: a message may hold lone surrogates
        self._events.append(
            [json.dumps({"time": now(), "event": kind, **masked(facts)}, default=str).encode() + b"\n"]
        )

    def merge(self) -> Receipt:
        """Write the merged, ordered files and the receipt that proves them."""
        self.lease.check()
        self._split.sync()
        self._split.check()
        receipt = merge_splits(self.path, self._items, self._hash, self._note_repair, self._kind)
        self.event("merged", planned=receipt.planned, ok=receipt.ok, failed=receipt.failed)
        return receipt

    def _note_repair(self, sentence: str) -> None:
        if sentence not in self._noted:  # the scan at the start has seen most of them
            self._noted.add(sentence)
            self.repaired.append(sentence)
            self.event("repaired", what=sentence)

    def results(self) -> Results:
        """Return the merged results, read as they are used."""
        return Results(self.path)

    def close(self, done: bool = True) -> None:
        """Close the files and give the lease back; a second call does nothing."""
        try:
            self._split.close(done)
            if self.lease.missed:
                self.event("missed_beats", count=self.lease.missed, last=str(self.lease.last_error))
        finally:
            try:
                self._events.close()
            finally:
                self.lease.release()

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            try:
                self.event("stopped", error=kind.__qualname__, message=str(error)[:_SHOWN])
            finally:
                self.close(done=False)
        except LedgerError as second:  # a full disk stays full: the first error is the one to report
            gone = isinstance(error, DamagedFolderError)
            if error is not None and not gone and hasattr(error, "add_note"):
                error.add_note(f"closing the run folder failed as well: {second}")


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")
