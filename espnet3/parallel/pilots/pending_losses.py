"""Why a worker died with runs in hand: because of an item, or because its job came to an end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.pilots.slot import Slot

_VERDICT = 8.0  # seconds a cluster has to find out
_FORGIVEN = 3  # jobs that may end under the same item: more, and it does not fit into their walltime

Innocent = Callable[[Hello], "bool | None"]


class Inquests:
    """Workers that are gone with runs in hand, until it is known why.

    Args:
        innocent: Says of a lost worker whether it went with its job (walltime, preemption, a lost
            node) and not because of its item; None while that is not known.

    Attributes:
        innocent: As given.
    """

    def __init__(self, innocent: Innocent) -> None:
        self.innocent = innocent
        self._open: list[tuple[list[Slot], bool, float]] = []
        self._forgiven: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, slots: list[Slot], alone: bool) -> None:
        """Begin one, for the slots of a process; `alone` as for `Losses.settle`."""
        held = [slot for slot in slots if slot.flying]
        self._open.append((held, alone, time.monotonic() + _VERDICT))

    def verdicts(self) -> list[tuple[list[Slot], bool, bool]]:
        """Return those that are decided now: the slots, `alone`, and whether they are free of blame."""
        decided: list[tuple[list[Slot], bool, bool]] = []
        waiting, self._open = self._open, []
        for slots, alone, until in waiting:
            # one that was killed for its time needs no other reason
            late = any(slot.late is not None for slot in slots)
            said = False if late else self.innocent(slots[0].hello)
            if said is None and time.monotonic() < until:
                self._open.append((slots, alone, until))
                continue
            begun = [slot.flying[0].start for slot in slots]
            free = bool(said) and all(self._forgiven[start] < _FORGIVEN for start in begun)
            if free:
                self._forgiven.update(begun)
            decided.append((slots, alone, free))
        return decided
