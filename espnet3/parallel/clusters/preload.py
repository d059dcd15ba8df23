"""Loaded by the processes of a run: pages ask for its certificate, and nannies leave no file behind.

Dask serves its dashboard, and facts about each worker, over HTTP to any client, on a cluster that speaks TLS too.

A nanny speaks to its worker through queues of multiprocessing, each with three semaphores: files `/dev/shm/sem.mp-*`.
The process that made them removes them, or a second one that watches the first; a scheduler that kills a job kills both
at once, and the files stay for ever. Pipes have no files.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from distributed import Nanny

from espnet3.parallel.dask_compat.servers import (
    ask_for_certificate,
    guard_listeners,
    kill_starting_worker,
    replace_queues_of_nannies,
)

guard_listeners()  # when this is imported: the server that does it listens later


def dask_setup(server: Any) -> None:
    """Prepare a scheduler, a worker, or a nanny before it starts its worker; Dask calls this."""
    if isinstance(server, Nanny):
        replace_queues_of_nannies(PipeQueue)
    else:
        ask_for_certificate(server)


async def dask_teardown(server: Any) -> None:
    """Have a nanny that closes kill a worker that has not come up; Dask calls this before the nanny waits for it.

    A worker whose scheduler is gone goes on connecting until its death-timeout, and its nanny would wait for that.
    """
    if isinstance(server, Nanny):
        await kill_starting_worker(server)


class PipeQueue:
    """As much of `multiprocessing.Queue` as a nanny and its worker use, with one reader at a time.

    A message is less than what a pipe takes in one piece, so that writers in two processes need no lock.
    """

    def __init__(self, context: Any) -> None:
        self._ends: tuple[Any, Any] = context.Pipe(duplex=False)
        self._closed = False
        self._lock = threading.Lock()

    def __getstate__(self) -> tuple[Any, Any]:
        return self._ends

    def __setstate__(self, ends: tuple[Any, Any]) -> None:
        self._ends = ends
        self._closed = False
        self._lock = threading.Lock()

    def put(self, message: Any) -> None:
        """Send a message."""
        with self._lock:
            if self._closed:
                raise ValueError("the queue is closed")
            self._ends[1].send(message)

    def get(self) -> Any:
        """Wait for a message."""
        return self._ends[0].recv()

    def get_nowait(self) -> Any:
        """Return a message that is there."""
        if not self._ends[0].poll(0):
            raise queue.Empty
        return self.get()

    def close(self) -> None:
        """Send nothing more; what was sent can still be read."""
        with self._lock:
            self._closed = True
            self._ends[1].close()

    def join_thread(self) -> None:
        """Return at once: a message has been sent when `put` returns."""
