"""Workers that are in the middle of something nobody waits for: an item out of time, a job given up."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable

from espnet3.parallel.engine.exceptions import ANYTHING
from espnet3.parallel.engine.watch import Late
from espnet3.parallel.pilots.channel import ChannelClosedError
from espnet3.parallel.pilots.pool import Lease
from espnet3.parallel.pilots.slot import Slot

_GRACE = 1.0  # seconds over item_timeout after which a worker is taken for unable to kill itself
_PARTING = 0.1  # seconds that an item may still take when its job is given up

Kill = Callable[[int], None]


def overdue(slot: Slot, job_id: int, limit: float | None) -> Late | None:
    """Return what a slot is in that should have been over, worker and all.

    A worker kills itself for an item that takes too long, unless the item lets no other thread run.
    """
    if limit is None or slot.mark is None or slot.late is not None or not slot.flying:
        return None
    seen, now = slot.mark.read(), time.monotonic()
    if (seen.job, seen.start) != (job_id, slot.flying[0].start) or seen.items < 1 or not seen.since:
        return None
    return Late(seen.at, seen.items, now - seen.since) if now - seen.since > limit + _GRACE else None


def kill_overdue(slot: Slot, kill: Kill | None) -> None:
    """Kill a worker of this host, be it ours or not."""
    if kill is not None:
        kill(slot.hello.pid)
    elif slot.hello.host == socket.gethostname():
        os.kill(slot.hello.pid, signal.SIGKILL)


def part(lease: Lease, job_id: int, selector: selectors.BaseSelector, kill: Kill) -> None:
    """Leave a job unfinished in a client that goes on; its workers have been told that it ends.

    An item (or an env) that takes longer than a moment is not waited for: its worker is killed and
    replaced, unless another job has something in it.
    """
    until = time.monotonic() + _PARTING
    while (busy := [s for s in lease.slots if _is_busy(s, job_id)]) and time.monotonic() < until:
        for key, _ in selector.select(_PARTING / 20):
            if isinstance(key.fileobj, Slot):
                _listen(key.fileobj, job_id, lease, selector)
    for slot in busy:
        if slot.hello.pid and slot in lease.slots and not lease.shared(slot.hello.process):
            kill(slot.hello.pid)
            lease.lost(slot)


def _is_busy(slot: Slot, job_id: int) -> bool:
    if not slot.ready:
        return True
    seen = slot.mark.read() if slot.mark is not None else None
    return seen is not None and seen.job == job_id and seen.items != 0


def _listen(slot: Slot, job_id: int, lease: Lease, selector: selectors.BaseSelector) -> None:
    try:
        message = slot.channel.recv()
    except (ChannelClosedError, OSError):
        selector.unregister(slot)
        lease.lost(slot)
    except ANYTHING:  # a result that cannot be loaded here, and that nobody wants
        pass
    else:
        slot.ready = slot.ready or message[1] == job_id  # whatever it says of the job: it is at it no more
