"""Lost workers, until it is known how their process ended, and whether an item is to blame or the end of their job.

Nobody waits here: the driver's loop looks again, and serves all other workers meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from espnet3.parallel.errors import WorkerSetupError
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.pilots.slot import Slot
from espnet3.parallel.pilots.worker_cluster import WorkerCluster
from espnet3.parallel.records import ProcessEnd

_PATIENCE = 8.0  # seconds a cluster has to find out how a worker's job ended
_UNHEARD = 1.0  # seconds a cluster has to hear how a process of its own ended: its socket may close before
_SETUP_DEATHS = 3  # workers in a row that may die while they build the env
_LOOK = 0.01  # seconds between looks while that is about to be known
_EXCUSED = 3  # jobs that may end under the same chunk: after more, it does not fit into their walltime

Innocent = Callable[[Hello], "bool | None"]


class PendingLosses:
    """Workers that are gone with chunks in hand, until it is known why.

    Args:
        innocent: Says of a lost worker whether it went with its job (walltime, preemption, a lost
            node) and not because of its item; None while that is not known.
        cluster: Whose workers they are.

    Attributes:
        innocent: As given.
    """

    def __init__(self, innocent: Innocent, cluster: WorkerCluster) -> None:
        self.innocent = innocent
        self._cluster = cluster
        self._open: list[tuple[list[Slot], bool, float]] = []
        self._excused: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, slots: list[Slot], alone: bool) -> None:
        """Take the slots of a lost process; `alone` as for `Losses.settle`."""
        held = [slot for slot in slots if slot.flying]
        self._open.append((held, alone, time.monotonic()))

    def next_look(self, otherwise: float) -> float:
        """Return in how many seconds to look again; `otherwise` where nothing is about to be known."""
        due = any(self._may_hear(slots, since) for slots, _, since in self._open)
        return min(_LOOK, otherwise) if due else otherwise

    def _may_hear(self, slots: list[Slot], since: float) -> bool:
        return time.monotonic() - since < _UNHEARD and _end_is_due(self._cluster, slots[0].hello)

    def decided(self) -> list[tuple[list[Slot], bool, bool]]:
        """Return those that are decided now: the slots, `alone`, and whether they are free of blame."""
        decided: list[tuple[list[Slot], bool, bool]] = []
        waiting, self._open = self._open, []
        for slots, alone, since in waiting:
            if self._may_hear(slots, since):
                self._open.append((slots, alone, since))
                continue
            # one that was killed because a call took too long needs no other reason
            late = any(slot.late is not None for slot in slots)
            innocent = False if late else self.innocent(slots[0].hello)
            if innocent is None and time.monotonic() - since < _PATIENCE:
                self._open.append((slots, alone, since))
                continue
            starts = [slot.flying[0].start for slot in slots]
            free = bool(innocent) and all(self._excused[start] < _EXCUSED for start in starts)
            if free:
                self._excused.update(starts)
            decided.append((slots, alone, free))
        return decided


class SetupLosses:
    """Workers that died while they built the env: a few in a row, and the run is given up.

    Args:
        cluster: Whose workers they are.

    Attributes:
        count: Workers in a row; whoever sees an env built sets it to 0.
    """

    def __init__(self, cluster: WorkerCluster) -> None:
        self.count = 0
        self._cluster = cluster
        self._last: tuple[Hello, float] | None = None

    def add(self, hello: Hello) -> None:
        """Note the death of one."""
        self.count += 1
        self._last = (hello, time.monotonic())

    def check(self) -> None:
        """Give up if there were too many, once it is known how the last one ended.

        Raises:
            WorkerSetupError: There were.
        """
        if self.count < _SETUP_DEATHS or self._last is None:
            return
        hello, since = self._last
        if _end_is_due(self._cluster, hello) and time.monotonic() - since < _UNHEARD:
            return
        raise WorkerSetupError(
            f"the env could not be built: {self.count} worker processes in a row ended while they built it; the last "
            f"one, of worker {hello.worker}, {self._cluster.end_of(hello.pid) or ProcessEnd()}. Look for a crash in "
            "build_env_local or setup_fn, or for a lack of memory"
        )


def _end_is_due(cluster: WorkerCluster, hello: Hello) -> bool:
    """Whether a cluster will hear in a moment how a lost process ended: its socket closes first."""
    return bool(hello.pid) and cluster.owns_processes and cluster.end_of(hello.pid) is None
