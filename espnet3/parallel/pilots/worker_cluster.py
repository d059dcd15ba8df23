"""The driver's questions to the cluster whose workers it uses, and their answers.

Clusters of ours are `WorkerCluster`s. Of any other, the user's own, nothing is known: it is a `PlainCluster`.
"""

from __future__ import annotations

import enum
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from espnet3.parallel.records import ProcessEnd


class StartFailure(enum.Enum):
    """The repeated failure after which a cluster starts no more workers, and its words."""

    SUBMISSION = "a job could not be submitted, {tries} times in a row: {detail}"
    EARLY_END = "{tries} jobs in a row ended at their start, so no more are submitted. {detail}"
    WORKER = "{detail}"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Why a cluster starts no more workers; `str()` words it."""

    failure: StartFailure
    detail: str  # what the last try left to read: an error, the end of a log
    tries: int = 0  # that failed in a row; 0 where each worker's own were counted

    def __str__(self) -> str:
        return self.failure.value.format(tries=self.tries, detail=self.detail)


@dataclass(frozen=True, slots=True)
class MissingWorker:
    """A worker, or a job of several, that has not come."""

    name: str  # "job 123", "worker ssh-0"
    state: str  # to follow the name: "pending (PD): Resources"
    look: str = ""  # a command that shows more
    detail: str = ""  # the end of its log, or the last error

    def __str__(self) -> str:
        see = f" (see: {self.look})" if self.look else ""
        return f"{self.name} {self.state}{see}\n{self.detail}".rstrip()


@dataclass(frozen=True, slots=True)
class Missing:
    """The reasons why workers have not come; `str()` words them, "" where nothing is known."""

    workers: tuple[MissingWorker, ...] = ()  # the first of them
    more: int = 0
    no_answer: str = ""  # why the scheduler cannot be asked

    def __str__(self) -> str:
        lines = [f"no answer from the queue: {self.no_answer}"] if self.no_answer else []
        lines += [str(worker) for worker in self.workers]
        lines += [f"and {self.more} more"] if self.more else []
        return "\n".join(lines)


@runtime_checkable
class WorkerCluster(Protocol):
    """A cluster as the driver sees it; the defaults are those of a cluster that knows nothing."""

    owns_processes: bool = False  # it has forked its workers: it hears how each one ends, and replaces it
    is_ours: bool = True  # opened by this package: a worker of it may be ended where another takes its place

    @property
    def serves_https(self) -> bool:
        """Whether its dashboard is encrypted."""
        return False

    def end_of(self, pid: int) -> ProcessEnd | None:
        """Return how a worker process ended, once that is known."""
        return None

    def given_up(self) -> GivenUp | None:
        """Return why no worker will come any more, once that is known."""
        return None

    def missing(self) -> Missing:
        """Return the reasons why workers have not come."""
        return Missing()

    def went_with_job(self, worker: str, address: str) -> bool | None:
        """Whether a lost worker went with its job or session, not by its item; None: not known yet."""
        return False  # a worker is nothing but its process

    def kill_worker(self, host: str, pid: int) -> None:
        """SIGKILL a worker's process, where it is on this host."""
        if host == socket.gethostname():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)

    def remove_at_end(self, folder: str) -> None:
        """Remove a folder when the driver ends, even if it is killed, where the cluster can do that."""
        return

    def watch_demand(self, wanted: Callable[[], bool]) -> None:
        """Take a function that tells whether there is work, where that decides how many workers are started."""
        return


class PlainCluster(WorkerCluster):
    """A cluster of which nothing is known: the user's own, or none but a scheduler's address."""

    is_ours = False


def cluster_of(client: Any) -> WorkerCluster:
    """Return the cluster of a Dask client, as the driver sees it."""
    cluster = client.cluster
    return cluster if isinstance(cluster, WorkerCluster) else PlainCluster()
