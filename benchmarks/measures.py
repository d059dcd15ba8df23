"""The measurements, in the child process: each starts a system, times it and returns the figures."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import WORKERS, memory
from benchmarks.cases import CALLS, COMPLETE, FIRST_RESULT, MEMORY, SECOND_CALL, Case
from benchmarks.systems.base import Lost, System
from benchmarks.work import PAYLOAD_BYTES, Work, env, payload

_CALLS_AGAIN = 5  # after the first one of W5: their median is the second call


class WrongResultsError(Exception):
    """A system returned something else than the loop would have."""


@dataclass(slots=True)
class Taken:
    """What one measurement found."""

    figures: dict[str, float]  # the numbers, by key
    last: float  # `time.monotonic()` when the last result was there
    outcome: str = ""  # W6: what became of the run, in words
    error: str = ""  # W6: the error it ended with, as text
    named: bool | None = None  # W6: whether the poison item's index is in what the caller sees
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a measurement is given besides the system."""

    case: Case  # the row of the table
    work: Work  # its run, cut to what the system can do
    started: float  # `time.monotonic()` just before the parent started this process
    scratch: Path  # A folder of this measurement's own
    phase: Callable[[str], None]  # tells the parent how far it came


def _warm(system: System, s: Setting) -> None:
    s.phase("start")
    system.start(s.work)
    s.phase("warm-up")
    _collect(system.run(s.work.warm_up()))
    s.phase("run")


def _collect(results: Any) -> list[Any]:
    return results if isinstance(results, list) else list(results)


def _timed(system: System, s: Setting) -> tuple[list[Any], float, float]:
    begin = time.perf_counter()
    results = _collect(system.run(s.work))
    seconds, last = time.perf_counter() - begin, time.monotonic()
    if len(results) != s.work.n:
        raise WrongResultsError(f"{len(results)} results for {s.work.n} items")
    return results, seconds, last


def rate(system: System, s: Setting) -> Taken:
    """Time per item, and what the driver's memory grew by."""
    _warm(system, s)
    before = memory.resident()
    memory.reset_peak()
    _, seconds, last = _timed(system, s)
    grown = max(0, memory.peak() - before)
    return Taken({"us_per_item": seconds / s.work.n * 1e6, "driver_bytes_per_item": grown / s.work.n}, last)


def efficiency(system: System, s: Setting) -> Taken:
    """Useful CPU seconds over what two workers had."""
    _warm(system, s)
    _, seconds, last = _timed(system, s)
    return Taken({"efficiency": s.case.ideal / (WORKERS * seconds)}, last)


def bandwidth(system: System, s: Setting) -> Taken:
    """Megabytes of results per second."""
    _warm(system, s)
    results, seconds, last = _timed(system, s)
    for index, value in enumerate(results):
        if value != payload(index):
            raise WrongResultsError(f"item {index} came back as {value[:16]!r}...")
    return Taken({"mb_per_s": s.work.n * PAYLOAD_BYTES / 1e6 / seconds}, last)


def start_stop(system: System, s: Setting) -> Taken:
    """Seconds from the start of this process to the first result, and what the same call then takes."""
    s.phase("start")
    system.start(s.work)
    s.phase("run")
    index, pid = next(iter(system.run(s.work)))
    first = time.monotonic()
    if index != 0:
        raise WrongResultsError(f"the first result is that of item {index}")
    figures = {FIRST_RESULT.key: first - s.started}
    if SECOND_CALL in s.case.figures:
        figures[SECOND_CALL.key] = 1e3 * median(_seconds(system, s) for _ in range(_CALLS_AGAIN))
        eight = replace(s, work=replace(s.work, n=8))
        _seconds(system, eight)  # some start further workers for it
        figures[CALLS.key] = 1e3 * sum(_seconds(system, eight) for _ in range(20))
        figures[MEMORY.key] = memory.of_all() / 2**20
    taken = Taken(figures, time.monotonic())
    taken.outcome = "ran in the driver" if pid == os.getpid() else "ran in a worker"
    return taken


def _seconds(system: System, s: Setting) -> float:
    begin = time.perf_counter()
    for _ in system.run(s.work):
        pass
    return time.perf_counter() - begin


def faults(system: System, s: Setting) -> Taken:
    """What becomes of a run in which a worker dies."""
    known = dict(s.work.env.args) if s.work.env else {}
    work = replace(s.work, env=env("plain", **known, mark=str(s.scratch / "mark")))
    _warm(system, replace(s, work=work))
    right, lost, error = set[int](), list[Lost](), ""
    counter = os.open(s.scratch / "results", os.O_CREAT | os.O_WRONLY)
    begin = time.perf_counter()
    try:
        for result in system.run_with_faults(work):
            if isinstance(result, Lost):
                lost.append(result)
            else:
                right.add(result)
                os.pwrite(counter, b"%d" % len(right), 0)  # what the parent reports if this run hangs
    except Exception as e:  # whatever a peer raises here is the finding, and is reported
        error = f"{type(e).__name__}: {e}"
    seconds, last = time.perf_counter() - begin, time.monotonic()
    os.close(counter)

    wanted = set(range(work.n)) - {s.case.poison}
    if not right <= wanted:
        raise WrongResultsError(f"results of items that cannot have one: {sorted(right - wanted)[:5]}")
    whole = right == wanted and not error and (s.case.poison is None or bool(lost))
    taken = Taken({"results": len(right), "seconds": seconds}, last, error=error)
    taken.outcome = COMPLETE if whole else f"{len(wanted) - len(right)} lost"
    taken.lost = [f"{x.index}: {x.reason}" for x in lost]
    if s.case.poison is not None:
        in_error = re.search(rf"\b{s.case.poison}\b", error) is not None
        taken.named = in_error or [x.index for x in lost] == [s.case.poison]
    return taken


MEASURES: dict[str, Callable[[System, Setting], Taken]] = {
    f.__name__: f for f in (rate, efficiency, bandwidth, start_stop, faults)
}
