"""The files of sessions: each driver session has a `split.<k>` of its own, to which no other one ever appends.

Where the runner's own writers have the `split.<k>` (one for each shard), sessions are `session.<k>`.

A `Scan` reads the files of all sessions: done positions, the places of their lines, and damage. The results of a span
are read at once, with one look at its checksum; other results, and failures, line by line.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

from espnet3.parallel.ledger import files
from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.ledger.lines import DAMAGED, checked, encode_failure, failure_of, index_json, split_line
from espnet3.parallel.records import ItemFailure

RESULTS = "results.jsonl"
ERRORS = "errors.jsonl"
SPANS = "spans.jsonl"  # where in results.jsonl consecutive results stand
TIMES = "times.jsonl"  # how long items took: see `timing`
DONE = "done"
SPEC = "spec.json"
SPLIT = "split"
SESSION = "session"  # beside the splits of a runner with writers of its own: its shards

_SPAN_ITEMS = 1000  # at most
_LEAST_ITEMS = 64  # fewer are read line by line


@dataclass(frozen=True, slots=True)
class Span:
    """Lines of results.jsonl that follow each other and hold the results of consecutive positions.

    One checksum for all of them lets readers take many at a time: a folder of millions opens in a second.
    Nothing depends on it: lines that no span fits are read one by one.
    """

    n: int  # the first position
    items: int
    offset: int  # of the first line in the file
    size: int  # of all lines in bytes
    checksum: int  # of all lines: CRC-32

    def fits(self, data: bytes) -> bool:
        """Return whether these are the lines it was noted for."""
        return (
            len(data) == self.size
            and crc32(data) == self.checksum
            and data.count(b"\n") == self.items
            and data.startswith(b'{"n":%d,' % self.n)
        )


def read_spans(split: Path) -> list[Span]:
    """Return the spans of a split in order, none in another or beyond the file; damaged lines are left out."""
    found, end, size = list[Span](), 0, (split / RESULTS).stat().st_size
    for said in files.NewLines().records(split / SPANS):
        if files.is_of(said, Span) and end <= said["offset"] <= size - said["size"]:
            found.append(Span(**said))
            end = said["offset"] + said["size"]
    return found


def split_folders(path: Path, kind: str = SPLIT) -> list[Path]:
    """Return a run's splits (or its folders of another kind), the oldest first."""
    found = [p for p in path.glob(f"{kind}.*") if p.suffix[1:].isdigit() and p.is_dir()]
    return sorted(found, key=lambda folder: int(folder.suffix[1:]))


class SplitWriter:
    """A new split of a run, created with its first line; "indices" of its spec is the hash of the positions' list."""

    def __init__(self, path: Path, spec: dict[str, Any], kind: str = SPLIT) -> None:
        self.path = path
        self.kind = kind
        self.spec = spec
        self.folder: Path | None = None
        self._files: dict[str, files.Appender] = {}
        self._times: list[bytes] = []

    def append(self, lines: Sequence[bytes], positions: range | None = None) -> None:
        """Append lines of results in one write."""
        if not lines:
            return
        file = self._file(RESULTS)
        offset, spans = file.size, list[bytes]()
        file.append(lines)
        if positions is None or len(lines) < _LEAST_ITEMS:
            return
        for at in range(0, len(lines), _SPAN_ITEMS):
            part = lines[at : at + _SPAN_ITEMS]
            block = b"".join(part)
            span = Span(positions[at], len(part), offset, len(block), crc32(block))
            spans.append(json.dumps(asdict(span), separators=(",", ":")).encode() + b"\n")
            offset += len(block)
        self._file(SPANS, durable=False).append(spans)

    def append_failures(self, failures: Iterable[tuple[int, ItemFailure]]) -> None:
        """Append position and record of each failed item, in one write."""
        if lines := [encode_failure(position, failure) for position, failure in failures]:
            self._file(ERRORS).append(lines)

    def append_times(self, lines: Sequence[bytes]) -> None:
        """Append lines on item times; no outcome depends on them, and they wait for the first one."""
        self._times += lines
        if self.folder is not None:
            self._file(TIMES, durable=False).append(self._times)
            self._times = []

    def sync(self) -> None:
        """Have the disk hold all lines; raise `DamagedFolderError` if a written file was deleted."""
        for file in self._files.values():
            file.sync()
            file.check()

    def close(self, done: bool) -> None:
        """Close the files; with `done`, leave the mark of a session that ended in order."""
        try:
            for file in self._files.values():
                file.close()
        finally:
            self._files = {}
        if done and self.folder is not None:
            files.write_json(self.folder / DONE, {})

    def _file(self, name: str, durable: bool = True) -> files.Appender:
        if self.folder is None:
            numbers = [int(folder.suffix[1:]) for folder in split_folders(self.path, self.kind)]
            folder = self.path / f"{self.kind}.{max(numbers, default=-1) + 1}"
            with files.writing(folder):
                folder.mkdir(0o700)  # an error where it is there: a session never shares a split
            files.write_json(folder / SPEC, self.spec)
            self.folder = folder
        if name not in self._files:
            self._files[name] = files.Appender(self.folder / name, durable)
        return self._files[name]


