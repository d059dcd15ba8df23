"""Loaded by the processes of a run: their pages ask for its certificate, and nannies leave no folder and no wait.

Dask serves its dashboard, and facts about each worker, over HTTP to any client, on a cluster that speaks TLS too.
"""

from __future__ import annotations

import atexit
import os
import shutil
from typing import Any

from distributed import Nanny

from espnet3.parallel.clusters.security import SCRATCH_VARIABLE
from espnet3.parallel.dask_compat.clusters import ask_for_certificate, guard_listeners, kill_starting_worker
from espnet3.parallel.local.forking import SCRATCH

guard_listeners()  # when this is imported: the server that does it listens later


def dask_setup(server: Any) -> None:
    """Prepare a scheduler or a worker; Dask calls this."""
    if not isinstance(server, Nanny):
        ask_for_certificate(server)
        return
    scratch = os.environ.get(SCRATCH_VARIABLE, "")
    if os.path.basename(scratch).startswith(SCRATCH):  # the job's, made by its script
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)


async def dask_teardown(server: Any) -> None:
    """Have a nanny that closes kill a worker that has not come up; Dask calls this before the nanny waits for it.

    A worker whose scheduler is gone goes on connecting until its death-timeout, and its nanny would wait for that.
    """
    if isinstance(server, Nanny):
        await kill_starting_worker(server)
