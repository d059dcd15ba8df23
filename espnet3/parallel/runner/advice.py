"""What a run says of a slip in silence's place: warnings that point at the caller's own line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from espnet3.parallel.messages import warn_caller

_ENOUGH = 50  # items without a result after which a warning does not wait for the run's end
_NO_RESULT = re.compile(rb'"result":null,"crc":\d+}\n\Z')  # how the line of such an item ends


class NoneWatch:
    """Warns, once, of a run whose every result is None: as a rule, its `forward` lacks a `return`.

    Args:
        name: What the function is called.
        total: Items of the run.
    """

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._none = 0
        self._over = total < 2  # one None may well be meant

    def see(self, values: Sequence[Any], failed: Sequence[int]) -> None:
        """Take note of results, or of their lines in a run folder.

        Args:
            values: One per item.
            failed: Positions of those that are failures.
        """
        if self._over:
            return
        skip = set(failed)
        for at, value in enumerate(values):
            if at in skip:
                continue
            if value is not None and not (type(value) is bytes and _NO_RESULT.search(value)):
                self._over = True
                return
            self._none += 1
        if self._none >= _ENOUGH:
            self._warn(f"the first {self._none:,} of {self._total:,}")

    def end(self) -> None:
        """Warn at the end of the run, if that has not been done."""
        if not self._over and self._none > 1:
            self._warn(f"all {self._none:,}")

    def _warn(self, which: str) -> None:
        self._over = True
        warn_caller(f"{self._name} returned None for {which} items: is a `return` missing?")
