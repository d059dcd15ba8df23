"""When a job stops taking items: at a signal, at its walltime, or by an order in the run folder."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from espnet3.parallel.detached.layout import ENDED, Layout
from espnet3.parallel.detached.marks import Marks
from espnet3.parallel.detached.states import GRACE, JobState
from espnet3.parallel.ledger.errors import FolderWriteError
from espnet3.parallel.ledger.files import write_json
from espnet3.parallel.messages import masked

# TERM: preemption, walltime, cancel. USR1, USR2: the warnings of SLURM, SGE and others. INT: Ctrl-C in a terminal.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
# What the job's process ends with; 75 is EX_TEMPFAIL, "try again later"
EXIT_DONE, EXIT_FAILED, EXIT_UNFINISHED = 0, 1, 75
_LOOK = 1.0  # seconds between looks at the run folder
_MARGIN = 30.0  # seconds kept for the end of a job, at most
_SHARE = 0.05  # of the walltime, at most
_LONGEST = 1.25  # an item may take this many times as long as the longest one seen


class StopNow(KeyboardInterrupt):
    """Raised where nothing would be lost; a KeyboardInterrupt, so that nothing on the way takes it for an error."""


class Stopping:
    """Decides whether to take another item, and writes the job's end before it comes.

    A scheduler kills a job at its walltime, and forgets after a while that it did. By then the job has written it down:
    when its time is nearly over, from a thread, because an item may keep the interpreter busy for the rest of it; and
    when it is sent a signal. A job that does end in order replaces this by its real end.
    """

    def __init__(self, layout: Layout, walltime: float | None, began: float) -> None:
        self.longest = 0.0  # seconds of the longest item seen
        self.building = False  # nothing is in flight: a signal may interrupt at once
        self._layout = layout
        self._deadline = None if walltime is None else began + walltime
        self._margin = min(_MARGIN, _SHARE * (walltime or 0.0))
        self._looked = 0.0
        self._signal: signal.Signals | None = None
        self._ordered: JobState | None = None
        self._why = ""
        self._grace = GRACE
        self._kill: threading.Timer | None = None
        self._marks: Marks | None = None
        self._early: Path | None = None  # the file of an early end; None: nothing is written any more
        self._lock = threading.RLock()  # a signal's handler may come while this thread has it
        self._timer: threading.Timer | None = None

    def listen(self) -> None:
        """Take the signals; from now on they end the job in order."""
        for number in SIGNALS:
            signal.signal(number, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # those that came before are taken now

    def begin(self, folder: Path, marks: Marks) -> None:
        """Write early ends for a shard, whose lease is held."""
        self._early, self._marks = folder / ENDED, marks
        self._early.unlink(missing_ok=True)  # an earlier attempt's
        left = self._seconds_left()
        if left is not None:
            why = "its walltime was over before the item it was at"
            self._timer = _timer(left, self._write, JobState.TIMEOUT, why)

    def end(self) -> None:
        """Write nothing any more: the real end comes."""
        with self._lock:
            self._early = None
        if self._timer is not None:
            self._timer.cancel()

    def _write(self, state: JobState, why: str) -> None:
        with self._lock:
            if self._early is None:
                return
            with contextlib.suppress(FolderWriteError):  # a full disk: the next outcome reports it
                write_json(self._early, {"state": state.value, "why": why, "early": True})

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number)
        if self._marks is not None:
            self._marks.note(stopping=True)
            state, why = self.reason()
            left = self._seconds_left()
            # few: the signal is that of the walltime, which began before this process
            timed_out = state is JobState.UNFINISHED and left is not None and left < GRACE
            how = f"{why}, and was killed before it could end in order"
            self._write(JobState.TIMEOUT if timed_out else state, how)
        self._look()
        if self._ordered is JobState.CANCELLED and self._kill is None:
            # the item may never end, and a scheduler may leave it ten minutes before it kills
            self._kill = _timer(self._grace, os._exit, EXIT_UNFINISHED)
        if self.building:
            self.building = False  # a second signal must not interrupt the end that this one begins
            raise StopNow

    def now(self) -> bool:
        """Return whether to stop taking items."""
        if self._why or self._signal is not None:
            return True
        now = time.monotonic()
        if self._deadline is not None and now + self._margin + _LONGEST * self.longest > self._deadline:
            self._why = f"its walltime is nearly over, and the longest item took {self.longest:.1f} s"
            return True
        if now - self._looked >= _LOOK:
            self._looked = now
            self._look()
        return bool(self._why)

    def _look(self) -> None:
        ordered = self._layout.stopped()
        if ordered is not None:
            self._ordered = JobState(ordered.get("state", JobState.CANCELLED))
            self._grace = float(ordered.get("grace", GRACE))
            self._why = str(ordered.get("why", "the run was told to stop"))

    @property
    def ordered(self) -> bool:
        """True once the run was told to stop, by a user or by another shard."""
        return self._ordered is not None

    def _seconds_left(self) -> float | None:
        """Return the seconds until its walltime is nearly over; None: no limit is known."""
        return None if self._deadline is None else self._deadline - self._margin - time.monotonic()

    @property
    def warned(self) -> bool:
        """True if the job ends because its time is up: by its own clock, or by the scheduler's warning."""
        if self._ordered is not None:
            return False
        return self._signal in (None, signal.SIGUSR1, signal.SIGUSR2)

    def reason(self) -> tuple[JobState, str]:
        """Return the state to end in, and why; cancelling explains a signal that came with it."""
        self._look()
        if self._ordered is not None:
            return self._ordered, self._why
        if self._signal is not None:
            return JobState.UNFINISHED, f"it was sent {self._signal.name}"
        return JobState.UNFINISHED, self._why


def _timer(seconds: float, function: Callable[..., object], *arguments: object) -> threading.Timer:
    timer = threading.Timer(max(0.0, seconds), function, arguments)
    timer.daemon = True
    timer.start()
    return timer


def say(text: str) -> None:
    """Say a line in the job's log."""
    if text:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {masked(text)}", file=sys.stderr, flush=True)
