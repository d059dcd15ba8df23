"""Measures `espnet3.parallel` beside the tools people would use instead: `python -m benchmarks`."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # child processes run in it, and import from it
OUT = ROOT / "benchmarks" / "out"  # where reports go by default; git ignores it
WORKERS = int(os.environ.get("ESPNET3_BENCH_WORKERS", "2"))  # processes that every system gets
