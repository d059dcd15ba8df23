"""Items of a shard that took longer than `item_timeout`: noted by whoever kills their process, read by the next."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from espnet3.parallel.detached.layout import LATE
from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.ledger.files import read_json, write_json
from espnet3.parallel.records import ItemFailure, Policy


@dataclass(frozen=True, slots=True)
class LateItem:
    """What was in progress when a process was killed because a call took too long.

    Attributes:
        begin: Position of the first item.
        end: The position after the last one's; more than one item is a batch, or a step that nobody could look into.
        seconds: How long it took.
        stack: Where it was, as text; empty where nobody could look.
    """

    begin: int
    end: int
    seconds: float
    stack: str


class LateItems:
    """The late items of one shard.

    Args:
        folder: The shard's folder.

    Attributes:
        records: One for each process that was killed.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / LATE
        try:
            found = read_json(self._file).get("late", [])
        except (FileNotFoundError, DamagedFolderError):  # damaged: the host went down while it was written
            found = []
        self.records = [LateItem(**record) for record in found]

    def note(self, begin: int, end: int, seconds: float, stack: str) -> None:
        """Note that a process is killed for the items [begin, end)."""
        self.records.append(LateItem(begin, end, seconds, stack))
        self._write()

    def forget(self, positions: Collection[int]) -> None:
        """Drop what is noted of positions alone: they are to run as if for the first time."""
        kept = [one for one in self.records if one.end - one.begin > 1 or one.begin not in positions]
        if len(kept) < len(self.records):
            self.records = kept
            self._write()

    def _write(self) -> None:
        write_json(self._file, {"late": [asdict(record) for record in self.records]})

    @property
    def suspects(self) -> set[int]:
        """Positions that were late with others: they go one by one."""
        wide = [one for one in self.records if one.end - one.begin > 1]
        return {position for one in wide for position in range(one.begin, one.end)}

    def given_up(self, policy: Policy) -> dict[int, LateItem]:
        """Return the positions that were late alone more often than they may be tried again, and the last time."""
        alone = [one for one in self.records if one.end - one.begin == 1]
        counts: dict[int, int] = {}
        for one in alone:
            counts[one.begin] = counts.get(one.begin, 0) + 1
        return {one.begin: one for one in alone if counts[one.begin] > policy.max_retries}

    def failure(self, late: LateItem, index: object, policy: Policy, worker: str) -> ItemFailure:
        """Return the record of an item that is given up."""
        attempts = sum((one.begin, one.end) == (late.begin, late.end) for one in self.records)
        return ItemFailure(
            index=index,
            error_type="TimeoutError",
            message=f"it took longer than item_timeout = {policy.item_timeout:g} s on {worker}, whose process was "
            f"killed in it after {late.seconds:.1f} s",
            traceback=f"It was here:\n{late.stack}" if late.stack else "",
            attempts=attempts,
            worker=worker,
            cause="timeout",
            seconds=late.seconds,
        )
