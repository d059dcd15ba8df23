"""`DASK_WORKER_ID`: the variable by which code tells the workers apart, wherever it runs.

In a Dask worker it is the worker's id, in a detached job the shard, and while this process runs items itself it names
this process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NAME = "DASK_WORKER_ID"


def name_worker(worker: object) -> None:
    """Set the variable in a worker's process; of several workers in one process the last one's is there."""
    os.environ[NAME] = str(worker)


def forget_worker(worker: object) -> None:
    """Remove the variable where it is this worker's: its process goes on without it."""
    if os.environ.get(NAME) == str(worker):
        del os.environ[NAME]


class _Here:
    """Runs of this process that are under way in this process, each perhaps in a thread of its own."""

    lock = threading.Lock()
    count = 0


@contextmanager
def named_here() -> Iterator[None]:
    """Have the variable name this process for a block of code, unless it names a worker already."""
    with _Here.lock:
        mine = _Here.count > 0 or NAME not in os.environ
        if mine:
            os.environ[NAME] = f"driver-{os.getpid()}"
            _Here.count += 1
    try:
        yield
    finally:
        with _Here.lock:
            if mine:
                _Here.count -= 1
            if mine and not _Here.count:
                os.environ.pop(NAME, None)
