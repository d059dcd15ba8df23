"""Worker processes of our own on this machine, and the pool of their slots: what a run needs without Dask."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from espnet3.parallel.backends.gpus import gpu_env
from espnet3.parallel.errors import NoWorkersError
from espnet3.parallel.local.fork_server import ForkServer, boot_of
from espnet3.parallel.local.memory_limit import MemoryWatch
from espnet3.parallel.local.supervisor import SupervisedCluster, Supervisor
from espnet3.parallel.pilots.pool import Pool, private_listener
from espnet3.parallel.pilots.slot import SlotClaim


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What a `parallel` block asks of the processes."""

    threads: int = 1  # items that each works on at once
    memory_limit: Any = "auto"  # as `LocalCluster` takes it
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: Sequence[str] = ()  # one each; none: they see what this process sees


class OwnWorkers(SupervisedCluster):
    """`n` worker processes of a server, watched and replaced, and the slots that they have opened (`RunSlots`)."""

    def __init__(self, n: int, settings: ProcessSettings, server: ForkServer) -> None:
        self._pid = os.getpid()
        self._closed = False
        listener, folder = private_listener(server.remove_at_end)
        self.pool = Pool(listener, folder)
        try:
            self._settings = settings
            self._boot = boot_of(
                settings.env,
                threads=settings.threads,
                address=self.pool.address,
                key=self.pool.key,
                driver=(socket.gethostname(), self._pid),
            )
            self._growing = threading.Lock()
            self.supervisor = Supervisor(server)
            self.grow(n)
            self.supervisor.start()
        except BaseException:  # Ctrl-C too: leave no door and no folder behind
            self.pool.close()
            raise

    def __len__(self) -> int:
        return len(self.supervisor.workers)

    # --- what a run asks: `RunSlots` ---

    def claim(self) -> SlotClaim:
        """Open a claim to their slots."""
        return self.pool.claim()

    def wake(self) -> None:
        """Have the run look for new work; from any thread."""
        self.pool.wake()

    def check(self) -> None:
        """Check that they have not been ended, and are this process's."""
        if os.getpid() != self._pid:
            raise NoWorkersError(
                "this run was begun by the process that this one was forked from, and its workers are that "
                "process's own: begin it here, or end it before the fork"
            )
        if self._closed:
            raise NoWorkersError("the worker processes of this run have been ended")

    def last_heard(self, address: str) -> Any:
        """Return nothing to compare: they are of this host, where their processes can be looked at."""
        return None

    def fall_back(self) -> bool:
        """Return False: there is no other way to them."""
        return False

    # --- what those who keep them ask ---

    def grow(self, n: int) -> None:
        """Have `n` processes at least."""
        settings = self._settings
        with self._growing:
            for number in range(len(self), n):
                env = {**self._boot["env"], **gpu_env(settings.gpus, number)}
                boot = {**self._boot, "name": str(number), "env": env}
                memory = MemoryWatch(settings.memory_limit, settings.threads)
                self.supervisor.add(str(number), boot, memory)

    def are_as_new(self) -> bool:
        """Whether each is as it began, but for the modules it has loaded.

        Its folder, environment and search path are what they were, no source of a loaded module was written since,
        and it answers.
        """
        return self.supervisor.are_as_new()

    def close(self, kill: bool = False) -> None:
        """End the processes and their server, and wait for that; in a forked child, where they are not its, nothing."""
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        self.pool.close()
        self.supervisor.close(kill)

    def leave(self) -> None:
        """End them without waiting: their server waits for them, when this process is gone."""
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        self.supervisor.leave()
