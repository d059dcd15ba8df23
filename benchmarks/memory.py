"""How much memory this process holds, and the most it held since a given moment."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no {name}")


def resident() -> int:
    """Return the bytes resident now (outside Linux: the most there ever were)."""
    return _field("VmRSS") if _STATUS.exists() else peak()


def peak() -> int:
    """Return the most bytes resident since `reset_peak` (outside Linux: since the start)."""
    if _STATUS.exists():
        return _field("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> None:
    """Start a new peak; a no-op where the system has no such thing."""
    if _RESET.exists() and os.access(_RESET, os.W_OK):
        _RESET.write_text("5")
