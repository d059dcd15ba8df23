"""The end of a job, written before it comes: what stands if the job is killed before it can end in order.

A scheduler kills a job at its walltime, and forgets after a while that it did. By then the job has written it down:
when its time is nearly over, from a thread, because an item may keep the interpreter busy for the rest of it; and when
it is sent a signal. A job that does end in order replaces this by its real end.
"""

from __future__ import annotations

import threading
from pathlib import Path

from espnet3.parallel.detached.layout import ENDED
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.ledger.errors import FolderWriteError
from espnet3.parallel.ledger.files import write_json


class EarlyEnd:
    """The early end of one attempt at a shard.

    Args:
        folder: The shard's folder; its lease is held. An earlier attempt's end is removed from it.
        seconds: Until the walltime is nearly over; None: no limit is known.
    """

    def __init__(self, folder: Path, seconds: float | None) -> None:
        self._file = folder / ENDED
        self._lock = threading.RLock()  # a signal's handler may come while this thread has it
        self._open = True
        self._timer: threading.Timer | None = None
        self._file.unlink(missing_ok=True)
        if seconds is not None:
            self._timer = threading.Timer(max(0.0, seconds), self._write, (JobState.TIMEOUT, _TIME_IS_UP))
            self._timer.daemon = True
            self._timer.start()

    def told(self, state: JobState, why: str) -> None:
        """Note that the job was told to end."""
        self._write(state, f"{why}, and was killed before it could end in order")

    def close(self) -> None:
        """Write nothing any more: the real end comes."""
        with self._lock:
            self._open = False
        if self._timer is not None:
            self._timer.cancel()

    def _write(self, state: JobState, why: str) -> None:
        with self._lock:
            if not self._open:
                return
            try:
                write_json(self._file, {"state": state.value, "why": why, "early": True})
            except FolderWriteError:  # a full disk: the next outcome says so, and this is no reason to end
                return


_TIME_IS_UP = "its walltime was over before the item it was at"
