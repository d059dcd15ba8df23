"""Watches items against `item_timeout`, from a thread beside them, at no cost per item.

    run_items ── results ──> list of values <── its length, a few times per timeout ── this thread
                  ^                                                                        │
                  └── the step's items are used up: it ends with the item it is in <───────┤
                              no new result for too long: report, which ends the process <─┘

A list grows as items are done, also while a C loop fills it, so its length says which item a
step of thousands is in. An item that holds the interpreter's lock keeps this thread from running;
for that case the driver itself looks at the slot's mark.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from espnet3.parallel.engine.exceptions import failure_of, pickle_error, stack_text

_LONGEST_STEP = 0.1  # seconds after which a step of several items ends with the item it is in
_LOOKS = 10  # per timeout
_LEAST_PAUSE, _MOST_PAUSE = 0.005, 0.25  # seconds between looks
_MUCH_LATER = 4  # times as late as planned, or later
_STACK = 20_000  # characters of a stack that travel: a deep recursion's has megabytes


@dataclass(frozen=True, slots=True)
class Late:
    """Items in progress when a call took too long, or raised what makes its process useless."""

    position: int  # of the first item in progress, in the chunk that the driver sent
    items: int  # 1, or a batch
    seconds: float
    stack: str = ""  # where the call was; "" where that is not known
    error: Sequence[str] | None = None  # type, message and traceback; None: it took too long
    raised: bytes | None = None  # the exception itself, where it can be pickled


Report = Callable[[Late], None]


def late_in(
    at: int,
    n: int,
    seconds: float,
    outer: list[Any] | None,
    stack: str = "",
    error: BaseException | None = None,
) -> Late:
    """Describe `n` items in progress; `outer`: the results so far of the chunk in whose item they run, if any."""
    said, raised = None, pickle_error(error)
    if error is not None:
        failure = failure_of(error, None, 1, "")
        said = failure.error_type, failure.message, failure.traceback
    if outer is not None:  # one item of that chunk, whatever of it is in progress
        at, n = len(outer), 1
    return Late(at, n, seconds, stack, said, raised)


class AwakeClock:
    """A clock that stands still while this process is stopped: by a signal, a scheduler's suspend, a paused machine.

    It is read at planned times; a look that comes much later counts as one in time.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._looked = time.monotonic()

    def look(self, planned: float) -> float:
        """Return the seconds so far; this look was to come `planned` seconds after the last one."""
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        self._seconds += passed if passed <= _MUCH_LATER * planned else planned
        return self._seconds


@dataclass(slots=True, eq=False)
class Watch:
    """One thread's loop over items, seen from outside.

    `report` is called, once, with a call that takes longer than `limit` seconds; it ends the process, where that is
    possible. `outer`: where these items run within an item of another chunk, that chunk's results so far.
    """

    loop: Any  # that of `engine.loop`
    limit: float
    report: Report
    outer: list[Any] | None = None
    thread: int = field(default_factory=threading.get_ident)
    seen: tuple[int, int] = (-1, -1)
    since: float = 0.0

    def __enter__(self) -> Watch:
        _WATCHMAN.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _WATCHMAN.remove(self)

    def look(self, now: float) -> Late | None:
        """See how far the items are, `now` by the watching thread's clock; called by that thread."""
        loop = self.loop
        seen = (len(loop.block.values), loop.calls)
        if seen != self.seen:
            self.seen, self.since = seen, now
        elif now - self.since > self.limit:
            frame = sys._current_frames().get(self.thread)
            stack = "" if frame is None else stack_text(frame, ("espnet3.parallel.engine.",))[-_STACK:]
            return late_in(len(loop.block.values), loop.at_once, now - self.since, self.outer, stack)
        if not loop.ended and time.perf_counter() - loop.began > _LONGEST_STEP:
            loop.end_step()
        return None


class _Watchman:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:  # also in a forked child, which has none of its parent's threads
        self._watches: set[Watch] = set()
        self._some = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, watch: Watch) -> None:
        with self._some:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="item-watch", daemon=True)
                self._thread.start()
            self._some.notify()

    def remove(self, watch: Watch) -> None:
        with self._some:
            self._watches.discard(watch)

    def _loop(self) -> None:
        clock, pause = AwakeClock(), 0.0
        while True:
            with self._some:
                while not self._watches:
                    self._some.wait()
                watches = list(self._watches)
            now = clock.look(pause)
            for watch in watches:
                if (late := watch.look(now)) is not None:
                    self.remove(watch)
                    watch.report(late)
            pause = min(max(min(w.limit for w in watches) / _LOOKS, _LEAST_PAUSE), _MOST_PAUSE)
            del watches, watch  # they hold results
            time.sleep(pause)


def end_process() -> None:
    """SIGKILL this process, with what it started where it leads a session of its own."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


_WATCHMAN = _Watchman()
os.register_at_fork(after_in_child=_WATCHMAN.forget)
