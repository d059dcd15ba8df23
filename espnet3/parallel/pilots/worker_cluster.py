"""The driver's questions to the cluster whose workers it uses, and their answers.

Clusters of ours are subclasses of `WorkerCluster`. Of any other, the user's own, nothing is known.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from espnet3.parallel.records import ProcessEnd


def not_there(name: str, state: str, look: str = "", detail: str = "") -> str:
    """Word a worker or a job that has not come; `look` is a command that shows more, `detail` the end of its log."""
    see = f" (see: {look})" if look else ""
    return f"{name} {state}{see}\n{detail}".rstrip()


def listed(workers: Iterable[str], more: int = 0, no_answer: str = "") -> str:
    """List the first workers that have not come, how many more there are, and why the scheduler cannot be asked."""
    lines = [f"no answer from the queue: {no_answer}"] if no_answer else []
    return "\n".join([*lines, *workers, *([f"and {more} more"] if more else [])])


class WorkerCluster:
    """A cluster as the driver sees it; the defaults are those of a cluster that knows nothing."""

    starts_at_once = False  # all workers that were asked for come, each in a moment
    stays = False  # its workers serve further runs, and items may have changed them: each is asked
    waits = False  # no worker is there any more, and jobs are queued that bring others
    # whether there is work; jobs are replaced only then
    wanted: Callable[[], bool] = staticmethod(lambda: True)

    def end_of(self, host: str, pid: int) -> ProcessEnd | None:
        """Return how a worker process ended, once that is known."""
        return None

    def given_up(self) -> str | None:
        """Return why no worker will come any more, once that is known."""
        return None

    def missing(self) -> str:
        """Return the reasons why workers have not come, a line or more for each; "" where nothing is known."""
        return ""

    def kill_worker(self, host: str, pid: int) -> None:
        """SIGKILL a worker's process, where it is on this host."""
        if host == socket.gethostname():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)

    def remove_at_end(self, folder: str) -> None:
        """Remove a folder when the driver ends, even if it is killed, where the cluster can do that."""

    def open_pool(self) -> Any:
        """Start processes beside its workers where Dask is not needed for that; return the `Pool` of their slots."""
        return None


def cluster_of(client: Any) -> WorkerCluster:
    """Return the cluster of a Dask client, as the driver sees it, or the keeper of its jobs."""
    cluster = getattr(client.cluster, "keeper", client.cluster)
    return cluster if isinstance(cluster, WorkerCluster) else WorkerCluster()
