"""The merge: every planned index once, in order, streamed from disk to disk, a receipt of it, and the results read.

split.*/ ──scan──> where each line is, 8 bytes a position ──> results.jsonl, errors.jsonl, receipt.json ──> Results
                   none missing, or an error
"""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, overload

from espnet3.parallel.ledger import files
from espnet3.parallel.ledger.errors import DamagedFolderError, IncompleteRunError
from espnet3.parallel.ledger.lines import checked, failure_of, from_json, index_json, record_of, split_line
from espnet3.parallel.ledger.split import ERRORS, LEFT, OK, RESULTS, Scan
from espnet3.parallel.messages import html_table
from espnet3.parallel.records import ItemFailure, RunSummary

RECEIPT = "receipt.json"
SCHEMA = 1
_SHOWN = 10
_BODY = re.compile(rb'\{"n":\d{1,18},(.*),"crc":\d{1,18}\}\n')
_WRITE = 1 << 20  # bytes read in order at a time
_READ = 4 << 10  # bytes read at a time: the next line may be anywhere
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
    finished: bool = True  # the runner's `merge` or `write_outputs`, if it has one, has returned


def read_receipt(path: Path) -> Receipt:
    """Read a run folder's receipt."""
    try:
        receipt = files.read_record(path / RECEIPT, Receipt)
        if receipt.planned == receipt.ok + sum(receipt.failed.values()) >= 0:
            return receipt
        raise DamagedFolderError(f"{path / RECEIPT} is damaged: its numbers are not those of a merge")
    except FileNotFoundError:
        raise IncompleteRunError(
            f"{path} has no {RECEIPT}: the run is not finished, or was never merged",
            "Run again with the same arguments to finish it; merge a detached run with `espnet3-parallel merge`",
        ) from None


def is_finished(path: Path) -> bool | None:
    """Return whether a run is complete, with what its runner makes of the whole; None where it is not merged."""
    found = files.read_or_none(path / RECEIPT, Receipt)
    return None if found is None else bool(found.get("finished", True))


def note_finished(path: Path) -> None:
    """Note in the receipt that the runner's `merge` or `write_outputs` has returned."""
    files.write_json(path / RECEIPT, asdict(replace(read_receipt(path), finished=True)))


def _hash_of(path: str | os.PathLike[str]) -> str:
    digest = hashlib.sha256()
    with files.open_plain(path) as file:
        while part := file.read(_WRITE):
            digest.update(part)
    return digest.hexdigest()


def merge_splits(
    path: Path, items: Sequence[Any], sha256: str, note: Callable[[str], None], kind: str, finished: bool
) -> Receipt:
    """Write results.jsonl, errors.jsonl and receipt.json from all splits.

    Memory is 9 bytes an index (2 where its line is in a span) and some 70 MB, however large the results are. Files
    that would not change are left as they are, so that a sequence read from them stays valid.
    """
    scan = Scan(path, items, sha256, kind)
    for sentence in scan.repaired:
        note(sentence)
    if missing := scan.state.count(LEFT):
        left = (repr(item) for item, one in zip(items, scan.state, strict=True) if one == LEFT)
        more = ", ..." if missing > _SHOWN else ""
        raise IncompleteRunError(
            f"{path}: {missing} of {len(scan.state)} indices have neither a result nor a failure: "
            f"{', '.join(islice(left, _SHOWN))}{more}",
            "Run again with the same arguments to compute them",
        )
    with files.writing(path / RECEIPT):
        (path / RECEIPT).unlink(missing_ok=True)  # until the files it will be of are in place
    with (
        files.writing(path / RESULTS),
        files.Draft(path / RESULTS) as results,
        files.Draft(path / ERRORS) as errors,
    ):
        failed = _write(scan, results.file, errors.file)
        hashes = [_put_in_place(draft) for draft in (results, errors)]
    receipt = Receipt(
        planned=len(scan.state),
        ok=scan.ok,
        failed=dict(sorted(failed.items())),
        indices_sha256=sha256,
        results_sha256=hashes[0],
        errors_sha256=hashes[1],
        results_bytes=(path / RESULTS).stat().st_size,
        repeated=scan.repeated,
        finished=finished,
    )
    files.write_json(path / RECEIPT, asdict(receipt))
    return receipt


