"""Loaded by the processes of a run: many files, pages that ask for its certificate, nannies that close without waiting.

Dask serves its dashboard, and facts about each worker, over HTTP to any client, on a cluster that speaks TLS too.
"""

from __future__ import annotations

import resource
from typing import Any

from distributed import Nanny

from espnet3.parallel.dask_compat.clusters import ask_for_certificate, kill_starting_worker

_MOST = 1 << 20  # open files: some programs go through all that they may have


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


_raise_file_limit()  # a scheduler needs some for each worker


def dask_setup(server: Any) -> None:
    """Prepare a scheduler or a worker; Dask calls this."""
    if not isinstance(server, Nanny):
        ask_for_certificate(server)


async def dask_teardown(server: Any) -> None:
    """Have a nanny that closes kill a worker that has not come up; Dask calls this before the nanny waits for it.

    A worker whose scheduler is gone goes on connecting until its death-timeout, and its nanny would wait for that.
    """
    if isinstance(server, Nanny):
        await kill_starting_worker(server)
