"""One connected worker slot, as the driver sees it."""

from __future__ import annotations

from collections import deque

from espnet3.parallel.engine.watch import Late
from espnet3.parallel.engine.work import Chunk
from espnet3.parallel.pilots.channel import Channel
from espnet3.parallel.pilots.mark import Window
from espnet3.parallel.pilots.protocol import Hello


class Slot:
    """One connected worker slot, as the driver sees it.

    Attributes:
        channel: Its channel.
        hello: Who it is.
        flying: Runs of the current job sent and not answered; the first one is being run.
        ready: Whether it has the current job's env.
        mark: What it is inside, also after its worker's death; None where the worker is on another host.
        late: What it was in when it was given up for taking too long.
    """

    __slots__ = ("channel", "flying", "hello", "late", "mark", "ready")

    def __init__(self, channel: Channel, hello: Hello, mark: Window | None = None) -> None:
        self.channel = channel
        self.hello = hello
        self.flying: deque[Chunk] = deque()
        self.ready = False
        self.mark = mark
        self.late: Late | None = None

    def fileno(self) -> int:
        """Return the channel's descriptor, for selectors."""
        return self.channel.fileno()

    @property
    def is_inside(self) -> bool:
        """Whether it is in an item, as far as that is known, or was when its worker died."""
        return bool(self.mark.read().items if self.mark is not None else self.flying)
