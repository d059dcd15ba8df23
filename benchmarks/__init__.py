"""Measures `espnet3.parallel` beside the tools people would use instead: `python -m benchmarks`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The folder the child processes run in, and that is on their import path."""

OUT = Path(__file__).resolve().parent / "out"
"""Where reports go by default; git ignores it."""

WORKERS = 2
"""Worker processes every system gets."""
