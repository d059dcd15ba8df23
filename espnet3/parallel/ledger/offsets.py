"""Reads lines of splits at given offsets: what a merge does with outcomes that are not in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.ledger.files import open_plain
from espnet3.parallel.ledger.lines import check_line
from espnet3.parallel.ledger.scan import OK, Scan
from espnet3.parallel.ledger.split import ERRORS, RESULTS

_LEAST_READ = 4 << 10  # a line somewhere else in a file is read with this much around it
_MOST_READ = 1 << 20  # lines that follow each other, with this
_READ_MEMORY = 64 << 20  # for all files together
_OPEN = 100  # splits of a run whose files stay open; with more, each read opens its file


class Lines:
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
        """Close the files."""
        for window in self._files.values():
            window.close()


class _Window:
    """A file, one stretch of which is held in memory."""

    def __init__(self, path: Path, most: int, stay_open: bool) -> None:
        self.path = path
        self._most = most
        self._file = open_plain(path, 0) if stay_open else None
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
        if self._file is not None:
            return os.pread(self._file.fileno(), size, offset)
        with open_plain(self.path, 0) as file:
            return os.pread(file.fileno(), size, offset)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
