"""What a worker is at: a mark on disk before each stretch of items, read by whoever comes after its death."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.layout import DEATHS, MARK
from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.ledger.files import read_json, write_json

_WIDTH = 240  # bytes: each mark covers the one before in one write
_DEADLY = 2  # workers one item may take with it


class Marks:
    """The marks of one shard.

    Args:
        folder: The shard's folder; its lease is held.

    Attributes:
        ok: Items with a result.
        failed: Items with a failure.
    """

    def __init__(self, folder: Path) -> None:
        self.ok = self.failed = 0
        self._folder = folder
        self._in_flight: tuple[int, int] | None = None
        self._excused = False
        self._fd = -1
        self._deaths = self._take_up()
        self._fd = os.open(folder / MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._write()  # a death is counted once

    def _take_up(self) -> list[list[int]]:
        """Note the death of an earlier worker, if its mark says that one died over items."""
        deaths = list((_read(self._folder / DEATHS) or {}).get("in_flight", []))
        died = _read(self._folder / MARK) or {}
        self.ok, self.failed = died.get("ok", 0), died.get("failed", 0)
        if died.get("in_flight") and not died.get("stopping"):
            deaths.append(died["in_flight"])
            write_json(self._folder / DEATHS, {"in_flight": deaths})
        return deaths

    @property
    def suspects(self) -> set[int]:
        """Positions that were in flight at a death: they go one by one."""
        return {position for begin, end in self._deaths for position in range(begin, end)}

    @property
    def poison(self) -> set[int]:
        """Positions that were alone in flight at two deaths."""
        alone = Counter(begin for begin, end in self._deaths if end - begin == 1)
        return {position for position, deaths in alone.items() if deaths >= _DEADLY}

    def deaths(self, position: int) -> int:
        """Return how many workers died while a position was in flight."""
        return sum(begin <= position < end for begin, end in self._deaths)

    def set(self, in_flight: tuple[int, int] | None) -> None:
        """Say what is in flight: positions [begin, end)."""
        self._in_flight = in_flight
        self._write()

    def excuse(self) -> None:
        """Say that this worker was told to stop: if it is killed now, that is no item's fault."""
        self._excused = True
        self._write()

    def _write(self) -> None:
        mark: dict[str, Any] = {"in_flight": self._in_flight, "ok": self.ok, "failed": self.failed}
        if self._excused:
            mark["stopping"] = True
        if self._fd >= 0:
            os.pwrite(self._fd, json.dumps(mark).encode().ljust(_WIDTH) + b"\n", 0)

    def close(self) -> None:
        """Say that nothing is in flight."""
        self.set(None)
        fd, self._fd = self._fd, -1
        os.close(fd)


def excuse_dead(folder: Path) -> None:
    """Say that a worker that is dead was killed, and that its mark blames no item."""
    mark = _read(folder / MARK)
    if mark is not None:
        write_json(folder / MARK, {**mark, "stopping": True})


def forget_deaths(folder: Path, positions: Collection[int]) -> None:
    """Forget the deaths of workers over positions alone: they are to run as if for the first time."""
    deaths = (_read(folder / DEATHS) or {}).get("in_flight", [])
    kept = [[begin, end] for begin, end in deaths if end - begin > 1 or begin not in positions]
    if len(kept) < len(deaths):
        write_json(folder / DEATHS, {"in_flight": kept})


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return read_json(file)
    except (FileNotFoundError, DamagedFolderError):  # the host went down while it was written
        return None
