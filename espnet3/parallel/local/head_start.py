"""The processes of a program's first run begin to start before this process has loaded what the run needs.

The fork server loads modules for a tenth of a second, and so does the driver: this way both do it at once. Later runs
have all of it loaded already.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from espnet3.parallel.checks import surroundings
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.engine.inside import inside_item
from espnet3.parallel.local.alone import alone, without_dask
from espnet3.parallel.local.fork_server import ForkServer


@dataclass(frozen=True, slots=True)
class _Begun:
    """A server that no run has taken yet, and what it inherited."""

    server: ForkServer
    surroundings: tuple[object, ...]


class _Thread(threading.local):
    begun: _Begun | None = None


_THREAD = _Thread()
_FIRST = threading.Lock()  # held for good once a run has had its head start


@contextmanager
def head_start(config: ParallelConfig) -> Iterator[None]:
    """Start the fork server of the run that a block of code is about to begin, if it is the program's first.

    A server that the run did not take (nothing was left to do, or something was wrong) is ended.
    """
    if alone(config) or inside_item() or not without_dask(config) or not _FIRST.acquire(blocking=False):
        yield
        return
    _THREAD.begun = _Begun(ForkServer(dask=False), surroundings())
    try:
        yield
    finally:
        begun, _THREAD.begun = _THREAD.begun, None
        if begun is not None:
            begun.server.kill()


def take_server() -> ForkServer | None:
    """Return the server that this thread's run began with, which is the caller's now; None if there is none.

    One that was begun in another folder, environment or search path than there is now is ended.
    """
    begun, _THREAD.begun = _THREAD.begun, None
    if begun is None or begun.surroundings == surroundings():
        return None if begun is None else begun.server
    begun.server.kill()
    return None


def _forget() -> None:
    """In a forked child: the server is its parent's."""
    _FIRST.acquire(blocking=False)  # the modules are loaded, or nearly so
    _THREAD.begun = None


os.register_at_fork(after_in_child=_forget)
