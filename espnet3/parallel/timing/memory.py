"""How much memory a process has used at most."""

from __future__ import annotations

import os
import resource
import sys
import time

_STATUS = "/proc/self/status"
_PEAK = (
    b"VmHWM:"  # of the program that runs now; getrusage also counts the one that started it, up to its exec
)
_EVERY = 0.02  # seconds between two looks: one takes some 10 us, and a peak stays to be seen by the next one
_seen: dict[
    int, tuple[float, int]
] = {}  # when the last look was, and what it saw, by process: a fork has its own


def recent_peak() -> int:
    """Return what `peak_memory` has returned within the last 20 ms, or does now."""
    process, now = os.getpid(), time.monotonic()
    when, peak = _seen.get(process, (-_EVERY, 0))
    if now - when >= _EVERY:
        peak = peak_memory()
        _seen[process] = now, peak
    return peak


def peak_memory() -> int:
    """Return the most memory that this process has held so far, in bytes, as `VmHWM` of proc(5) or `ru_maxrss`."""
    try:
        with open(_STATUS, "rb", buffering=0) as stream:
            said = stream.read(4096)
        begin = said.index(_PEAK) + len(_PEAK)
        return int(said[begin : said.index(b"kB", begin)]) * 1024
    except (OSError, ValueError):  # not Linux, or a kernel that does not say it
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
