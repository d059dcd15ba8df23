"""What one driver session appends: a `split.<k>` of its own, which no other session ever appends to.

Where the runner's own writers have the `split.<k>` (one for each shard), sessions are `session.<k>`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from espnet3.parallel.ledger.files import Appender, make_folder, write_json, writing

RESULTS = "results.jsonl"
ERRORS = "errors.jsonl"
TIMES = "times.jsonl"  # how long items took: see `timing`
DONE = "done"
SPEC = "spec.json"
SPLIT = "split"
SESSION = "session"  # beside the shards of a runner with writers of its own, which are the splits there


def split_folders(path: Path, kind: str = SPLIT) -> list[Path]:
    """Return a run's splits (or its folders of another kind) in the order in which they were begun."""
    found = [p for p in path.glob(f"{kind}.*") if p.suffix[1:].isdigit() and p.is_dir()]
    return sorted(found, key=_number)


def _number(folder: Path) -> int:
    return int(folder.suffix[1:])


class SplitWriter:
    """A new split of a run, created with its first line.

    Args:
        path: The run's folder.
        spec: What is noted in `spec.json`; its "indices" says which index list positions refer to.
        kind: The first part of its name.
    """

    def __init__(self, path: Path, spec: dict[str, Any], kind: str = SPLIT) -> None:
        self.path = path
        self.kind = kind
        self.spec = spec
        self.folder: Path | None = None
        self.results = self.errors = 0
        self._files: dict[str, Appender] = {}
        self._times: list[bytes] = []

    def append(self, lines: Sequence[bytes]) -> None:
        """Append lines of results in one write."""
        if lines:
            self._file(RESULTS).append(lines)
            self.results += len(lines)

    def append_failures(self, lines: Iterable[bytes]) -> None:
        """Append lines of failed items in one write."""
        lines = list(lines)
        if lines:
            self._file(ERRORS).append(lines)
            self.errors += len(lines)

    def append_times(self, lines: Sequence[bytes]) -> None:
        """Append lines on item times, which no outcome depends on; before the first outcome they wait."""
        self._times += lines
        if self.folder is not None:
            self._file(TIMES, durable=False).append(self._times)
            self._times = []

    def check(self) -> None:
        """Raise `DamagedFolderError` where somebody has deleted what was written here."""
        for file in self._files.values():
            file.check()

    def sync(self) -> None:
        """Have the disk hold all lines."""
        for file in self._files.values():
            file.sync()

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
        number = _number(existing[-1]) + 1 if existing else 0
        while True:
            folder = self.path / f"{self.kind}.{number}"
            with writing(folder):
                try:
                    os.mkdir(folder, 0o700)  # fails where there is one: a session never shares a split
                except FileExistsError:
                    number += 1
                    continue
            make_folder(folder)
            write_json(folder / SPEC, self.spec)
            return folder
