"""Facts that travel between the driver, the workers and the disk: frozen and slotted."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict, dataclass
from typing import Any

# Signals that a process earns by what is done in it: nobody sends these, and the memory's guards send SIGKILL
_CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP}
)
MEMORY_LIMIT = "memory_limit"  # a reason of `ProcessEnd`


@dataclass(frozen=True, slots=True)
class Policy:
    """What a run does with its items, wherever it runs.

    Attributes:
        on_error: "raise" stops at the first failed item, "record" puts an `ItemFailure` in its place.
        max_retries: How often an item that raised is tried again, in place.
        seed: Seeds `random`, numpy and torch before each item from (seed, index); None leaves them.
        batch_size: Items handed to `batch_forward` at once; None calls `forward` per item.
        item_timeout: Seconds that one call of `forward` (or of `batch_forward`) may take before its
            worker is killed; None waits for ever.
        poison_after: After how many deaths of workers in which it was the only item in progress an item has
            failed as poison. With 1, one death is enough if the process ended by itself (a segmentation fault,
            an exit); if somebody else may have killed it, it takes two in any case. 0 is for items that are runs
            themselves (a shard): their driver is told of every death, and looks further.
    """

    on_error: str = "raise"
    max_retries: int = 0
    seed: int | None = None
    batch_size: int | None = None
    item_timeout: float | None = None
    poison_after: int = 2


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """What is put in the place of a failed item's result.

    Attributes:
        index: The index as the caller gave it.
        error_type: Name of the exception's class, with its module where it is not a builtin.
        message: `str()` of the exception.
        traceback: The traceback on the worker, as text.
        attempts: How often the item was tried.
        worker: Name or address of the worker that ran it last.
        cause: "error" (it raised), "poison" (it killed its worker), "timeout" (it took longer than
            `item_timeout`), "result" (its result cannot be pickled, or written as JSON).
        seconds: How long its last attempt took, where that is known.
    """

    index: Any
    error_type: str
    message: str
    traceback: str
    attempts: int
    worker: str
    cause: str = "error"
    seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dict."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a worker process ended, as far as its cluster knows; `str()` words it, to follow "the process".

    Attributes:
        exit_code: What it exited with; None where it was killed, or where nobody saw its status.
        signal: Number of the signal that killed it; None where it exited, or where nobody saw its status.
        reason: Why it was killed, where that is known: "memory_limit" (it used more than the cluster's option
            allows), or words that follow "was killed by SIGKILL"; of a process that goes on, what became of it, to
            follow "the process"; else "".
    """

    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""

    @classmethod
    def from_wait_status(cls, status: int, reason: str = "") -> ProcessEnd:
        """Read a status as `os.waitpid` returns it; the reason holds only if a signal killed the process."""
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status), reason=reason)
        return cls(exit_code=os.WEXITSTATUS(status))

    @classmethod
    def from_returncode(cls, code: int) -> ProcessEnd:
        """Read a code as `subprocess` and `asyncio` give it: below zero, it is the number of a signal."""
        return cls(exit_code=code) if code >= 0 else cls(signal=-code)

    @property
    def by_itself(self) -> bool:
        """Whether what ran in the process ended it (an exit, a crash), so that nobody else can have killed it."""
        return self.exit_code is not None or self.signal in _CRASHES

    def __str__(self) -> str:
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}"
        if self.signal is None:
            return self.reason or "ended"
        reason = "for using more than its memory_limit" if self.reason == MEMORY_LIMIT else self.reason
        return f"was killed by {signal_name(self.signal)} {reason}".rstrip()


def signal_name(number: int) -> str:
    """Return a signal's name, "SIGSEGV"; "signal 40" for the real-time ones, most of which have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(slots=True)
class Tally:
    """Counts of a run, updated while it goes on: the one record here that changes.

    Attributes:
        deaths: Worker processes lost while they held items.
        busy: Seconds spent inside chunks of items, over all slots.
        slots: The most worker slots that took part at once.
    """

    deaths: int = 0
    busy: float = 0.0
    slots: int = 1

    def summary(self, items: int, failed: int, retries: int, seconds: float, kept: int = 0) -> RunSummary:
        """Return the figures of the run that was counted, with what its driver adds."""
        return RunSummary(items, failed, retries, self.deaths, seconds, self.busy, self.slots, kept)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The figures of one finished run, as printed in its last line.

    Attributes:
        items: Items that were run.
        failed: Those whose outcome is an `ItemFailure`.
        retries: Times an item was tried again because it had raised.
        deaths: Worker processes lost while they held items.
        seconds: Wall time.
        busy_seconds: Sum over workers of the time spent inside chunks of items.
        slots: Worker slots that took part.
        kept: Items that were not run because the run folder already had their outcome.
    """

    items: int
    failed: int
    retries: int
    deaths: int
    seconds: float
    busy_seconds: float
    slots: int
    kept: int = 0

    @property
    def efficiency(self) -> float:
        """Share of the slots' wall time that was spent on items, between 0 and 1."""
        return self.busy_seconds / max(1e-9, self.seconds * max(1, self.slots))
