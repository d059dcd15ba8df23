"""The merge: every planned index once, in order, streamed from disk to disk, and a receipt of it.

split.*/  ──scan──>  where[position]: 8 bytes each ──> lines in the order of positions ──> results.jsonl
                      none missing, or an error                                            errors.jsonl
                                                                                           receipt.json
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from espnet3.parallel.ledger.atomic import sync_folder
from espnet3.parallel.ledger.errors import DamagedFolderError, IncompleteRunError
from espnet3.parallel.ledger.files import read_json, write_json, writing
from espnet3.parallel.ledger.indices import Places
from espnet3.parallel.ledger.lines import bodies, check_line
from espnet3.parallel.ledger.merged import InOrder, Merged
from espnet3.parallel.ledger.scan import LEFT, OK, Scan, scan_splits
from espnet3.parallel.ledger.split import ERRORS, RESULTS, SPLIT

RECEIPT = "receipt.json"
SCHEMA = 1
_LEAST_READ = 4 << 10  # a line somewhere else in a file is read with this much around it
_MOST_READ = 1 << 20  # lines that follow each other, with this
_READ_MEMORY = 64 << 20  # for all files together
_READ = 1 << 20
_OPEN = 100  # splits of a run whose files stay open; with more, each read opens its file
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
    """Read a run folder's receipt.

    Raises:
        IncompleteRunError: There is none: the run has not been merged.
        DamagedFolderError: It is damaged.
    """
    try:
        return Receipt(**read_json(path / RECEIPT))
    except FileNotFoundError:
        raise IncompleteRunError(
            f"{path} has no {RECEIPT}: the run is not finished, or was never merged",
            "Run again with the same arguments to finish it; merge a detached run with `espnet3 merge`",
        ) from None
    except TypeError as error:
        raise DamagedFolderError(f"{path / RECEIPT} is damaged, or of a newer version: {error}") from error


def check_receipt(path: Path) -> Receipt:
    """Read the receipt and compare the hashes in it with the files.

    Raises:
        DamagedFolderError: A file is not the one that was merged.
    """
    receipt = read_receipt(path)
    for name, expected in ((RESULTS, receipt.results_sha256), (ERRORS, receipt.errors_sha256)):
        digest = hashlib.sha256()
        try:
            with open(path / name, "rb") as file:
                while part := file.read(_READ):
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

    Args:
        path: The run's folder; the caller holds its lease.
        places: The index list.
        indices_sha256: Its hash.
        note: Called with a sentence for each repair.
        kind: What the folders of the sessions are called.

    Raises:
        IncompleteRunError: An index has no outcome.
        DamagedFolderError: The splits contradict each other or the index list.
    """
    merged = Merged(path)
    try:
        in_order = InOrder(merged)
        scan = scan_splits(path, places, indices_sha256, offsets=True, kind=kind, taker=in_order)
        for sentence in scan.repaired:
            note(sentence)
        _prove_coverage(path, scan, places)
        with writing(path / RECEIPT):
            (path / RECEIPT).unlink(missing_ok=True)  # until the files it will be of are in place
        if not in_order.wrote(len(scan.state)):
            merged.close()
            merged = Merged(path)
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


def _write_by_offsets(scan: Scan, merged: Merged) -> None:
    """Write all outcomes in order, wherever their lines are."""
    lines, at = _Lines(scan), 0
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


class _Lines:
    """Reads lines at given offsets: far apart in small reads, one after the other in growing ones."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self._files: dict[tuple[int, bool], _Window] = {}
        self._most = max(_LEAST_READ, min(_MOST_READ, _READ_MEMORY // max(1, len(scan.splits))))

    def span(self, begin: int) -> bytes:
        """Return the lines of the span that begins at a position."""
        span, offset = self.scan.spans[begin], self.scan.locate(begin)[1]
        data = self._window(begin, ok=True).read(span.size, offset)
        if not span.fits(data):
            raise self._changed(begin)
        return data

    def of(self, positions: range) -> Iterator[tuple[int, bytes, int]]:
        """Yield each of these positions with its line, and where in that the checksum begins."""
        state, where, sums = self.scan.state, self.scan.where, self.scan.sums
        data, at, following = b"", 0, -1
        for position in positions:
            place = where[position]
            ok = state[position] == OK
            # most lines follow the one before them: half the time
            if place == following and ok and (stop := data.find(b"\n", at)) >= 0:
                line, at = data[at : stop + 1], stop + 1
            else:
                window = self._window(position, ok)
                line, data, at = window.line(self.scan.locate(position)[1])
            following = place + len(line) if ok else -1
            end = line.rfind(b',"crc":')
            if crc32(line[:end]) != sums[position] and check_line(line) < 0:  # of a moved one it is another
                raise self._changed(position)
            yield position, line, end

    def _changed(self, position: int) -> DamagedFolderError:
        number, offset = self.scan.locate(position)
        name = RESULTS if self.scan.state[position] == OK else ERRORS
        return DamagedFolderError(
            f"{self.scan.splits[number] / name} changed while it was merged, at byte {offset}: run again"
        )

    def _window(self, position: int, ok: bool) -> _Window:
        number = self.scan.locate(position)[0]
        window = self._files.get((number, ok))
        if window is None:
            path = self.scan.splits[number] / (RESULTS if ok else ERRORS)
            window = self._files[number, ok] = _Window(path, self._most, len(self.scan.splits) <= _OPEN)
        return window

    def close(self) -> None:
        for window in self._files.values():
            window.close()


class _Window:
    """A file, one stretch of which is held in memory."""

    def __init__(self, path: Path, most: int, stay_open: bool) -> None:
        self.path = path
        self._most = most
        self._fd = os.open(path, os.O_RDONLY) if stay_open else -1
        self._data = b""
        self._begin = 0
        self._size = _LEAST_READ

    def line(self, offset: int) -> tuple[bytes, bytes, int]:
        """Return the line at an offset, the stretch that is in memory, and where in it the line ends."""
        at = offset - self._begin
        if 0 <= at < len(self._data):
            end = self._data.find(b"\n", at)
            if end >= 0:
                return self._data[at : end + 1], self._data, end + 1
        near = 0 <= at <= len(self._data) + self._size
        size = self._size = min(self._most, self._size * 2) if near else _LEAST_READ
        while True:
            data = self.read(size, offset)
            end = data.find(b"\n")
            if end >= 0 or len(data) < size:
                break
            size *= 4  # a line longer than the stretch
        self._data, self._begin = data, offset
        end = end + 1 if end >= 0 else len(data)
        return data[:end], data, end

    def read(self, size: int, offset: int) -> bytes:
        """Return a stretch of the file."""
        if self._fd >= 0:
            return os.pread(self._fd, size, offset)
        with open(self.path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), size, offset)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
