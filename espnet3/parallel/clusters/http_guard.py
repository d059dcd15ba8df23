"""Loaded by scheduler and workers of a run with a certificate: their HTTP pages ask for it.

Dask serves its dashboard, and facts about each worker, over HTTP to whoever connects, on a cluster that speaks TLS too.
"""

from __future__ import annotations

from typing import Any

from espnet3.parallel.dask_compat import ask_for_certificate


def dask_setup(server: Any) -> None:
    """Have a scheduler or worker ask for the run's certificate on its HTTP port too; Dask calls this."""
    ask_for_certificate(server)
