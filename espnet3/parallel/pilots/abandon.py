"""Give up an item that takes too long, an unfinished run, a worker that is frozen."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from espnet3.parallel.engine.exceptions import ANYTHING
from espnet3.parallel.engine.watch import AwakeClock, Late
from espnet3.parallel.pilots.channel import ChannelClosedError
from espnet3.parallel.pilots.slot import Slot, SlotClaim
from espnet3.parallel.pilots.worker_cluster import WorkerCluster

_GRACE = 1.0  # seconds over item_timeout after which a worker is taken to be unable to kill itself
_LOOKS = 20  # at a worker's signs of life, per frozen_timeout
_LEAST_PAUSE = 0.25  # seconds between two such looks: the driver looks around no more often
_FINISHING = 0.1  # seconds that an item may still take when its run is given up


class SignsOfLife:
    """Notices a worker process that has been frozen for `limit` seconds: by a signal, or with its node.

    A process that lives wakes up every two seconds at least, for Dask's heartbeat, whatever its items do: also beside
    one that sleeps, or that keeps the interpreter's lock. On this host the processor time and the context switches
    say so; of a process on another host, the scheduler's note of its last heartbeat does.
    """

    def __init__(self, limit: float | None, last_heard: Callable[[str], Any]) -> None:
        self._limit = limit
        self._last_heard = last_heard
        self._signs: dict[tuple[str, int], tuple[Any, float]] = {}  # the last one, since when
        self._next = 0.0
        self._clock = AwakeClock()

    def frozen(self, slots: set[Slot]) -> list[tuple[Slot, float]]:
        """Return a slot of each process that is frozen, and for how many seconds it has given no sign of life."""
        if self._limit is None or time.monotonic() < self._next:
            return []
        pause = self._limit / _LOOKS
        self._next = time.monotonic() + pause
        now = self._clock.look(max(pause, _LEAST_PAUSE))
        found: list[tuple[Slot, float]] = []
        before, self._signs = self._signs, {}
        for process, slot in {slot.hello.process: slot for slot in slots if slot.hello.pid}.items():
            sign = self._sign(slot)
            last, since = before.get(process, (None, now))
            self._signs[process] = (sign, since if sign == last else now)
            if sign == last and now - since > self._limit:
                found.append((slot, now - since))
        return found

    def _sign(self, slot: Slot) -> Any:
        host, pid = slot.hello.process
        if host != socket.gethostname():
            return self._last_heard(slot.hello.address)
        if pid == os.getpid():
            return time.monotonic()
        try:
            import psutil  # 30 ms that a first result need not wait for
        except OSError:  # no descriptor is free to load it
            return time.monotonic()
        try:
            process = psutil.Process(pid)
            return process.cpu_times()[:2], process.num_ctx_switches()
        except (OSError, psutil.Error):  # no descriptor is free; it has ended; only its owner may look
            return time.monotonic()


def find_late_item(slot: Slot, run_id: int, limit: float | None, now: float) -> Late | None:
    """Return the item of a slot that should have been over long ago, if there is one; `now` by the driver's clock.

    A worker kills itself over an item that takes too long, unless the item keeps every other thread from running.
    """
    if limit is None or slot.mark is None or slot.late is not None or not slot.flying:
        return None
    seen = slot.mark.read()
    if (seen.run, seen.start) != (run_id, slot.flying[0].start) or seen.items < 1 or not seen.since:
        return None
    if slot.seen is None or slot.seen[0] != seen:
        slot.seen = seen, now
    seconds = now - slot.seen[1]
    return Late(seen.at, seen.items, seconds) if seconds > limit + _GRACE else None


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
    except ANYTHING:  # a result that cannot be loaded here, and is not wanted
        pass
    else:
        slot.ready = slot.ready or message[1] == run_id  # any message of the run means that the env is built
