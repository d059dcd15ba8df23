"""Reads the files of all sessions: done positions, the places of their lines, and damage.

The results of a span are read at once, with one look at its checksum; other results, and failures, line by line.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.ledger.files import open_plain, read_json
from espnet3.parallel.ledger.lines import check_line, checked, failure_of, index_json, split_line
from espnet3.parallel.ledger.split import DONE, ERRORS, RESULTS, SPEC, SPLIT, Span, read_spans, split_folders

LEFT, OK, FAILED = 0, 1, 2
_BUFFER = 64 << 10  # bytes read at a time
_OFFSET_BITS = 40  # a file of up to a terabyte, in one of up to 8 million splits
_SHOWN = 5  # damaged lines of a file that are named

# From a whole line to its position in the present list and its checksum there; None leaves it out
Place = Callable[[bytes, int, int, int], "tuple[int, int] | None"]


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
    """The content of a run's splits; `where` and `spans` are empty unless `offsets` are asked for."""

    def __init__(
        self,
        path: Path,
        items: Sequence[Any],
        indices_sha256: str,
        in_spans: bool,
        offsets: bool,
        kind: str,
    ) -> None:
        self.state = bytearray(len(items))
        self.where = _zeros("q", len(items))  # by position, the place of its line, if in no span (`locate`)
        # by position, the checksum of its line, to tell whether another result is the same
        self.sums = _zeros("I", len(items))
        self.splits = split_folders(path, kind)
        # those taken whole, by their first position, and the place of their first line
        self.spans: dict[int, tuple[Span, int]] = {}
        self.repaired: list[str] = []  # a sentence for each damage, with its repair
        self.repeated = 0  # lines that repeat an earlier one
        self._items = items
        self._in_spans = in_spans
        self._offsets = offsets
        self._own = [self._is_own(split, indices_sha256) for split in self.splits]
        # failures first: whichever result came before or comes later takes their place
        errors = [self._file(number, ERRORS, FAILED) for number in range(len(self.splits))]
        results = [self._file(number, RESULTS, OK) for number in range(len(self.splits))]
        for split, n_results, n_errors in zip(self.splits, results, errors, strict=True):
            self._compare_with_done(split, {"results": n_results, "errors": n_errors})
        self.__dict__.pop("_by_index", None)  # it is large

    def locate(self, position: int) -> tuple[int, int]:
        """Return the number of the split and the offset in its file of a position's line."""
        place = self.spans[position][1] if position in self.spans else self.where[position]
        return place >> _OFFSET_BITS, place & ((1 << _OFFSET_BITS) - 1)

    def _is_own(self, split: Path, indices_sha256: str) -> bool:
        try:
            return bool(read_json(split / SPEC).get("indices") == indices_sha256)
        except (DamagedFolderError, FileNotFoundError) as error:
            what = "is missing" if isinstance(error, FileNotFoundError) else "is damaged"
            self.repaired.append(f"{split.name}/{SPEC} {what}: what it holds was looked up by its index")
            return False

    def _file(self, number: int, name: str, outcome: int) -> int:
        file = self.splits[number] / name
        if not file.exists():
            return 0
        own = self._own[number]
        place = self._own_place(file, outcome) if own else self._moved_place
        spans = read_spans(file.parent) if outcome == OK and own and self._in_spans else []
        at, lines, first = 0, 0, number << _OFFSET_BITS
        damage: list[int] = []
        with open_plain(file, _BUFFER) as stream:
            for span in (*spans, None):
                # a line that runs into a span is damage: the lines of the span are read one by one
                while (span is None or at < span.offset) and (line := stream.readline()):
                    lines += 1
                    if not self._line(line, lines, first | at, number, outcome, place):
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
        return lines - len(damage)

    def _line(self, line: bytes, at: int, begin: int, number: int, outcome: int, place: Place) -> bool:
        state, sums, where = self.state, self.sums, self.where
        found = checked(line)
        if found is None:
            return False
        try:
            placed = place(line, at, *found)
        except ValueError:  # it has no index
            return False
        if placed is None:
            return True
        position, checksum = placed
        if state[position] == OK:
            if self._in_spans:
                raise _SecondOutcomeError
            if sums[position] == checksum:
                self.repeated += 1
            elif self._own[number]:
                raise self._two_results(position, number, at)
            return True
        state[position], sums[position] = outcome, checksum
        if self._offsets:
            where[position] = begin
            if outcome == FAILED:
                failure_of(line, self.splits[number] / ERRORS, at)  # raises for a damaged one
        return True

    def _take(self, span: Span, offset: int) -> int:
        begin, end = span.n, span.n + span.items
        state = self.state
        if end > len(state) or state.count(LEFT, begin, end) != span.items:
            return 0
        if self._offsets:
            self.spans[begin] = span, offset
        state[begin:end] = bytes([OK]) * span.items
        return span.items

    def _own_place(self, file: Path, outcome: int) -> Place:
        items, n, of_numbers = self._items, len(self._items), isinstance(self._items, range)
        kind = b"result" if outcome == OK else b"failure"
        head = b'{"n":%%d,"index":%%%b,"%b":' % (b"d" if of_numbers else b"b", kind)

        def place(line: bytes, at: int, position: int, checksum: int) -> tuple[int, int]:
            if position < n:
                index = items[position] if of_numbers else index_json(items[position])
                if line.startswith(head % (position, index)):
                    return position, checksum
            planned = f"only {n} were planned" if position >= n else f"{items[position]!r} was planned there"
            raise DamagedFolderError(
                f"{file}, line {at}: an outcome of index {split_line(line)[0].decode()} at position {position}, and "
                f"{planned}. The file belongs to another run: move its folder away, or start anew with resume=False"
            )

        return place

    def _moved_place(self, line: bytes, at: int, was: int, checksum: int) -> tuple[int, int] | None:
        position = self._by_index.get(split_line(line)[0])
        if position is None:
            return None
        rest = line[line.index(b",", 5) : line.rindex(b',"crc":')]
        return position, crc32(b'{"n":%d%b' % (position, rest))

    @cached_property
    def _by_index(self) -> dict[bytes, int | None]:
        found: dict[bytes, int | None] = {}
        for position, item in enumerate(self._items):
            index = index_json(item)
            found[index] = None if index in found else position
        return found

    def _compare_with_done(self, split: Path, have: dict[str, int]) -> None:
        try:
            said = read_json(split / DONE)
        except FileNotFoundError:
            return
        except DamagedFolderError:
            self.repaired.append(f"{split.name}/{DONE} is damaged: what the split holds was counted instead")
            return
        for kind, count in have.items():
            if count != said.get(kind):
                self.repaired.append(
                    f"{split.name}/{DONE} says {said.get(kind)} {kind} and {count} whole ones are there: "
                    "items without another outcome are computed again"
                )

    def _two_results(self, position: int, number: int, at: int) -> DamagedFolderError:
        first = "another line"
        for other, own in zip(self.splits[: number + 1], self._own, strict=False):
            if own and (other / RESULTS).exists():
                with open_plain(other / RESULTS) as stream:
                    hit = next((k for k, line in enumerate(stream, 1) if check_line(line) == position), None)
                if hit is not None:
                    first = f"{other / RESULTS}, line {hit}"
                    break
        return DamagedFolderError(
            f"item {self._items[position]!r} (position {position}) has two different results: {first}, "
            f"and {self.splits[number] / RESULTS}, line {at}. Remove the wrong line, or start anew with "
            "resume=False"
        )


def scan_splits(
    path: Path, items: Sequence[Any], indices_sha256: str, *, offsets: bool = False, kind: str = SPLIT
) -> Scan:
    """Read all splits of a run.

    A line that is damaged or torn counts as not written. A result wins over a failure, whichever is
    later; of two failures the later one. A split of another index list (after `resume="force"`) is
    looked up by index.
    """
    try:
        return Scan(path, items, indices_sha256, True, offsets, kind)
    except _SecondOutcomeError:
        return Scan(path, items, indices_sha256, False, offsets, kind)


def _zeros(kind: str, n: int) -> memoryview[int]:
    # pages that nothing is written to take no memory: items in spans need none. typeshed knows no `cast` by a variable
    return memoryview(mmap.mmap(-1, max(1, n) * struct.calcsize(kind))).cast(kind)[:n]  # type: ignore[call-overload, no-any-return]


class _SecondOutcomeError(Exception):
    """A second result of a position, whose first one was read in a span without its own checksum."""
