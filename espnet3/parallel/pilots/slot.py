"""Slots: one connected worker thread each, where a run gets them, and the run's claim to them."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any, Protocol

from espnet3.parallel.engine.watch import Late
from espnet3.parallel.engine.work import Chunk
from espnet3.parallel.pilots.mark import InFlight, Window
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.records import ProcessEnd


class SlotChannel(Protocol):
    """A slot's messages, as `channel.Channel` carries them.

    Attributes:
        received: Bytes of the last message.
    """

    received: int

    def fileno(self) -> int:
        """Return a descriptor that selectors take, readable when there is something to read."""

    def readable(self) -> bool:
        """Whether `recv` would return, or raise, without waiting."""

    def buffered(self) -> bool:
        """Whether there is more to read that no selector knows of."""

    def at_end(self) -> bool:
        """Whether the other end is known to be gone, with nothing of it left to read."""

    def send(self, obj: Any) -> Any:
        """Send one object."""

    def send_parts(self, out: Any, buffers: Any) -> Any:
        """Send what `channel.pickle_parts` made."""

    def recv(self) -> Any:
        """Wait for one object."""

    def close(self) -> None:
        """Close it."""


class Slot:
    """One connected worker slot, as the driver sees it.

    Attributes:
        channel: Its channel.
        hello: How it introduced itself.
        flying: Chunks of the current run that were sent and not answered; the worker is at the first one.
        ready: Whether it has the current run's env.
        mark: What it is inside, also after its worker's death; None where the worker is on another host.
        seen: What it was inside at the driver's last looks, and since when by the driver's clock.
        late: The item for which it was killed, as that took too long; else None.
        end: How it was lost, where this side knows that better than the cluster; else None.
    """

    __slots__ = ("channel", "end", "flying", "hello", "late", "mark", "ready", "seen")

    def __init__(self, channel: SlotChannel, hello: Hello, mark: Window | None = None) -> None:
        self.channel = channel
        self.hello = hello
        self.flying: deque[Chunk] = deque()
        self.ready = False
        self.mark = mark
        self.seen: tuple[InFlight, float] | None = None
        self.late: Late | None = None
        self.end: ProcessEnd | None = None

    def fileno(self) -> int:
        """Return the channel's descriptor, for selectors."""
        return self.channel.fileno()

    @property
    def is_inside(self) -> bool:
        """Whether it is inside an item, as far as that is known, or was when its worker died."""
        return bool(self.mark.read().items if self.mark is not None else self.flying)


class SlotSource(Protocol):
    """Where runs get their slots: connections of pilots, or Dask tasks that stand in for them.

    Attributes:
        name: A name that no other source on these workers has.
        connected: Whether any slot has ever come.
    """

    name: str
    connected: bool

    @property
    def busy(self) -> bool:
        """Whether a run uses it."""

    def claim(self) -> SlotClaim:
        """Open a claim: the right to take slots until it is closed."""

    def take(self, claim: SlotClaim) -> list[Slot]:
        """Hand free slots to a claim."""

    def forget(self, claim: SlotClaim, slot: Slot) -> None:
        """Drop a slot of a claim, whose worker is gone."""

    def give_back(self, claim: SlotClaim, slots: list[Slot]) -> None:
        """Close a claim and take its slots back."""

    def shared(self, claim: SlotClaim, process: tuple[str, int]) -> bool:
        """Whether a process is inside an item of another claim, or was when it died."""

    def ask_for_more(self) -> None:
        """Have more slots opened, if those there are serve another run."""

    def close(self) -> None:
        """Close it, and every slot that no run has."""


class SlotClaim:
    """One run's slots. `fileno()` becomes readable when new slots may be taken.

    Attributes:
        slots: Those it has.
    """

    def __init__(self, source: SlotSource) -> None:
        self.slots: set[Slot] = set()
        self._source = source
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
        fresh = self._source.take(self)
        self.slots.update(fresh)
        return fresh

    def shared(self, process: tuple[str, int]) -> bool:
        """Whether a process may be inside an item of another run."""
        return self._source.shared(self, process)

    def ask_for_more(self) -> None:
        """As `SlotSource.ask_for_more`."""
        self._source.ask_for_more()

    def lost(self, slot: Slot) -> None:
        """Drop a slot whose worker is gone."""
        self.slots.discard(slot)
        self._source.forget(self, slot)

    def close(self) -> None:
        """Return the slots."""
        for slot in self.slots:
            slot.flying.clear()
            slot.ready = False
            slot.late = None
        self._source.give_back(self, list(self.slots))
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
        """Return when a worker of another host was last heard from, in any unit; None where nobody knows it."""

    def fall_back(self) -> bool:
        """Change to another source if workers are there and none can connect; True: a new claim is needed."""