def _put_in_place(draft: files.Draft) -> str:
    draft.file.flush()
    digest = _hash_of(draft.temporary)
    if not os.path.exists(draft.path) or _hash_of(draft.path) != digest:
        draft.commit()
    return digest


def _write(scan: Scan, results: BinaryIO, errors: BinaryIO) -> Counter[str]:
    failed: Counter[str] = Counter()
    position = 0
    with closing(_Lines(scan)) as lines:
        while position < len(scan.state):
            if position in scan.spans:
                found = lines.span(position)
                results.write(b"{%b}\n" % b"}\n{".join(found))
                position += len(found)
                continue
            line = lines.at(position)
            if scan.state[position] == OK:
                results.write(b"{%b}\n" % line[line.index(b",", 5) + 1 : line.rindex(b',"crc":')])
            else:
                index, failure = split_line(line)
                cause = from_json(failure)["cause"]
                failed[cause] += 1
                results.write(b'{"index":%b,"failure":%b}\n' % (index, index_json(cause)))
                errors.write(b'{"n":%d,"index":%b,%b\n' % (position, index, failure[1:]))
            position += 1
    return failed


class _Lines:
    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._files: dict[Path, BinaryIO] = {}

    def span(self, begin: int) -> list[bytes]:
        span, _ = self._scan.spans[begin]
        data = self._file_at(begin).read(span.size)
        found: list[bytes] = _BODY.findall(data)
        if not span.fits(data) or len(found) != span.items:
            raise self._changed(begin)
        return found

    def at(self, position: int) -> bytes:
        line = self._file_at(position).readline()
        if checked(line) < 0:
            raise self._changed(position)
        return line

    def _changed(self, position: int) -> DamagedFolderError:
        path, offset = self._scan.locate(position)
        return DamagedFolderError(f"{path} changed while it was merged, at byte {offset}: run again")

    def _file_at(self, position: int) -> BinaryIO:
        path, offset = self._scan.locate(position)
        file = self._files.pop(path, None)
        if file is None:
            if len(self._files) == _OPEN:
                self._files.pop(next(iter(self._files))).close()  # used least recently
            file = files.open_plain(path, _READ)
        self._files[path] = file
        file.seek(offset)
        return file

    def close(self) -> None:
        for file in self._files.values():
            file.close()


_STRIDE = 32  # lines between two offsets that are remembered: 2.5 MB for 10 million items
_OF_FAILURES = ("error", "message")
_ROWS, _WIDTH = 5, 120  # results, and characters of each, that a notebook shows


