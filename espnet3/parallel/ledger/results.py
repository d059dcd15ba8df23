"""The result of a merged run: a sequence that is read from disk as it is used."""

from __future__ import annotations

import os
from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from espnet3.parallel.errors import MissingPackageError
from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.ledger.files import open_plain
from espnet3.parallel.ledger.lines import failure_of, record_of
from espnet3.parallel.ledger.merge import read_receipt
from espnet3.parallel.ledger.split import ERRORS, RESULTS
from espnet3.parallel.messages import html_table, shown
from espnet3.parallel.records import ItemFailure, RunSummary

_STRIDE = 32  # lines between two offsets that are remembered: 2.5 MB for 10 million items
_BUFFER = 1 << 20
_OF_FAILURES = ("error", "message")
_SHOWN, _WIDTH = 5, 120  # results, and characters of each, that a notebook shows


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
            if not wanted:
                return []
            if wanted.step == 1:
                return [value for _, value in self._records(wanted.start, wanted.stop)]
            return [next(self._records(at, at + 1))[1] for at in wanted]
        if not hasattr(index, "__index__"):
            raise TypeError(
                f"results have positions from 0 to {self._length - 1} and slices, not {shown(index)}"
            )
        position = range(self._length)[index]  # negative indices count from the end; IndexError beyond it
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
        shown = self[:_SHOWN]
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
        return [failure_of(line, path, number) for number, _, line in _placed(path)]

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
            offset, skip = self._offset(start // _STRIDE), start % _STRIDE
        path, buffer = self.path / RESULTS, _BUFFER if stop - start > _STRIDE else 8 << 10
        with open_plain(path, buffer) as file:
            file.seek(offset)
            for _ in range(skip):
                file.readline()
            for position in range(start, stop):
                line = file.readline()
                if line[-2:] != b"}\n":
                    raise DamagedFolderError(f"{path} ends before position {position}")
                record = record_of(line, path, position + 1)
                yield (record["index"], record["result"] if "result" in record else self._failed(position))

    def _offset(self, stretch: int) -> int:
        if self._offsets is None:
            lines = _placed(self.path / RESULTS)
            self._offsets = array("q", (at for number, at, _ in lines if number % _STRIDE == 1))
        return self._offsets[stretch]

    def _failed(self, position: int) -> ItemFailure:
        path = self.path / ERRORS
        if self._errors is None:
            self._errors = {line[: line.find(b",")]: (at, number) for number, at, line in _placed(path)}
        found = self._errors.get(b'{"n":%d' % position)
        if found is None:
            raise DamagedFolderError(f"{path} has no line for position {position}, which failed")
        with open_plain(path) as file:
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


def _placed(path: Path) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    with open_plain(path, _BUFFER) as file:
        for number, line in enumerate(file, 1):
            yield number, at, line
            at += len(line)


def table(records: Iterable[tuple[Any, Any]], any_failed: bool) -> Any:
    """Return indices and results as a DataFrame, as `Results.to_pandas` says."""
    try:
        import pandas
    except ImportError as error:
        # here: jobs, which import this, need none of it
        from espnet3.parallel.backends.backend import pip_line

        raise MissingPackageError(
            f"to_pandas needs pandas, which is not installed. Please install it: {pip_line('report')}",
            name="pandas",
        ) from error
    indices, rows = [], []
    for index, value in records:
        indices.append(index if isinstance(index, Hashable) else str(index))
        if isinstance(value, ItemFailure):
            rows.append({"error": value.error_type, "message": value.message})
        else:
            rows.append(value if isinstance(value, dict) else {"result": value})
    columns = dict.fromkeys(key for row in rows for key in row)  # in the order of their first rows
    if any_failed:
        columns = {**{key: None for key in columns if key not in _OF_FAILURES}, **dict.fromkeys(_OF_FAILURES)}
    data = {key: [row.get(key) for row in rows] for key in columns}
    return pandas.DataFrame(data, index=pandas.Index(indices, name="index", tupleize_cols=False))
