"""The outcomes of a run's items, read from its splits; a second look goes on where the first one ended."""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from espnet3.parallel.detached.looking.status import FolderStatus, driver_of, no_run
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.errors import damaged
from espnet3.parallel.ledger.files import NewLines, open_plain, read_or_none
from espnet3.parallel.ledger.folder import RUN, SHARDS, read_run
from espnet3.parallel.ledger.lines import check_line, failure_of
from espnet3.parallel.ledger.merge import RECEIPT, read_receipt
from espnet3.parallel.ledger.scan import FAILED, OK, Counted
from espnet3.parallel.ledger.split import ERRORS, RESULTS, SESSION, SPEC, SPLIT, split_folders
from espnet3.parallel.records import ItemFailure
from espnet3.parallel.timing.reading import RunTimes

MOST_FAILURES = 200_000  # failed items that are told apart: a report is for people
SHOWN = 100  # failed items that are named
SLOWEST = 10
_MESSAGE = 200  # characters of a message that group failures
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?|'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed items that have the same cause, type and, but for numbers and quoted texts, message."""

    cause: str  # "error", "poison", "timeout" or "result"
    error_type: str
    message: str  # of the first one, like the fields below
    count: int
    indices: tuple[str, ...]  # of the first ones,
    messages: tuple[str, ...]  # with the beginning of what each said
    traceback: str
    worker: str
    attempts: int  # the most that one of them had

    @property
    def text(self) -> str:
        """The type and the first message, in one line: one of several, where the others said something else."""
        said = ", such as" if len(set(self.messages)) > 1 else ":"
        return f"{self.error_type}{said} {' '.join(self.message.split())}"


class Failures:
    """Failed items, grouped as they are read."""

    def __init__(self, state: bytearray | None = None) -> None:
        self.unread = 0
        self._state = state  # of all items: one that has a result by now has not failed
        self.slowest: list[tuple[float, str]] = []
        self._first: dict[tuple[str, str, str], ItemFailure] = {}
        self._of: dict[int, tuple[tuple[str, str, str], str, int, str]] = {}

    def add(self, position: int, failure: ItemFailure) -> None:
        """Take in one; a later failure of the same position replaces it."""
        if len(self._of) >= MOST_FAILURES and position not in self._of:
            self.unread += 1
            return
        message = _VARYING.sub("…", " ".join(failure.message.split())[: 2 * _MESSAGE])[:_MESSAGE]
        key = failure.cause, failure.error_type, message
        self._first.setdefault(key, failure)
        shown = f"{failure.index!r:.80}"
        # those that come later are not named, unless many of the first ones were computed after all
        said = f"{' '.join(failure.message.split()):.{_MESSAGE}}" if len(self._of) < 10 * SHOWN else message
        self._of[position] = key, shown, failure.attempts, said
        if failure.seconds is not None:
            heapq.heappush(self.slowest, (failure.seconds, shown))
            if len(self.slowest) > SLOWEST:
                heapq.heappop(self.slowest)

    def groups(self) -> list[FailureGroup]:
        """Return the groups, the largest first."""
        members: dict[tuple[str, str, str], list[tuple[str, int, str]]] = {}
        for position, (key, index, attempts, said) in self._of.items():
            if self._state is None or self._state[position] == FAILED:
                members.setdefault(key, []).append((index, attempts, said))
        found = []
        for key, items in members.items():
            first, most = self._first[key], max(attempts for _, attempts, _ in items)
            indices, _, messages = zip(*items[:SHOWN], strict=True)
            facts = (first.message, len(items), indices, messages, first.traceback, first.worker, most)
            found.append(FailureGroup(first.cause, first.error_type, *facts))
        return sorted(found, key=lambda group: -group.count)


class Outcomes(Counted):
    """The outcomes that the splits of a run hold so far."""

    def __init__(self, run: Path, said: dict[str, Any]) -> None:
        self.run = run
        self.kind = SESSION if SHARDS in (said.get("plan") or {}) else SPLIT
        indices = said.get("indices") or {}
        try:
            self.state = bytearray(indices.get("count", 0))
        except (TypeError, ValueError, OverflowError, MemoryError) as error:
            raise damaged(run / RUN, 0, error) from error
        self.failures = Failures(self.state)
        self.foreign: list[str] = []  # names of splits of another index list, which are not counted
        self._sha256 = indices.get("sha256")
        self._lines = NewLines()
        self._own: set[Path] = set()

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each split that is not counted."""
        return tuple(f"{name} is of another index list and is not counted" for name in self.foreign)

    def look(self) -> None:
        """Read the lines since the last look."""
        for split in split_folders(self.run, self.kind):
            known = split in self._own or split.name in self.foreign
            # a folder that was just made has no file yet: its spec is the first one
            if not known and any((split / name).exists() for name in (SPEC, RESULTS, ERRORS)):
                said = read_or_none(split / SPEC)
                if said is not None and said.get("indices") == self._sha256:
                    self._own.add(split)
                else:
                    self.foreign.append(split.name)
            if split in self._own:
                for number, line in self._lines.of(split / ERRORS):
                    position = check_line(line)
                    if 0 <= position < len(self.state) and self.state[position] != OK:
                        self.state[position] = FAILED
                        self.failures.add(position, failure_of(line, split / ERRORS, number))
                for _, line in self._lines.of(split / RESULTS):
                    position = check_line(line)
                    if 0 <= position < len(self.state):
                        self.state[position] = OK


def folder_status(path: Path, outcomes: Outcomes | None = None) -> FolderStatus:
    """Return how the run of a folder is; `outcomes` are those of an earlier look."""
    try:
        run = read_run(path)
    except FileNotFoundError:
        raise ConfigError(no_run(path)) from None
    driver = driver_of(path)
    if (path / RECEIPT).exists():
        receipt = read_receipt(path)
        failed = sum(receipt.failed.values())
        return FolderStatus(str(path), receipt.planned, receipt.ok, failed, bool(driver), True, driver)
    seen = outcomes or Outcomes(path, run)
    seen.look()
    counts = len(seen.state), seen.ok, seen.failed
    return FolderStatus(str(path), *counts, bool(driver), False, driver, seen.notes)


def merged_failures(run: Path, failed: int) -> Failures:
    """Return the failed items of a merged run; beyond `MOST_FAILURES` of the `failed` they are only counted."""
    found = Failures()
    with open_plain(run / ERRORS, 1 << 20) as file:
        for number, line in enumerate(islice(file, MOST_FAILURES), 1):
            found.add(number, failure_of(line, run / ERRORS, number))
    found.unread = max(0, failed - MOST_FAILURES)
    return found


def slowest_of(failures: Failures, times: RunTimes) -> list[tuple[float, str]]:
    """Return the slowest items: timed ones, and failed ones, whose worker may have died with them."""
    longest: dict[str, float] = {}
    for seconds, name in [*((seconds, name) for seconds, _, name in times.slow), *failures.slowest]:
        longest[name] = max(seconds, longest.get(name, 0.0))
    return sorted(((seconds, name) for name, seconds in longest.items()), reverse=True)[:SLOWEST]