class Results(Sequence[Any]):
    """A run's results in the order of its indices; a failed item's place holds its `ItemFailure`.

    It holds a path and two numbers, never a result: iteration streams the file, `results[i]` reads at
    most 32 lines. No file stays open, and it can be pickled. After another merge has changed the file,
    reading raises an error rather than return another run's results.

    Args:
        path: The run's folder.

    Attributes:
        summary: The figures of the call of `run` that returned it (`RunSummary`); None: another way led to it.

    Raises:
        IncompleteRunError: The run has not been merged.
        DamagedFolderError: The merged file is not as long as its receipt says.
    """

    summary: RunSummary | None = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        receipt = read_receipt(self.path)
        self._length = receipt.planned
        self._failures = sum(receipt.failed.values())
        self._stamp = self._stamp_now()
        if self._stamp[0] != receipt.results_bytes:
            raise DamagedFolderError(
                f"{self.path / RESULTS} has {self._stamp[0]} bytes and its receipt says "
                f"{receipt.results_bytes}: run again with the same arguments to merge"
            )
        self._offsets: array[int] | None = None
        self._errors: dict[bytes, tuple[int, int]] | None = None  # offset and number of each line

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_offsets": None, "_errors": None}

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._records(0, self._length))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            wanted = range(*index.indices(self._length))
            if wanted.step == 1:
                return [value for _, value in self._records(wanted.start, wanted.stop)]
            return [next(self._records(at, at + 1))[1] for at in wanted]
        position = range(self._length)[index]  # negative indices count from the end; an error beyond it
        return next(self._records(position, position + 1))[1]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Results, list)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # like a list's: equality is by content

    def __repr__(self) -> str:
        failed = f", {self._failures} failed" if self._failures else ""
        return f"<{self._length} results{failed} in {str(self.path)!r}>"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [
            ("folder", self.path),
            ("results", f"{self._length:,}, {self._failures:,} failed"),
        ]
        shown = self[:_ROWS]
        rows += [(f"[{place}]", f"{value!r:.{_WIDTH}}") for place, value in enumerate(shown)]
        return html_table("Results", rows)

    def to_pandas(self) -> Any:
        """Return the results as a pandas DataFrame, one row an item, in their order.

        Its index holds the run's indices (as text where they are lists or mappings). Results that are mappings give
        their keys as columns, any others a column `result`. If items failed there are the columns `error` and
        `message`; they are empty where an item did not fail.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        return table(self._records(0, self._length), bool(self._failures))

    @property
    def failures(self) -> list[ItemFailure]:
        """The records of the failed items, in order."""
        path = self.path / ERRORS
        return [failure_of(line, path, number) for number, _, line in files.lines_of(path)]

    @property
    def ok(self) -> list[Any]:
        """The results of the other items, in order."""
        return [value for value in self if not isinstance(value, ItemFailure)]

    def _records(self, start: int, stop: int) -> Iterator[tuple[Any, Any]]:
        if start >= stop:
            return
        if self._stamp_now() != self._stamp:
            raise DamagedFolderError(
                f"{self.path / RESULTS} is no longer the file these results were in: "
                "it was merged again, or edited"
            )
        offset, skip = 0, start
        if start:
            if self._offsets is None:
                lines = files.lines_of(self.path / RESULTS)
                self._offsets = array("q", (at for number, at, _ in lines if number % _STRIDE == 1))
            offset, skip = self._offsets[start // _STRIDE], start % _STRIDE
        path, buffer = self.path / RESULTS, _WRITE if stop - start > _STRIDE else 8 << 10
        with files.open_plain(path, buffer) as file:
            file.seek(offset)
            for _ in range(skip):
                file.readline()
            for position in range(start, stop):
                line = file.readline()
                if line[-2:] != b"}\n":
                    raise DamagedFolderError(f"{path} ends before position {position}")
                record = record_of(line, path, position + 1)
                yield (record["index"], record["result"] if "result" in record else self._failed(position))

    def _failed(self, position: int) -> ItemFailure:
        path = self.path / ERRORS
        if self._errors is None:
            lines = files.lines_of(path)
            self._errors = {line[: line.find(b",")]: (at, number) for number, at, line in lines}
        found = self._errors.get(b'{"n":%d' % position)
        if found is None:
            raise DamagedFolderError(f"{path} has no line for position {position}, which failed")
        with files.open_plain(path) as file:
            file.seek(found[0])
            return failure_of(file.readline(), path, found[1])

    def _stamp_now(self) -> tuple[int, int]:
        try:
            status = os.stat(self.path / RESULTS)
        except FileNotFoundError:
            raise DamagedFolderError(
                f"{self.path / RESULTS} is gone: run again with the same arguments to merge"
            ) from None
        return status.st_size, status.st_mtime_ns


def table(records: Iterable[tuple[Any, Any]], any_failed: bool) -> Any:
    """Return indices and results as a DataFrame, as `Results.to_pandas` says."""
    try:
        import pandas
    except ImportError as error:
        # here: jobs, which import this, need none of it
        from espnet3.parallel.backends.backend import missing

        raise missing("to_pandas needs pandas, which is not installed", "pandas", "report") from error
    indices, rows = [], []
    for index, value in records:
        indices.append(index if isinstance(index, Hashable) else str(index))
        failed = isinstance(value, ItemFailure)
        said = (value.error_type, value.message) if failed else (None, None)
        rows.append(({} if failed else value if isinstance(value, dict) else {"result": value}, said))
    columns = dict.fromkeys(key for row, _ in rows for key in row)  # in the order of their first rows
    data = {key: [row.get(key) for row, _ in rows] for key in columns}
    for at, name in enumerate(_OF_FAILURES if any_failed else ()):
        data[f"item_{name}" if name in columns else name] = [said[at] for _, said in rows]
    return pandas.DataFrame(data, index=pandas.Index(indices, name="index", tupleize_cols=False))
