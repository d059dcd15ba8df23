"""How much memory this process holds, the most it held since a given moment, and that of a measurement's processes."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.launch import TAG, tagged

_PROCESS = Path("/proc/self")  # Linux
_RESET = _PROCESS / "clear_refs"


def _field(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{file} has no {name}")


def resident() -> int:
    """Return the bytes resident now."""
    return _field(_PROCESS / "status", "VmRSS")


def peak() -> int:
    """Return the most bytes resident since `reset_peak`."""
    return _field(_PROCESS / "status", "VmHWM")


def reset_peak() -> None:
    """Start a new peak; a no-op where that is not allowed."""
    if os.access(_RESET, os.W_OK):
        _RESET.write_text("5")


def of_all() -> int:
    """Return the bytes of all processes of this measurement; a page that several share counts once (`Pss`)."""
    return sum(_field(Path(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in tagged(os.environ[TAG]))
