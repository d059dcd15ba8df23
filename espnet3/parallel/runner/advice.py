"""What a run says of a slip in silence's place: warnings that point at the caller's own line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from espnet3.parallel.messages import warn_caller
from espnet3.parallel.records import ItemFailure

_ENOUGH = 50  # items without a result after which a warning does not wait for the run's end
_MOST = 10_000  # items of which a finished run is looked through: the first may all have failed
_NO_RESULT = re.compile(rb'"result":null,"crc":\d+}\n\Z')  # how the line of such an item ends


class NoneWatch:
    """Warns, once, of a run whose every result is None: as a rule, its `forward` lacks a `return`.

    Args:
        name: What the function is called.
        total: Items of the run.

    Attributes:
        over: There is nothing more to find out.
    """

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._none = 0
        self.over = total < 2  # one None may well be meant

    def see(self, values: Sequence[Any], failed: Sequence[int]) -> None:
        """Take note of results, or of their lines in a run folder."""
        if self.over:
            return
        skip = set(failed)
        for at, value in enumerate(values):
            if at in skip:
                continue
            if value is not None and not (type(value) is bytes and _NO_RESULT.search(value)):
                self.over = True
                return
            self._none += 1
        if self._none >= _ENOUGH:
            self._warn(f"the first {self._none:,} of {self._total:,}")

    def end(self) -> None:
        """Warn at the end of the run, if that has not been done."""
        if not self.over and self._none > 1:
            self._warn(f"all {self._none:,}")

    def _warn(self, which: str) -> None:
        self.over = True
        warn_caller(f"{self._name} returned None for {which} items: is a `return` missing?")


def look_for_nones(name: str, results: Sequence[Any]) -> None:
    """Warn of a finished run whose every result is None."""
    watch = NoneWatch(name, len(results))
    for value in islice(results, _MOST):
        watch.see([value], [0] if isinstance(value, ItemFailure) else [])
        if watch.over:
            return
    watch.end()
