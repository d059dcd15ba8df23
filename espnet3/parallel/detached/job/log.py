"""Lines in a job's log, with their time."""

from __future__ import annotations

import sys
import time

from espnet3.parallel.messages import masked


def say(text: str) -> None:
    """Say a line in the job's log."""
    if text:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {masked(text)}", file=sys.stderr, flush=True)