LEFT, OK, FAILED = 0, 1, 2
_BUFFER = 64 << 10  # bytes read at a time
_OFFSET_BITS = 40  # a file of up to a terabyte, one of up to 8 million
_SHOWN = 5  # damaged lines of a file that are named

# From a whole line, its number and position to its position in the present list; None leaves it out
Place = Callable[[bytes, int, int], "int | None"]


class Counted:
    """Outcomes by position: `state` has one byte for each, `LEFT`, `OK` or `FAILED`."""

    __slots__ = ("state",)
    state: bytearray

    @property
    def ok(self) -> int:
        """Positions with a result."""
        return self.state.count(OK)

    @property
    def failed(self) -> int:
        """Positions whose last outcome is a failure."""
        return self.state.count(FAILED)


class Scan(Counted):
    """The content of a run's splits.

    A line that is damaged or torn counts as not written. A result wins over a failure, whichever is
    later; of two failures the later one. A split of another index list (after `resume="force"`) is
    looked up by index.
    """

    def __init__(self, path: Path, items: Sequence[Any], indices_sha256: str, kind: str = SPLIT) -> None:
        n = len(items)
        self.state = bytearray(n)
        # by position, the place of its line, if in no span (`locate`); pages that nothing is written to take no memory
        self.where = memoryview(mmap.mmap(-1, max(1, n) * 8)).cast("q")[:n]
        splits = split_folders(path, kind)
        # failures first: whichever result came before or comes later takes their place
        self.files = [split / name for name in (ERRORS, RESULTS) for split in splits]
        # those taken whole, by their first position, and the place of their first line
        self.spans: dict[int, tuple[Span, int]] = {}
        self.repaired: list[str] = []  # a sentence for each damage, with its repair
        self.repeated = 0  # lines that repeat an earlier one
        self._items = items
        self._own = {split: self._is_own(split, indices_sha256) for split in splits}
        for number, file in enumerate(self.files):
            if file.exists():
                self._read(number, file, OK if file.name == RESULTS else FAILED)
        self.__dict__.pop("_by_index", None)  # it is large

    def locate(self, position: int) -> tuple[Path, int]:
        """Return the file of a position's line, and the offset in it."""
        place = self.spans[position][1] if position in self.spans else self.where[position]
        return self.files[place >> _OFFSET_BITS], place % (1 << _OFFSET_BITS)

    def line_of(self, position: int) -> tuple[Path, int, bytes]:
        """Return the file of a position's line, the offset in it, and the line; there are no spans afterwards."""
        for span, first in self.spans.values():
            with files.open_plain(self.files[first >> _OFFSET_BITS]) as lines:
                lines.seek(span.offset)
                for inside in range(span.n, span.n + span.items):
                    self.where[inside] = first - span.offset + lines.tell()
                    lines.readline()
        self.spans.clear()
        file, offset = self.locate(position)
        with files.open_plain(file) as lines:
            lines.seek(offset)
            return file, offset, lines.readline()

    def _is_own(self, split: Path, indices_sha256: str) -> bool:
        try:
            return bool(files.read_json(split / SPEC).get("indices") == indices_sha256)
        except (DamagedFolderError, FileNotFoundError) as error:
            what = "is missing" if isinstance(error, FileNotFoundError) else "is damaged"
            self.repaired.append(f"{split.name}/{SPEC} {what}: what it holds was looked up by its index")
            return False

    def _read(self, number: int, file: Path, outcome: int) -> None:
        own = self._own[file.parent]
        place = self._own_place(file, outcome) if own else self._moved_place
        spans = read_spans(file.parent) if outcome == OK and own else []
        at, lines, first = 0, 0, number << _OFFSET_BITS
        damage: list[int] = []
        with files.open_plain(file, _BUFFER) as stream:
            for span in (*spans, None):
                # a line that runs into a span is damage: the lines of the span are read one by one
                while (span is None or at < span.offset) and (line := stream.readline()):
                    lines += 1
                    if not self._line(line, lines, first | at, file, outcome, place):
                        damage.append(lines)
                    at += len(line)
                if span is None or at != span.offset:
                    continue
                if span.fits(stream.read(span.size)) and self._take(span, first | at):
                    lines += span.items
                    at += span.size
                else:
                    stream.seek(at)
        if damage:
            shown = ", ".join(map(str, damage[:_SHOWN])) + (", ..." if len(damage) > _SHOWN else "")
            count = f"{len(damage)} damaged or torn line{'s' if len(damage) > 1 else ''}"
            self.repaired.append(
                f"{file.parent.name}/{file.name}: {count} left out (line {shown}); "
                "items without another outcome are computed again"
            )

    def _line(self, line: bytes, at: int, begin: int, file: Path, outcome: int, place: Place) -> bool:
        n = checked(line)
        if n == DAMAGED:
            return False
        try:
            position = place(line, at, n)
        except ValueError:  # it has no index
            return False
        if position is None:
            return True
        if self.state[position] == OK:
            other, offset, first = self.line_of(position)
            if split_line(first)[1] == split_line(line)[1]:
                self.repeated += 1
            elif self._own[file.parent]:
                raise DamagedFolderError(
                    f"item {self._items[position]!r} (position {position}) has two different results: {other}, at "
                    f"byte {offset}, and {file}, at byte {begin % (1 << _OFFSET_BITS)}. Remove the wrong line, or "
                    "start anew with resume=False"
                )
            return True
        self.state[position], self.where[position] = outcome, begin
        if outcome == FAILED:
            failure_of(line, file, at)  # raises for a damaged one
        return True

    def _take(self, span: Span, place: int) -> bool:
        end = span.n + span.items
        if span.n < 0 or self.state.count(LEFT, span.n, end) != span.items:
            return False
        self.spans[span.n] = span, place
        self.state[span.n : end] = bytes([OK]) * span.items
        return True

    def _own_place(self, file: Path, outcome: int) -> Place:
        items, n, kind = self._items, len(self._items), b"result" if outcome == OK else b"failure"

        def place(line: bytes, at: int, position: int) -> int:
            if position < n:
                index = index_json(items[position])
                if line.startswith(b'{"n":%d,"index":%b,"%b":' % (position, index, kind)):
                    return position
            planned = f"only {n} were planned" if position >= n else f"{items[position]!r} was planned there"
            raise DamagedFolderError(
                f"{file}, line {at}: an outcome of index {split_line(line)[0].decode()} at position {position}, and "
                f"{planned}. The file belongs to another run: move its folder away, or start anew with resume=False"
            )

        return place

    def _moved_place(self, line: bytes, at: int, was: int) -> int | None:
        index = split_line(line)[0]
        if was < len(self._items) and index_json(self._items[was]) == index:
            return was  # of an item that is in the list twice, no other place is known
        return self._by_index.get(index)

    @cached_property
    def _by_index(self) -> dict[bytes, int | None]:
        found: dict[bytes, int | None] = {}
        for position, item in enumerate(self._items):
            index = index_json(item)
            found[index] = None if index in found else position
        return found
