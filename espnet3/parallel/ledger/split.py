"""The files of one driver session: a `split.<k>` of its own, to which no other session ever appends.

Where the runner's own writers have the `split.<k>` (one for each shard), sessions are `session.<k>`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

from espnet3.parallel.ledger.files import Appender, open_plain, write_json, writing
from espnet3.parallel.ledger.lines import DAMAGED, check_line, sealed

RESULTS = "results.jsonl"
ERRORS = "errors.jsonl"
SPANS = "spans.jsonl"  # where in results.jsonl consecutive results stand
TIMES = "times.jsonl"  # how long items took: see `timing`
DONE = "done"
SPEC = "spec.json"
SPLIT = "split"
SESSION = "session"  # beside the splits of a runner with writers of its own: its shards

_SPAN = re.compile(
    rb'\{"n":(\d{1,18}),"items":(\d{1,18}),"offset":(\d{1,18}),"size":(\d{1,18}),"checksum":(\d{1,18}),"crc":\d+\}'
)
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
            and data.endswith(b"\n")
            and data.count(b"\n") == self.items
            and data.startswith(b'{"n":%d,' % self.n)
            and data.startswith(b'{"n":%d,' % (self.n + self.items - 1), data.rfind(b"\n", 0, -1) + 1)
        )


def read_spans(split: Path) -> list[Span]:
    """Return the spans of a split in order, none in another or beyond the file; damaged lines are left out."""
    try:
        with open_plain(split / SPANS) as file:
            lines, size = file.read().splitlines(), (split / RESULTS).stat().st_size
    except FileNotFoundError:
        return []
    found, end = list[Span](), 0
    for line in lines:
        facts = _SPAN.fullmatch(line)
        if facts is None or check_line(line) == DAMAGED:
            continue
        span = Span(*map(int, facts.groups()))
        if end <= span.offset <= size - span.size:
            found.append(span)
            end = span.offset + span.size
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
        self.results = self.errors = 0
        self._files: dict[str, Appender] = {}
        self._times: list[bytes] = []

    def append(self, lines: Sequence[bytes], positions: range | None = None) -> None:
        """Append lines of results in one write."""
        if not lines:
            return
        file = self._file(RESULTS)
        self.results += len(lines)
        if positions is None or len(lines) < _LEAST_ITEMS:
            file.append(lines)
            return
        starts = range(0, len(lines), _SPAN_ITEMS)
        blocks = [b"".join(lines[at : at + _SPAN_ITEMS]) for at in starts]
        offset, spans = file.size, list[bytes]()
        file.append(blocks)
        for at, block in zip(starts, blocks, strict=True):
            items = min(_SPAN_ITEMS, len(lines) - at)
            span = Span(positions[at], items, offset, len(block), crc32(block))
            spans.append(sealed(json.dumps(asdict(span), separators=(",", ":"))[:-1].encode()))
            offset += len(block)
        self._file(SPANS, durable=False).append(spans)

    def append_failures(self, lines: Sequence[bytes]) -> None:
        """Append lines of failed items in one write."""
        if lines:
            self._file(ERRORS).append(lines)
            self.errors += len(lines)

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
            write_json(self.folder / DONE, {"results": self.results, "errors": self.errors})

    def _file(self, name: str, durable: bool = True) -> Appender:
        if self.folder is None:
            self.folder = self._begin()
        if name not in self._files:
            self._files[name] = Appender(self.folder / name, durable)
        return self._files[name]

    def _begin(self) -> Path:
        existing = split_folders(self.path, self.kind)
        for number in count(int(existing[-1].suffix[1:]) + 1 if existing else 0):
            folder = self.path / f"{self.kind}.{number}"
            with writing(folder), suppress(FileExistsError):  # a session never shares a split
                os.mkdir(folder, 0o700)
                break
        write_json(folder / SPEC, self.spec)
        return folder
