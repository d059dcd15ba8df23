"""When a job stops: at a signal, at its walltime, by an order in the run folder; and when an item is killed."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from espnet3.parallel.detached import states
from espnet3.parallel.detached.layout import ENDED, LOG, Layout
from espnet3.parallel.detached.states import GRACE, JobState, LossFile, job_name, note_end
from espnet3.parallel.engine.blame import Loss
from espnet3.parallel.ledger.errors import FolderWriteError
from espnet3.parallel.ledger.files import open_to_write, write_json
from espnet3.parallel.messages import masked
from espnet3.parallel.records import ProcessEnd

# TERM: preemption, walltime, cancel. USR1, USR2: the warnings of SLURM, SGE and others. INT: Ctrl-C in a terminal.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
# What the job's process ends with; 75 is EX_TEMPFAIL, "try again later"
EXIT_DONE, EXIT_FAILED, EXIT_UNFINISHED = 0, 1, 75
_LOOK = 1.0  # seconds between looks at the run folder
_MARGIN = 30.0  # seconds kept for the end of a job, at most
_SHARE = 0.05  # of the walltime, at most
_LONGEST = 1.25  # an item may take this many times as long as the longest one seen
_OFTEN, _RARELY = 0.02, 0.25  # seconds between two looks at the child, at least and at most
_SLACK = 1.0  # seconds that the parent waits beyond 1.5 limits: by then the child's own thread has seen it, if it runs
_SWEEP = 5.0  # seconds for what a killed child had started to be gone
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


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
        self._deadline = math.inf  # when the job is to end, by `time.monotonic`
        if walltime is not None:
            self._deadline = began + walltime - min(_MARGIN, _SHARE * walltime)
        self._over = self._deadline  # the same, until it is written down that it has come
        self.signal: signal.Signals | None = None  # what an item has started may have been sent it, too
        self.order: dict[str, Any] | None = None  # to the run to stop, by a user or by another shard
        self._no_time = ""  # why no item is begun any more, where time is short
        self._marks: states.Marks | None = None
        self._early: Path | None = None  # the file of an early end; None: nothing is written any more
        self._lock = threading.Lock()

    def listen(self) -> None:
        """Take the signals; from now on they end the job in order."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._handle)
        block = functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK, SIGNALS)
        unblock = functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, SIGNALS)
        os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=self._leave)
        os.register_at_fork(after_in_child=unblock)
        unblock()  # those that came before are taken now
        self._look()
        threading.Thread(target=self._hear, args=(reading,), name="espnet3-stop", daemon=True).start()

    def _leave(self) -> None:
        # in a process that an item has forked: a signal ends that, and is not the job's
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            if signal.getsignal(number) == self._handle:
                usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, usual)

    def begin(self, folder: Path, marks: states.Marks) -> None:
        """Write early ends for a shard, whose lease is held."""
        self._early, self._marks = folder / ENDED, marks
        self._early.unlink(missing_ok=True)  # an earlier attempt's

    def end(self) -> None:
        """Write nothing any more: the real end comes."""
        with self._lock:
            self._early = None

    def _write(self, state: JobState, why: str) -> None:
        with self._lock, contextlib.suppress(FolderWriteError):  # a full disk: the next outcome reports it
            if self._early is not None:
                write_json(self._early, {"state": state.value, "why": why, "early": True})

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        if self.building:
            self.building = False  # a second signal must not interrupt the end that this one begins
            raise KeyboardInterrupt  # nothing on the way takes it for an error

    def _note(self, number: int) -> None:
        self.signal = signal.Signals(number)
        state, why = self.reason()
        if self._marks is not None:
            self._marks.note(stopping=True)
            # then the signal is that of the walltime, which began before this process
            timed_out = state is JobState.UNFINISHED and self._deadline - time.monotonic() < GRACE
            how = f"{why}, and was killed before it could end in order"
            self._write(JobState.TIMEOUT if timed_out else state, how)

    def now(self) -> bool:
        """Return whether to stop taking items."""
        if not self._no_time and time.monotonic() + _LONGEST * self.longest > self._deadline:
            self._no_time = f"its walltime is nearly over, and the longest item took {self.longest:.1f} s"
        return bool(self._no_time) or self.order is not None or self.signal is not None

    def _hear(self, signals: int) -> None:
        while True:
            # a file on a shared disk sends no event; a handler waits until the item's call into C has ended
            wait = min(_LOOK, max(0.0, self._over - time.monotonic()))
            if select.select([signals], [], [], wait)[0] and (number := os.read(signals, 1)[0]) in SIGNALS:
                self._note(number)
            self._look()

    def _look(self) -> None:
        if time.monotonic() >= self._over:
            self._over = math.inf
            self._write(JobState.TIMEOUT, "its walltime was over before the item it was at")
        if self.order is not None or (order := self._layout.stopped()) is None:
            return
        self.order = order
        if self.reason()[0] is JobState.CANCELLED:
            if self._marks is not None:
                self._marks.note(stopping=True)  # the end may come before the signal is heard
            # the item may never end, and a scheduler may leave it ten minutes before it kills
            kill = threading.Timer(float(order.get("grace", GRACE)), os._exit, (EXIT_UNFINISHED,))
            kill.daemon = True
            kill.start()
            os.kill(os.getpid(), signal.SIGTERM)

    def reason(self) -> tuple[JobState, str]:
        """Return the state to end in, and why; cancelling explains a signal that came with it."""
        self._look()
        if self.order is not None:
            state, why = self.order.get("state"), self.order.get("why", "the run was told to stop")
            return JobState(state or JobState.CANCELLED), str(why)
        if self.signal is not None:
            return JobState.UNFINISHED, f"it was sent {self.signal.name}"
        return JobState.UNFINISHED, self._no_time


