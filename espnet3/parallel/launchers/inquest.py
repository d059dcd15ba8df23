"""Why a worker died with a run in hand: because of its item, or because its job came to an end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from espnet3.parallel.launchers.protocol import Hello
from espnet3.parallel.plan import Run

_VERDICT = 8.0  # seconds a cluster has to find out
_FORGIVEN = 3  # jobs that may end under the same item: more, and it does not fit into their walltime

Innocent = Callable[[Hello], "bool | None"]


class Inquests:
    """The runs whose worker is gone, until it is known why.

    Args:
        innocent: Says of a lost worker whether it went with its job (walltime, preemption, a lost
            node) and not because of its item; None while that is not known.

    Attributes:
        innocent: As given.
    """

    def __init__(self, innocent: Innocent) -> None:
        self.innocent = innocent
        self._open: list[tuple[Run, Hello, float]] = []
        self._forgiven: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, run: Run, hello: Hello) -> None:
        """Begin one."""
        self._open.append((run, hello, time.monotonic() + _VERDICT))

    def verdicts(self) -> list[tuple[Run, Hello, bool]]:
        """Return those that are decided now: the run, its worker, and whether it is free of blame."""
        decided: list[tuple[Run, Hello, bool]] = []
        waiting, self._open = self._open, []
        for run, hello, until in waiting:
            said = self.innocent(hello)
            if said is None and time.monotonic() < until:
                self._open.append((run, hello, until))
                continue
            free = bool(said) and self._forgiven[run.start] < _FORGIVEN
            self._forgiven[run.start] += free
            decided.append((run, hello, free))
        return decided
