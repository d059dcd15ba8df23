"""The merge: every planned index once, in order, streamed from disk to disk, and a receipt of it.

split.*/ ──scan──> where each line is, 8 bytes a position ──> results.jsonl, errors.jsonl, receipt.json
                   none missing, or an error
"""

from __future__ import annotations

import filecmp
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from espnet3.parallel.ledger.errors import DamagedFolderError, IncompleteRunError
from espnet3.parallel.ledger.files import Draft, open_plain, read_record, sync_folder, write_json, writing
from espnet3.parallel.ledger.lines import check_line, index_json, split_line
from espnet3.parallel.ledger.scan import LEFT, OK, Scan, scan_splits
from espnet3.parallel.ledger.split import ERRORS, RESULTS, SPLIT
from espnet3.parallel.ledger.values import from_json

RECEIPT = "receipt.json"
SCHEMA = 1
_SHOWN = 10
_BODY = re.compile(rb'\{"n":\d{1,18},(.*),"crc":\d{1,18}\}\n')
_WRITE = 1 << 20  # bytes written at a time
_READ = 4 << 10  # bytes read at a time: the next line may be anywhere
_FREED = 16 << 20  # bytes, that nothing is written to
_OPEN = 100  # files that stay open


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof of a merge: `planned` is `ok` plus all of `failed`, and the hashes are those of the merged files."""

    planned: int  # indices of the run
    ok: int  # those with a result
    failed: dict[str, int]  # those with a failure, by cause ("error", "poison", "timeout", ...)
    indices_sha256: str  # of the index list
    results_sha256: str  # of the merged results.jsonl
    errors_sha256: str  # of the merged errors.jsonl
    results_bytes: int  # the size of results.jsonl
    repeated: int = 0  # lines that repeated an earlier one, and were left out
    schema: int = SCHEMA  # the version of this file


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
            "Run again with the same arguments to finish it; merge a detached run with `espnet3-parallel merge`",
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
    path: Path, items: Sequence[Any], indices_sha256: str, note: Callable[[str], None], kind: str = SPLIT
) -> Receipt:
    """Write results.jsonl, errors.jsonl and receipt.json from all splits.

    Memory is 13 bytes an index (2 where its line is in a span) and some 70 MB, however large the results are. Files
    that would not change are left as they are, so that a sequence read from them stays valid.
    """
    # once a block of this size is freed, glibc keeps the pages of smaller ones: a fifth of the time
    bytes(_FREED)
    scan = scan_splits(path, items, indices_sha256, offsets=True, kind=kind)
    for sentence in scan.repaired:
        note(sentence)
    _prove_coverage(path, scan, items)
    with writing(path / RECEIPT):
        (path / RECEIPT).unlink(missing_ok=True)  # until the files it will be of are in place
    with _Output(path / RESULTS) as results, _Output(path / ERRORS) as errors:
        failed = _write(scan, results, errors)
        results.finish()
        errors.finish()
    sync_folder(path)
    receipt = Receipt(
        planned=len(scan.state),
        ok=scan.ok,
        failed=dict(sorted(failed.items())),
        indices_sha256=indices_sha256,
        results_sha256=results.digest.hexdigest(),
        errors_sha256=errors.digest.hexdigest(),
        results_bytes=results.size,
        repeated=scan.repeated,
    )
    write_json(path / RECEIPT, asdict(receipt))
    return receipt


def _write(scan: Scan, results: _Output, errors: _Output) -> Counter[str]:
    failed: Counter[str] = Counter()
    with closing(_Lines(scan)) as lines:
        at = 0
        for begin in (*sorted(scan.spans), len(scan.state)):
            for position, line, end in lines.of(range(at, begin)):
                if scan.state[position] == OK:
                    results.write(b"{%b}\n" % line[line.index(b",", 5) + 1 : end])
                    continue
                index, failure = split_line(line)
                cause = from_json(failure)["cause"]
                failed[cause] += 1
                results.write(b'{"index":%b,"failure":%b}\n' % (index, index_json(cause)))
                errors.write(b'{"n":%d,"index":%b,%b\n' % (position, index, failure[1:]))
            if begin in scan.spans:
                results.write(b"{%b}\n" % b"}\n{".join(lines.span(begin)))
                at = begin + scan.spans[begin][0].items
    return failed


def _prove_coverage(path: Path, scan: Scan, items: Sequence[Any]) -> None:
    if missing := scan.state.count(LEFT):
        first = islice(
            (repr(item) for item, one in zip(items, scan.state, strict=True) if one == LEFT), _SHOWN
        )
        more = ", ..." if missing > _SHOWN else ""
        raise IncompleteRunError(
            f"{path}: {missing} of {len(scan.state)} indices have neither a result nor a failure: "
            f"{', '.join(first)}{more}",
            "Run again with the same arguments to compute them",
        )


class _Lines:
    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._files: dict[tuple[int, bool], BinaryIO] = {}

    def span(self, begin: int) -> list[bytes]:
        span, _ = self._scan.spans[begin]
        data = self._file_at(begin, ok=True).read(span.size)
        found: list[bytes] = _BODY.findall(data)
        if not span.fits(data) or len(found) != span.items:
            raise self._changed(begin)
        return found

    def of(self, positions: range) -> Iterator[tuple[int, bytes, int]]:
        state, where, sums = self._scan.state, self._scan.where, self._scan.sums
        file, following = None, -1
        for position in positions:
            ok = state[position] == OK
            if file is None or not ok or where[position] != following:
                file = self._file_at(position, ok)
            line = file.readline()
            following = where[position] + len(line) if ok else -1
            end = line.rfind(b',"crc":')
            if crc32(line[:end]) != sums[position] and check_line(line) < 0:  # a moved line has another sum
                raise self._changed(position)
            yield position, line, end

    def _changed(self, position: int) -> DamagedFolderError:
        number, offset = self._scan.locate(position)
        name = RESULTS if self._scan.state[position] == OK else ERRORS
        return DamagedFolderError(
            f"{self._scan.splits[number] / name} changed while it was merged, at byte {offset}: run again"
        )

    def _file_at(self, position: int, ok: bool) -> BinaryIO:
        number, offset = self._scan.locate(position)
        file = self._files.pop((number, ok), None)
        if file is None:
            if len(self._files) == _OPEN:
                self._files.pop(next(iter(self._files))).close()  # used least recently
            file = open_plain(self._scan.splits[number] / (RESULTS if ok else ERRORS), _READ)
        self._files[number, ok] = file
        file.seek(offset)
        return file

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _Output(Draft):
    def __init__(self, path: Path) -> None:
        self.file = path
        self.digest = hashlib.sha256()
        self.size = 0
        self._parts: list[bytes] = []
        self._held = 0
        with writing(path):
            super().__init__(path)

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        self._held += len(data)
        if self._held >= _WRITE:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._parts)
        self._parts, self._held = [], 0
        self.digest.update(data)
        self.size += len(data)
        with writing(self.file):
            super().write(data)

    def finish(self) -> None:
        self._flush()
        with writing(self.file):
            if not (self.file.exists() and filecmp.cmp(self.file, self.temporary, shallow=False)):
                self.sync()
                self.commit(durable=False)  # the folder is synced once, for both files
