"""Slots, each a connected worker thread, and a run's claim to some of them."""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from espnet3.parallel.engine.watch import Late
from espnet3.parallel.engine.work import Chunk
from espnet3.parallel.pilots.channel import Channel
from espnet3.parallel.pilots.mark import InFlight, Window
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.records import ProcessEnd

SlotSource: TypeAlias = Any  # a `Pool`, or a `TaskPool` (`dask.tasks`) with the same methods


@dataclass(slots=True, eq=False)
class Slot:
    """One connected worker slot, as the driver sees it."""

    channel: Channel
    hello: Hello
    mark: Window | None = None  # None where the worker is on another host
    flying: deque[Chunk] = field(default_factory=deque)  # sent and not answered; the worker is at the first
    ready: bool = False  # has the current run's env
    seen: tuple[InFlight, float] | None = None  # its mark, and since when by the driver's clock
    late: Late | None = None  # the item for which it was killed, as that took too long
    end: ProcessEnd | None = None  # how it was lost, where this side knows that better than the cluster

    def fileno(self) -> int:
        """Return the channel's descriptor, for selectors."""
        return self.channel.fileno()

    @property
    def is_inside(self) -> bool:
        """Whether the slot is inside an item, as far as that is known, or was when its worker died."""
        return bool(self.mark.read().items if self.mark is not None else self.flying)


class SlotClaim:
    """One run's slots. `fileno()` becomes readable when new slots may be taken."""

    def __init__(self, source: SlotSource) -> None:
        self.slots: set[Slot] = set()
        self.source = source
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_w.setblocking(False)
        self._wake_r.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor that `wake` makes readable."""
        return self._wake_r.fileno()

    def wake(self) -> None:
        """Let the run's loop know that slots have arrived; from any thread."""
        try:
            self._wake_w.send(b"!")
        except OSError:  # full (the loop will wake anyway) or closed (the run is over)
            pass

    def collect(self) -> list[Slot]:
        """Take the slots that are free now."""
        try:
            self._wake_r.recv(4096)
        except BlockingIOError:
            pass
        fresh: list[Slot] = self.source.take(self)
        self.slots.update(fresh)
        return fresh

    def shared(self, process: tuple[str, int]) -> bool:
        """Whether a process may be inside an item of another run."""
        return bool(self.source.shared(self, process))

    def lost(self, slot: Slot) -> None:
        """Drop a slot whose worker is gone."""
        self.slots.discard(slot)
        self.source.forget(self, slot)

    def close(self) -> None:
        """Return the slots."""
        for slot in self.slots:
            slot.flying.clear()
            slot.ready = False
            slot.late = None
        self.source.give_back(self, list(self.slots))
        self.slots.clear()
        self._wake_r.close()
        self._wake_w.close()


class RunSlots(Protocol):
    """The slots that one run may use, whatever cluster has them."""

    def claim(self) -> SlotClaim:
        """Open a claim to slots of the present source."""

    def check(self) -> None:
        """Check that the workers can still be used."""

    def last_heard(self, address: str) -> Any:
        """Return when a worker of another host was last heard from, in any unit; None where that is not known."""
        return None

    def fall_back(self) -> bool:
        """Change to another source if workers are there and none can connect; True: a new claim is needed."""
        return False
