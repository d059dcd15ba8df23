"""Items with a time limit: the work is done in a child of the job's process, and killed with an item that hangs.

    job's process ── forks ──> child: the shard's attempt ── a thread watches the item (watch.py)
      ^    │                                                          │ too late
      │    └── passes signals on                    losses.json, SIGKILL itself
      └── the child died over a late item: kills what it had started, and forks the next one

The job goes on where it was, on the same host, and nothing is queued again. An item that holds the interpreter's
lock keeps that thread from running; then the parent sees by the shard's mark that a step does not end.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import psutil

from espnet3.parallel.detached.job.stopping import SIGNALS
from espnet3.parallel.detached.marks import LossFile, excuse_dead, job_name, note_end, read_mark
from espnet3.parallel.engine.blame import Loss
from espnet3.parallel.records import ProcessEnd

_OFTEN, _RARELY = 0.02, 0.25  # seconds between two looks at the child, at least and at most
_SLACK = 1.0  # seconds that the parent waits beyond 1.5 limits: by then the child's own thread has seen it, if it runs
_SWEEP = 5.0  # seconds for what a killed child had started to be gone
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class _Signals:
    """Passes the signals that reach the job on to whichever child is at work."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.child = 0
        for number in SIGNALS:
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.came.append(number)
        if self.child:
            _send(self.child, number)


def guarded(work: Callable[[], int], limit: float, folder: Path) -> int:
    """Do a job's work in a child, and in a new one each time that one was killed over a late item."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # processes that a child leaves behind become ours, to be ended
    signals = _Signals()
    while True:
        before = LossFile(folder).n_late
        child = _start(work, signals)
        status = _watch(child, folder, limit)
        signals.child = 0
        if LossFile(folder).n_late == before:
            note_end(folder, job_name(os.getsid(0)), ProcessEnd.from_returncode(status))
            if status < 0:
                _end_like(-status)
        if status >= 0:
            return status
        _sweep()


def _start(work: Callable[[], int], signals: _Signals) -> multiprocessing.process.BaseProcess:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child has handlers of its own
    try:
        child = multiprocessing.get_context("fork").Process(target=_child, args=(work, os.getpid()))
        child.start()
        assert child.pid is not None
        for number in signals.came:
            _send(child.pid, number)  # the child before it had them, and is gone
        signals.child = child.pid
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    return child


def _child(work: Callable[[], int], parent: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died in between
        os._exit(1)
    sys.exit(work())


def _watch(child: multiprocessing.process.BaseProcess, folder: Path, limit: float) -> int:
    """Wait for a child's end, and kill it in a step that does not end; return its exit status."""
    assert child.pid is not None
    look = min(max(limit / 10, _OFTEN), _RARELY)
    job, seen, stuck = job_name(os.getsid(0)), None, 0.0
    while True:
        child.join(look)
        if child.exitcode is not None:
            return child.exitcode
        mark = read_mark(folder)
        own = (mark.get("job"), mark.get("pid")) == (job, child.pid) and mark.get("in_flight")
        now = mark.get("since") if own else None
        # counted in looks, not by the clock: a job that was suspended is not late
        seen, stuck = now, stuck + look if now == seen and now is not None else 0.0
        if stuck > 1.5 * limit + _SLACK:
            _send(child.pid, signal.SIGKILL)
            child.join()
            begin, end = mark["in_flight"]
            killed = ProcessEnd(signal=signal.SIGKILL)
            LossFile(folder).add(Loss(begin, end - begin, killed, seconds=stuck))
            excuse_dead(folder)
            return -signal.SIGKILL


def _sweep() -> None:
    """End the processes of a killed child, which are this process's children now."""
    until = time.monotonic() + _SWEEP
    while time.monotonic() < until:
        left = psutil.Process().children(recursive=True)
        for process in left:
            _send(process.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        if not left:
            return
        # a process of another session sends us no event but its end, if it is ours already
        time.sleep(_OFTEN)


def _end_like(number: int) -> None:
    """End this process by the signal that has ended its child: the scheduler or supervisor sees the same end."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # a signal that does not end a process by itself


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    """Set an option of this process on Linux; elsewhere the children of a killed process stay."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