def say(text: str) -> None:
    """Say a line in the job's log."""
    if text:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {masked(text)}", file=sys.stderr, flush=True)


def log_to(folder: Path) -> None:
    """Have all that this process and its children print go to the log in a folder."""
    fd = open_to_write(folder / LOG)
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        if stream is not None:
            stream.flush()
        os.dup2(fd, number)
    os.close(fd)


# --- items with a time limit: the work is done in a child of the job's process, and killed with an item that hangs ---
#
#     job's process ── forks ──> child: the shard's attempt ── a thread watches the item (watch.py)
#       ^    │                                                          │ too late
#       │    └── passes signals on                    losses.json, SIGKILL itself
#       └── the child died over a late item: kills what it had started, and forks the next one
#
# The job goes on where it was, on the same host, and nothing is queued again. An item that holds the interpreter's
# lock keeps that thread from running; then the parent sees by the shard's mark that a step does not end.


# in the memory that a job shares with its child: the shard it is in, and whether it is killed over a late item
SHARD, IS_LATE = 0, 1


def guarded(work: Callable[[], int], limit: float, layout: Layout, place: memoryview) -> int:
    """Do a job's work in a child, and in a new one each time that one was killed over a late item."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # processes that a child leaves behind become ours, to be ended
    came: list[int] = []
    child: psutil.Process | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        came.append(number)
        with contextlib.suppress(psutil.NoSuchProcess):
            if child is not None:
                child.send_signal(number)

    for number in SIGNALS:
        signal.signal(number, pass_on)
    while True:
        place[IS_LATE] = False
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child has handlers of its own
        child = psutil.Process(_fork(work))
        for before in came:
            child.send_signal(before)  # the child before it had them, and is gone
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        status = _watch(child, layout, place, limit)
        if not place[IS_LATE]:
            note_end(layout.shard(place[SHARD]), job_name(os.getsid(0)), ProcessEnd.from_returncode(status))
            if status < 0:  # schedulers and supervisors start such a job again
                os._exit(128 - status)
        if status >= 0:
            return status
        _sweep()


def _fork(work: Callable[[], int]) -> int:
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died in between
        os._exit(1)
    sys.exit(work())  # as any job does: a process of `multiprocessing` waits for a pool that the env holds


def _watch(child: psutil.Process, layout: Layout, place: memoryview, limit: float) -> int:
    look = min(max(limit / 10, _OFTEN), _RARELY)
    job, seen, stuck = job_name(os.getsid(0)), None, 0.0
    while True:
        with contextlib.suppress(psutil.TimeoutExpired):
            return int(child.wait(look) or 0)
        folder = layout.shard(place[SHARD])
        mark = states.read_mark(folder)
        own = (mark.get("job"), mark.get("pid")) == (job, child.pid) and mark.get("in_flight")
        now = mark.get("since") if own else None
        # counted in looks, not by the clock: a job that was suspended is not late
        seen, stuck = now, stuck + look if now == seen and now is not None else 0.0
        if stuck > 1.5 * limit + _SLACK:
            child.kill()
            child.wait()
            begin, end = mark["in_flight"]
            LossFile(folder).add(Loss(begin, end - begin, ProcessEnd(signal=signal.SIGKILL), seconds=stuck))
            place[IS_LATE] = True
            states.excuse_dead(folder)
            return -signal.SIGKILL


def _sweep() -> None:
    until = time.monotonic() + _SWEEP
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < until:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        # those of other sessions become ours when their parents have ended
        psutil.wait_procs(left, timeout=_OFTEN)


def _prctl(option: int, value: int) -> None:
    # elsewhere the children of a killed process stay
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
