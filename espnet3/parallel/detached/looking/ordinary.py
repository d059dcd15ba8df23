"""How a run without jobs is, from its folder alone: how many items are done, and whether its driver is at work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.looking.status import driver_of
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.ledger.files import open_plain, read_json
from espnet3.parallel.ledger.folder import RUN, read_run
from espnet3.parallel.ledger.lines import check_line
from espnet3.parallel.ledger.merge import RECEIPT, read_receipt
from espnet3.parallel.ledger.session import SHARDS
from espnet3.parallel.ledger.split import ERRORS, RESULTS, SESSION, SPEC, SPLIT, split_folders

_OK, _FAILED = 1, 2
_SHOWN = 5  # folders with a run that are named where there is none


@dataclass(frozen=True, slots=True)
class FolderStatus:
    """A run with `output_dir`, as it is now.

    Attributes:
        run: Its folder.
        items: Items of the run.
        ok: Those with a result.
        failed: Those with a failure.
        alive: Whether its driver is at work.
        merged: Whether the merged files and their receipt are there.
        driver: The driver that is at work: process, host, and since when; empty where none is.
        notes: Other remarks.
    """

    run: str
    items: int
    ok: int
    failed: int
    alive: bool
    merged: bool
    driver: str = ""
    notes: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        """Whether every item has an outcome, and the merged files prove it."""
        return self.merged and not self.alive

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain JSON data."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "done": self.done, "notes": list(self.notes)}


def folder_status(path: Path) -> FolderStatus:
    """Return how the run of a folder is."""
    try:
        run = read_run(path)
    except FileNotFoundError:
        raise ConfigError(no_run(path)) from None
    driver = driver_of(path)
    alive = bool(driver)
    if (path / RECEIPT).exists():
        receipt = read_receipt(path)
        failed = sum(receipt.failed.values())
        return FolderStatus(str(path), receipt.planned, receipt.ok, failed, alive, True, driver)
    indices = run.get("indices", {})
    kind = SESSION if SHARDS in run.get("plan", {}) else SPLIT
    state = bytearray(indices.get("count", 0))
    notes = []
    for split in split_folders(path, kind):
        if not _is_of(split, indices.get("sha256")):
            notes.append(f"{split.name} is of another index list and is not counted")
            continue
        for name, outcome in ((ERRORS, _FAILED), (RESULTS, _OK)):
            for position in _positions(split / name):
                if position < len(state) and state[position] != _OK:
                    state[position] = outcome
    ok, failed = state.count(_OK), state.count(_FAILED)
    return FolderStatus(str(path), len(state), ok, failed, alive, False, driver, tuple(notes))


def no_run(path: Path) -> str:
    """Return a message for a folder that holds no run, which names those below it that do."""
    below = sorted(str(file.parent.relative_to(path)) for file in path.glob(f"*/{RUN}"))
    more = ", ..." if len(below) > _SHOWN else ""
    there = f" (there are runs in {', '.join(below[:_SHOWN])}{more})" if below else ""
    return f"{path} holds no run{there}: give the runner's output_dir, with its shard_subdir"


def _is_of(split: Path, indices_sha256: Any) -> bool:
    try:
        return bool(read_json(split / SPEC).get("indices") == indices_sha256)
    except (FileNotFoundError, DamagedFolderError):  # the run itself looks these up by their index
        return False


def _positions(file: Path) -> Iterator[int]:
    try:
        stream = open_plain(file, 1 << 20)
    except FileNotFoundError:
        return
    with stream:
        for line in stream:
            position = check_line(line)
            if position >= 0:  # else torn: the driver is writing it, or was killed there
                yield position
