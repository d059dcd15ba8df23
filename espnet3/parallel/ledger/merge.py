"""The merge: every planned index once, in order, streamed from disk to disk, and a receipt of it.

split.*/ ──scan──> outcomes nearly in order ─────────────────────────┬──> results.jsonl, errors.jsonl
             │     none missing, or an error                         │    receipt.json
             └──> where each line is, 8 bytes a position ──offsets───┘
                  for those that come far from their turn
"""

from __future__ import annotations

import filecmp
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from espnet3.parallel.ledger.atomic import Draft, sync_folder
from espnet3.parallel.ledger.errors import DamagedFolderError, IncompleteRunError
from espnet3.parallel.ledger.files import open_plain, read_record, write_json, writing
from espnet3.parallel.ledger.indices import Places
from espnet3.parallel.ledger.lines import bodies, index_json, split_line
from espnet3.parallel.ledger.offsets import Lines
from espnet3.parallel.ledger.scan import LEFT, OK, Scan, scan_splits
from espnet3.parallel.ledger.split import ERRORS, RESULTS, SPLIT
from espnet3.parallel.ledger.values import from_json

RECEIPT = "receipt.json"
SCHEMA = 1
_WRITE = 1 << 20
_HELD = 32 << 20  # of outcomes that come before their turn
_OVERHEAD = 100  # bytes that one of them takes beside its own
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof of a merge: `planned` is `ok` plus all of `failed`, and the hashes are those of the merged files.

    Attributes:
        planned: Indices of the run.
        ok: Those with a result.
        failed: Those with a failure, by cause ("error", "poison", "timeout", ...).
        indices_sha256: The hash of the index list.
        results_sha256: The hash of the merged results.jsonl.
        errors_sha256: The hash of the merged errors.jsonl.
        results_bytes: Its size.
        repeated: Lines that repeated an earlier one, and were left out.
        schema: The version of this file.
    """

    planned: int
    ok: int
    failed: dict[str, int]
    indices_sha256: str
    results_sha256: str
    errors_sha256: str
    results_bytes: int
    repeated: int = 0
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dict."""
        return asdict(self)


def read_receipt(path: Path) -> Receipt:
    """Read a run folder's receipt."""
    try:
        receipt = read_record(path / RECEIPT, Receipt)
        if receipt.planned == receipt.ok + sum(receipt.failed.values()) >= 0:
            return receipt
        raise DamagedFolderError(f"{path / RECEIPT} is damaged: its numbers are not those of a merge")
    except FileNotFoundError:
        raise IncompleteRunError(
            f"{path} has no {RECEIPT}: the run is not finished, or was never merged",
            "Run again with the same arguments to finish it; merge a detached run with `espnet3 merge`",
        ) from None


def check_receipt(path: Path) -> Receipt:
    """Read the receipt and compare the hashes in it with the files."""
    receipt = read_receipt(path)
    for name, expected in ((RESULTS, receipt.results_sha256), (ERRORS, receipt.errors_sha256)):
        digest = hashlib.sha256()
        try:
            with open_plain(path / name) as file:
                while part := file.read(_WRITE):
                    digest.update(part)
        except FileNotFoundError:
            raise DamagedFolderError(
                f"{path / name} is missing: run again with the same arguments to merge"
            ) from None
        if digest.hexdigest() != expected:
            raise DamagedFolderError(
                f"{path / name} is not the file that the receipt was written for: run again with the same "
                "arguments to merge"
            )
    return receipt


def merge_splits(
    path: Path, places: Places, indices_sha256: str, note: Callable[[str], None], kind: str = SPLIT
) -> Receipt:
    """Write results.jsonl, errors.jsonl and receipt.json from all splits.

    Memory is 13 bytes an index and some 70 MB, however large the results are. Files that would not
    change are left as they are, so that a sequence read from them stays valid.
    """
    merged = _Merged(path)
    try:
        in_order = _InOrder(merged)
        scan = scan_splits(path, places, indices_sha256, offsets=True, kind=kind, taker=in_order)
        for sentence in scan.repaired:
            note(sentence)
        _prove_coverage(path, scan, places)
        with writing(path / RECEIPT):
            (path / RECEIPT).unlink(missing_ok=True)  # until the files it will be of are in place
        if not in_order.wrote(len(scan.state)):
            merged.close()
            merged = _Merged(path)
            _write_by_offsets(scan, merged)
        merged.finish()
    finally:
        merged.close()
    sync_folder(path)
    receipt = Receipt(
        planned=len(scan.state),
        ok=scan.ok,
        failed=dict(sorted(merged.failed.items())),
        indices_sha256=indices_sha256,
        results_sha256=merged.results.digest.hexdigest(),
        errors_sha256=merged.errors.digest.hexdigest(),
        results_bytes=merged.results.size,
        repeated=scan.repeated,
    )
    write_json(path / RECEIPT, receipt.to_json())
    return receipt


def _write_by_offsets(scan: Scan, merged: _Merged) -> None:
    """Write all outcomes in order, wherever their lines are."""
    lines, at = Lines(scan), 0
    try:
        for begin in (*sorted(scan.spans), len(scan.state)):
            for position, line, end in lines.of(range(at, begin)):
                if scan.state[position] == OK:
                    merged.ok([line[line.index(b",", 5) + 1 : end]])
                else:
                    merged.failure(position, line)
            if begin in scan.spans:
                merged.ok(bodies(lines.span(begin)))
                at = scan.spans[begin].positions.stop
    finally:
        lines.close()


def _prove_coverage(path: Path, scan: Scan, places: Places) -> None:
    missing = scan.state.count(LEFT)
    if not missing:
        return
    at = -1
    first: list[str] = []
    while len(first) < _SHOWN and (at := scan.state.find(LEFT, at + 1)) >= 0:
        first.append(repr(places.items[at]))
    more = ", ..." if missing > len(first) else ""
    raise IncompleteRunError(
        f"{path}: {missing} of {len(scan.state)} indices have neither a result nor a failure: "
        f"{', '.join(first)}{more}",
        "Run again with the same arguments to compute them",
    )


class _Merged:
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


class _InOrder:
    """Writes outcomes while they are read, which saves reading them again, as long as few come before their turn.

    Of a run that nobody has disturbed the lines are nearly in order. Where too much would have to be held, or a
    position has a second outcome after the first was written, it gives up.
    """

    def __init__(self, merged: _Merged) -> None:
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
