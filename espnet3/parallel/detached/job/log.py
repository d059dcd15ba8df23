"""Lines in a job's log, with their time."""

from __future__ import annotations

import sys
import time


def say(text: str) -> None:
    """Say a line in the job's log."""
    if text:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", file=sys.stderr, flush=True)
