"""The Dask plugin that opens a worker's slots to one driver."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from distributed import WorkerPlugin

from espnet3.parallel.dask_compat import threads_of
from espnet3.parallel.dask_compat.servers import tls_to_connect
from espnet3.parallel.env.worker_id import forget_worker, name_worker
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.pilots.worker import Slots


class PilotHost(WorkerPlugin):
    """Opens this worker's slots to one driver, as `Slots` are; workers that join late get one too."""

    def __init__(self, address: Any, key: bytes, name: str, replaced: bool = True) -> None:
        self.address = address
        self.key = key
        self.name = name
        self.driver = (socket.gethostname(), os.getpid())
        self._replaced = replaced

    def setup(self, worker: Any) -> None:
        """Open one slot per worker thread."""
        name_worker(worker.id)
        hello = Hello(str(worker.name), worker.address, os.getpid(), socket.gethostname(), threads_of(worker))
        encrypted = worker.address.startswith("tls")
        tls = tls_to_connect(worker.security, "worker") if encrypted else None
        self._slots = Slots(self.address, self.key, self.driver, self._replaced, hello, tls)
        self._slots.open()

    async def teardown(self, worker: Any) -> None:
        """Take no more chunks, and let those in hand be answered: a worker at the end of its lifetime loses nothing."""
        forget_worker(worker.id)
        self._slots.leave()
        # the slots are threads that wait for a socket or run user code: there is no event of this loop
        while self._slots.is_needed():  # noqa: ASYNC110  # see above
            await asyncio.sleep(0.02)

    def drop_chunks(self) -> None:
        """Keep `teardown` from waiting: the chunks in hand are not wanted any more."""
        self._slots.drop_chunks()
