"""The merged files while they are written: outcomes in the order of their positions, and what comes before its turn."""

from __future__ import annotations

import filecmp
import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from espnet3.parallel.ledger.atomic import Draft
from espnet3.parallel.ledger.files import writing
from espnet3.parallel.ledger.lines import index_json, split_line
from espnet3.parallel.ledger.split import ERRORS, RESULTS
from espnet3.parallel.ledger.values import from_json

_WRITE = 1 << 20
_HELD = 32 << 20  # of outcomes that come before their turn
_OVERHEAD = 100  # bytes that one of them takes beside its own


class Merged:
    """The two merged files, as they grow: outcomes come in the order of their positions.

    Attributes:
        failed: How many failures of each cause.
    """

    def __init__(self, path: Path) -> None:
        self.results = _Output(path / RESULTS)
        try:
            self.errors = _Output(path / ERRORS)
        except BaseException:
            self.results.close()
            raise
        self.failed: Counter[str] = Counter()

    def ok(self, bodies: Sequence[bytes]) -> None:
        """Append results: {"n":5,"index":5,"result":1,"crc":7} without n and crc."""
        self.results.write(b"{%b}\n" % b"}\n{".join(bodies))

    def failure(self, position: int, line: bytes) -> None:
        """Append a failure to both files."""
        index, failure = split_line(line)
        cause = from_json(failure)["cause"]
        self.failed[cause] += 1
        self.results.write(b'{"index":%b,"failure":%b}\n' % (index, index_json(cause)))
        self.errors.write(b'{"n":%d,"index":%b,%b\n' % (position, index, failure[1:]))

    def finish(self) -> None:
        """Put both in place."""
        self.results.finish()
        self.errors.finish()

    def close(self) -> None:
        """Drop what was not put in place."""
        self.results.close()
        self.errors.close()


class InOrder:
    """Writes outcomes while they are read, which saves reading them again, as long as few come before their turn.

    Of a run that nobody has disturbed the lines are nearly in order. Where too much would have to be held, or a
    position has a second outcome after the first was written, it gives up.
    """

    def __init__(self, merged: Merged) -> None:
        self._merged = merged
        self._next = 0
        self._early: dict[int, bytes] = {}
        self._failures: dict[int, bytes] = {}
        self._held = 0  # bytes of both, with what Python adds
        self._lost = False

    def failure(self, position: int, line: bytes) -> None:
        """Take a failure; all come before the first result."""
        if not self._lost:
            self._failures[position] = line
            self._hold(len(line) + _OVERHEAD)

    def results(self, positions: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Take results in any order."""
        if self._lost:
            return
        if min(positions) < self._next:
            self._give_up()
            return
        follow = range(self._next, self._next + len(positions))
        if not self._early and (positions == follow or positions == list(follow)):
            self._merged.ok(bodies)
            self._next = follow.stop
        else:
            self._early.update(zip(positions, bodies, strict=True))
            self._hold(sum(map(len, bodies)) + _OVERHEAD * len(bodies))
        self._write()

    def wrote(self, n: int) -> bool:
        """Whether all of so many positions were written."""
        if not self._lost:
            self._write()
        return not self._lost and self._next == n and not self._early

    def _write(self) -> None:
        """Write those whose turn it is."""
        early, failures = self._early, self._failures
        while True:
            ready = []
            following = self._next
            while (body := early.pop(following, None)) is not None:
                ready.append(body)
                following += 1
            if ready:
                self._merged.ok(ready)
                self._held -= sum(map(len, ready)) + _OVERHEAD * len(ready)
                self._next = following
            if self._next not in failures:
                return
            self._merged.failure(self._next, failures[self._next])
            self._next += 1

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > _HELD:
            self._give_up()

    def _give_up(self) -> None:
        self._lost = True
        self._early.clear()
        self._failures.clear()


class _Output:
    """A merged file; it replaces the old one if it differs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest = hashlib.sha256()
        self.size = 0
        self._parts: list[bytes] = []
        self._held = 0
        with writing(path):
            self._draft = Draft(path)

    def write(self, line: bytes) -> None:
        self._parts.append(line)
        self._held += len(line)
        if self._held >= _WRITE:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._parts)
        self._parts, self._held = [], 0
        self.digest.update(data)
        self.size += len(data)
        with writing(self.path):
            self._draft.write(data)

    def finish(self) -> None:
        self._flush()
        with writing(self.path):
            same = self.path.exists() and filecmp.cmp(self.path, self._draft.temporary, shallow=False)
            if not same:
                self._draft.sync()
                self._draft.commit(durable=False)  # the folder is synced once, for both files

    def close(self) -> None:
        """Drop what did not take the old file's place."""
        self._draft.close()
