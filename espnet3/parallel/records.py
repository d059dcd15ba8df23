"""Facts that travel between the driver, the workers and the disk: frozen and slotted."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

from espnet3.parallel.messages import brief, html_table, printable

# Signals that come from within a process; guards of the memory send SIGKILL
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP}
THIS_PROCESS = "this process"  # the worker's name if the driver itself runs the items
MEMORY_LIMIT = "memory_limit"  # a reason of `ProcessEnd`
SHORT_WORK = 3.0  # seconds of work below which an efficiency says nothing


@dataclass(frozen=True)  # with slots it would be pickled in Python, for each run
class Policy:
    """Rules for the items of a run, wherever they run."""

    on_error: str = "raise"  # stops at the first failed item; "record" puts an `ItemFailure` in its place
    max_retries: int = 0  # further tries of an item that raised, in place
    seed: int | None = None  # seeds `random`, numpy and torch before each item from (seed, index)
    batch_size: int | None = None  # items handed to `batch_forward` at once; None calls `forward` per item
    # seconds that one call of `forward` (or of `batch_forward`) may take before its worker is killed
    item_timeout: float | None = None
    # deaths of workers with this item alone in progress after which it has failed as poison. With 1, one death is
    # enough if the process ended by itself (a segmentation fault, an exit); another one may have been killed from
    # outside, and takes two. 0 is for items that are runs themselves (a shard): their driver hears of each death
    poison_after: int = 2
    split_batches: bool = True  # halves a batch that does not fit into memory, and keeps the size that fits


class NoItem(str):
    """Takes the place of an index if something else than an item fails: "shard 3", "close_writers of shard 3".

    It is shown without quotes, to tell it from an item.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """Takes the place of a failed item's result.

    Attributes:
        index: The index as the caller gave it; a `NoItem` for a failure around the items.
        error_type: Name of the exception's class, with its module unless it is a builtin.
        message: `str()` of the exception; a second line names the GPUs if it makes CUDA unusable for its process.
        traceback: The traceback on the worker, as text.
        attempts: Number of tries.
        worker: Name or address of the last worker.
        cause: "error" (it raised), "poison" (it killed its worker), "timeout" (it took longer than
            `item_timeout`), "result" (its result cannot be pickled, or written as JSON).
        seconds: Duration of the last try, if known.
    """

    index: Any
    error_type: str
    message: str
    traceback: str
    attempts: int
    worker: str
    cause: str = "error"
    seconds: float | None = None

    @property
    def name(self) -> str:
        """The item's name in a message: "item 7", "shard 3"."""
        return str(self.index) if isinstance(self.index, NoItem) else f"item {brief(self.index)}"

    @property
    def place(self) -> str:
        """The worker's name after that of the item: "on worker 1", "in this process"."""
        return place_of(self.worker)

    def __repr__(self) -> str:
        message = " ".join(self.message.split())
        tries = f", {self.attempts} attempts" if self.attempts > 1 else ""
        return printable(
            f"<ItemFailure: {self.name}, {self.error_type}: {message:.200}, {self.place}{tries}>"
        )

    def _repr_html_(self) -> str:
        from html import escape  # here: only a notebook asks for it

        rows = [("error", f"{self.error_type}: {self.message}"), ("cause", self.cause), ("where", self.place)]
        rows.append(("attempts", str(self.attempts)))
        if self.seconds is not None:
            rows.append(("seconds", f"{self.seconds:.3g}"))
        folded = f"<details><summary>traceback</summary><pre>{escape(self.traceback)}</pre></details>"
        return html_table(f"{self.name} failed", rows) + (folded if self.traceback else "")


