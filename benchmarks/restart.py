"""W7: a run is killed at half way and started again; what is computed again is counted.

    measurement ──> driver (`benchmarks.child --driver`), killed ──> driver again, to the end

Every item appends its index to a file, so that each call is counted, whoever made it.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks import ROOT, cases
from benchmarks.systems import load
from benchmarks.work import CALL, Work, env

POLL = 0.002
"""Seconds between looks at how many items have begun."""


def calls(path: Path) -> list[int]:
    """Return the indices of all calls so far."""
    data = path.read_bytes() if path.exists() else b""
    return [index for (index,) in struct.iter_unpack(CALL, data)]


def start(case: str, system: str, quick: bool, scratch: Path) -> subprocess.Popen[bytes]:
    """Start the driver."""
    argv = [sys.executable, "-m", "benchmarks.child", "--case", case, "--system", system]
    argv += ["--quick"] * quick + ["--scratch", str(scratch), "--driver"]
    return subprocess.Popen(argv, cwd=ROOT)


def kill_at(process: subprocess.Popen[bytes], path: Path, n: int, everything: bool) -> int:
    """Kill a driver (or all its processes) once `n` items have begun; return how many there were then.

    Raises:
        RuntimeError: It ended before.
    """
    size = n * struct.calcsize(CALL)
    while not path.exists() or path.stat().st_size < size:
        if process.poll() is not None:
            raise RuntimeError(f"the driver ended with status {process.returncode} before it was killed")
        time.sleep(POLL)
    others = psutil.Process(process.pid).children(recursive=True) if everything else []
    process.kill()
    for other in others:
        try:
            other.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
    psutil.wait_procs(others)
    return len(calls(path))


def drive(case: cases.Case, system: str, scratch: Path) -> None:
    """Be the driver: run, or go on, and write the results to a file."""
    folder = scratch / "kept"
    folder.mkdir(exist_ok=True)
    work = Work(case.work.item, case.work.n, env("plain", calls=str(scratch / "calls")))  # items write to it
    part = scratch / "answer.part"
    part.write_text(json.dumps(list(load(system)().run_kept(work, folder))))
    os.replace(part, scratch / "answer.json")
