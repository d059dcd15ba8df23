"""What travels with a run: its items, and where the caller's modules are found."""

from __future__ import annotations

import os
import sys
from typing import Any

from espnet3.parallel.engine import pickling
from espnet3.parallel.engine.exceptions import ANYTHING, add_note
from espnet3.parallel.engine.work import Chunk


def by_value(chunk: Chunk) -> bytes:
    """Pickle a run's items; an instance of a script's own class travels with its class.

    Raises:
        Exception: What the first item that cannot be pickled raises, with a note that names it.
    """
    try:
        return pickling.dumps(chunk.items)
    except ANYTHING as error:
        position, item = _first_unpicklable(chunk)
        add_note(error, f"item {position} of the data cannot be sent to a worker: {item!r:.200}")
        raise


def _first_unpicklable(chunk: Chunk) -> Any:
    for position, item in enumerate(chunk.items, chunk.start):
        try:
            pickling.dumps(item)
        except ANYTHING:
            return position, item
    return chunk.start, chunk.items[0]


def caller_path() -> list[str]:
    """Return the caller's `sys.path` as it is now: a notebook may have added to it since the workers began."""
    return [os.path.abspath(entry) for entry in sys.path]
