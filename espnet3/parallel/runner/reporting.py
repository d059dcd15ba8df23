"""What a run's driver counts as outcomes come in, and what it says where it stops before its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espnet3.parallel.errors import ItemError, NoWorkersError, TooManyFailuresError, add_note
from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.records import ItemFailure
from espnet3.parallel.runner.advice import NoneWatch
from espnet3.parallel.runner.progress import Progress, say

_MOST_KINDS = 10  # of errors that a message lists
_STOPS = (KeyboardInterrupt, ItemError, TooManyFailuresError, NoWorkersError)
_NOTES_ARE_SHOWN = sys.version_info >= (3, 11)


class Reporter:
    """Counts the outcomes of one session of a run, and stops a run that is hopeless.

    Args:
        total: Items of the run.
        limit: `max_failures`: a number of items, or a share of them below 1; None: no limit.
        folder: The run's folder, or None.
        in_shards: The runner writes files of its own: what is kept is kept by whole shards.
        progress: Shows what is counted.
        nones: Looks for results that are missing.
    """

    def __init__(
        self,
        total: int,
        limit: float | None,
        folder: Path | None,
        in_shards: bool,
        progress: Progress,
        nones: NoneWatch,
    ) -> None:
        self._total = total
        self._limit = limit
        self._folder = folder
        self._in_shards = in_shards
        self._progress = progress
        self._nones = nones
        self._done = self._failed = self._failed_before = 0
        self._kinds: dict[str, tuple[int, ItemFailure]] = {}

    def resume(self, done: int, failed: int) -> None:
        """Count what earlier sessions have left in the folder."""
        self._done, self._failed_before = done, failed
        self._check()

    def __call__(self, values: Sequence[Any], failed: Sequence[int]) -> None:
        """Count more outcomes."""
        self._done += len(values)
        self._failed += len(failed)
        for at in failed:
            failure: ItemFailure = values[at]
            count, first = self._kinds.get(failure.error_type, (0, failure))
            self._kinds[failure.error_type] = count + 1, first
        self._progress.add(len(values), len(failed))
        self._nones.see(values, failed)
        self._check()

    def end(self) -> None:
        """Say what is to be said at a run's end."""
        self._nones.end()

    def _check(self) -> None:
        limit, failed = self._limit, self._failed + self._failed_before
        if limit is None or failed <= (limit * self._total if 0 < limit < 1 else limit):
            return
        message = f"{failed} of {self._total} items failed, and max_failures is {limit:g}"
        kinds = sorted(self._kinds.values(), key=lambda kind: -kind[0])
        for count, first in kinds[:_MOST_KINDS]:
            text = " ".join(first.message.split())
            message += f"\n  {count:,} x {first.error_type}, the first in {first.name}: {text:.200}"
        if len(kinds) > _MOST_KINDS:
            message += f"\n  and {len(kinds) - _MOST_KINDS} more kinds of errors"
        if self._failed_before:
            message += f"\n  {self._failed_before:,} in earlier sessions; retry_failed=True runs them again"
        raise TooManyFailuresError(message, self._kinds)

    def stopped(self, error: BaseException) -> None:
        """Add a line to the exception that has stopped the run: what is kept, where, and what the same call will do."""
        if isinstance(error, DamagedFolderError) or not (self._done or isinstance(error, _STOPS)):
            return  # what is kept of a folder that is gone, nobody knows
        line = self._kept(error)
        add_note(error, line)
        if not _NOTES_ARE_SHOWN:
            say(line)

    def _kept(self, error: BaseException) -> str:
        done, total = self._done, self._total
        if self._folder is None:
            return (
                f"stopped with {done:,} of {total:,} items done, and nothing is kept: the same call starts from the "
                "beginning. With an output_dir it would go on where it stopped"
            )
        where = f", which are kept in {self._folder}" if done else f" in {self._folder}"
        kept = f"stopped with {done:,} of {total:,} items done{where}"
        if isinstance(error, TooManyFailuresError):
            return (
                f"{kept}: the same call stops again; a higher max_failures lets it go on with the {total - done:,} "
                "left, and retry_failed=True runs the failed items again"
            )
        again = " (shards that were not finished start over)" if self._in_shards else ""
        failed = ", the failed item among them" if isinstance(error, ItemError) else ""
        return f"{kept}: the same call goes on with the {total - done:,} left{failed}{again}"