def place_of(worker: str) -> str:
    """Return a worker's name with its preposition: "on worker 1", "in this process"."""
    inside = worker == THIS_PROCESS or worker.startswith("shard ")
    return f"in {worker}" if inside else f"on worker {worker}"


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a worker process, as far as its cluster knows; `str()` words it, to follow "the process"."""

    exit_code: int | None = None  # its exit code; None if it was killed, or its status is unknown
    signal: int | None = None  # the one that killed it; None if it exited, or its status is unknown
    # why it was killed, if known: `MEMORY_LIMIT`, or words that follow "was killed by SIGKILL"; of a process that
    # goes on, words that follow "the process"; else ""
    reason: str = ""
    used: int = 0  # bytes in use then; 0 if unknown
    limit: int = 0  # bytes allowed; 0 if unknown

    @classmethod
    def from_returncode(cls, code: int, reason: str = "", used: int = 0, limit: int = 0) -> ProcessEnd:
        """Read a code of `subprocess`, or of `os.waitstatus_to_exitcode`: below zero, it is the number of a signal.

        The reason holds only if a signal killed the process.
        """
        return cls(exit_code=code) if code >= 0 else cls(None, -code, reason, used, limit)

    @property
    def by_itself(self) -> bool:
        """Whether the process ended itself, by an exit or a crash."""
        return self.exit_code is not None or self.signal in _CRASHES

    def __str__(self) -> str:
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}"
        if self.signal is None:
            return self.reason or "ended"
        name = next((one.name for one in signal.Signals if one == self.signal), f"signal {self.signal}")
        words = f"was killed by {name}"
        if self.reason != MEMORY_LIMIT:
            return f"{words} {self.reason}".rstrip()
        sizes = f" ({self.used / 2**30:.2f} of {self.limit / 2**30:.2f} GiB)" if self.limit else ""
        return f"{words} for using more than its memory_limit{sizes} allows"

    @property
    def advice(self) -> str:
        """What to do about it, if known; else ""."""
        if self.reason != MEMORY_LIMIT:
            return ""
        return (
            "give each worker more (a higher memory_limit in the options of the `parallel` block, with a smaller "
            "n_workers where the machine has no more), or let an item need less (a smaller batch_size, shorter items)"
        )


@dataclass(slots=True)
class Tally:
    """Counts of a run, updated while it goes on; those that its `RunSummary` has, too, have the same names there."""

    deaths: int = 0  # worker processes lost while they held items
    busy_seconds: float = 0.0  # spent inside chunks of items, over all slots
    slots: int = 1  # the most worker slots that took part at once
    workers: int = 1  # the most workers (processes, unless the user asked for threads) of these slots
    asked: int = 0  # workers started for this run, or for its client; 0 if unknown
    # time of `time.perf_counter` at which the first slot came, and began imports and env; None before
    joined: float | None = None
    ready: float | None = None  # time at which the first slot had finished them; None before
    import_seconds: float = 0.0  # longest import of a slot
    env_seconds: float = 0.0  # longest build of an env
    slot_seconds: float = 0.0  # from a slot's readiness to its end, over all slots
    halved: int = 0  # batches halved because they did not fit into memory
    warm: bool = False  # whether every worker has finished an item, so that the rate is meaningful
    # for each ready worker its name, its time in seconds since the epoch, seconds of imports and of its env
    came: list[tuple[str, float, float, float]] = field(default_factory=list)
    went: list[tuple[str, float]] = field(default_factory=list)  # of each lost with items: its name and time


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The figures of one finished run, as printed in its last line. All times are in seconds.

    Attributes:
        items: Items run.
        failed: Items whose outcome is an `ItemFailure`.
        retries: Further tries of items that raised.
        deaths: Worker processes lost while they held items.
        seconds: Wall time, start-up and work.
        busy_seconds: Sum over slots of the time spent inside chunks of items.
        slots: Worker slots in use: every thread of every worker that runs items.
        kept: Items not run because the run folder had their outcome.
        kept_failed: Failures among them.
        workers: Workers in use; each has `slots / workers` threads.
        start_seconds: Wall time until the first slot could begin an item: workers started, modules imported, env built.
        launch_seconds: The part of it until the first slot came.
        import_seconds: Longest import of a slot.
        env_seconds: Longest build of an env.
        slot_seconds: Sum over slots of the time from readiness to the run's end.
        halved: Batches halved because they did not fit into memory.
    """

    items: int
    failed: int
    retries: int
    deaths: int
    seconds: float
    busy_seconds: float
    slots: int
    kept: int = 0
    kept_failed: int = 0
    workers: int = 1
    start_seconds: float = 0.0
    launch_seconds: float = 0.0
    import_seconds: float = 0.0
    env_seconds: float = 0.0
    slot_seconds: float = 0.0
    halved: int = 0

    def table(self, title: str = "Run") -> str:
        """Return the main figures as a table in HTML, for a notebook."""
        rows = [
            ("items", f"{self.items:,}" + (f" ({self.kept:,} more were done before)" if self.kept else "")),
            ("failed", f"{self.failed:,}"),
            ("retries", f"{self.retries:,}"),
            ("workers lost", f"{self.deaths:,}"),
            ("seconds", f"{self.seconds:,.3g} ({self.start_seconds:,.3g} to start)"),
            ("items per second", f"{self.rate:,.3g}"),
            ("workers", f"{self.workers:,}"),
        ]
        if self.work_seconds >= SHORT_WORK:
            rows.append(("efficiency", f"{self.efficiency:.2f}"))
        return html_table(title, rows)

    _repr_html_ = table

    @property
    def work_seconds(self) -> float:
        """Wall time from the first slot's readiness to the end."""
        return self.seconds - self.start_seconds

    @property
    def rate(self) -> float:
        """Items per second of work, without start-up."""
        return self.items / max(1e-9, self.work_seconds)

    @property
    def efficiency(self) -> float:
        """Share of the slots' time spent on items, between 0 and 1, without start-up."""
        return min(1.0, self.busy_seconds / max(1e-9, self.slot_seconds or self.work_seconds * self.slots))
