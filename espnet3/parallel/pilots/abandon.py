"""Items that nobody waits for any more: one that takes too long, or one of a run that was given up."""

from __future__ import annotations

import selectors
import time

from espnet3.parallel.engine.exceptions import ANYTHING
from espnet3.parallel.engine.watch import Late
from espnet3.parallel.pilots.channel import ChannelClosedError
from espnet3.parallel.pilots.slot import Slot, SlotClaim
from espnet3.parallel.pilots.worker_cluster import WorkerCluster

_GRACE = 1.0  # seconds over item_timeout after which a worker is taken to be unable to kill itself
_FINISHING = 0.1  # seconds that an item may still take when its run is given up


def find_late_item(slot: Slot, run_id: int, limit: float | None) -> Late | None:
    """Return the item of a slot that should have been over long ago, if there is one.

    A worker kills itself over an item that takes too long, unless the item keeps every other thread from running.
    """
    if limit is None or slot.mark is None or slot.late is not None or not slot.flying:
        return None
    seen, now = slot.mark.read(), time.monotonic()
    if (seen.run, seen.start) != (run_id, slot.flying[0].start) or seen.items < 1 or not seen.since:
        return None
    return Late(seen.at, seen.items, now - seen.since) if now - seen.since > limit + _GRACE else None


def abandon_run(
    claim: SlotClaim, run_id: int, selector: selectors.BaseSelector, cluster: WorkerCluster
) -> None:
    """Leave a run unfinished in a client that goes on; its slots have been sent its end.

    An item (or an env) that takes longer than a moment is not waited for: its worker is killed and
    replaced, unless another run has an item in it.
    """
    until = time.monotonic() + _FINISHING
    while (busy := [s for s in claim.slots if _is_busy(s, run_id)]) and time.monotonic() < until:
        for key, _ in selector.select(_FINISHING / 20):
            if isinstance(key.fileobj, Slot):
                _read_on(key.fileobj, run_id, claim, selector)
    for slot in busy:
        if slot.hello.pid and slot in claim.slots and not claim.shared(slot.hello.process):
            cluster.kill_worker(*slot.hello.process)
            claim.lost(slot)


def _is_busy(slot: Slot, run_id: int) -> bool:
    if not slot.ready:
        return True
    seen = slot.mark.read() if slot.mark is not None else None
    return seen is not None and seen.run == run_id and seen.items != 0


def _read_on(slot: Slot, run_id: int, claim: SlotClaim, selector: selectors.BaseSelector) -> None:
    try:
        message = slot.channel.recv()
    except (ChannelClosedError, OSError):
        selector.unregister(slot)
        claim.lost(slot)
    except ANYTHING:  # a result that cannot be loaded here, and that nobody wants
        pass
    else:
        slot.ready = slot.ready or message[1] == run_id  # any message of the run means that the env is built
