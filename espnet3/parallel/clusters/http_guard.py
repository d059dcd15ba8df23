"""Loaded by scheduler and workers of a run with a certificate: their HTTP pages ask for it.

Dask serves its dashboard, and facts about each worker, over HTTP to whoever connects, on a cluster that speaks TLS too.
"""

from __future__ import annotations

from typing import Any


def dask_setup(server: Any) -> None:
    """Have a scheduler or worker ask for the run's certificate on its HTTP port too; Dask calls this."""
    role = "worker" if hasattr(server, "nanny") else "scheduler"
    try:
        server.http_server.ssl_options = server.security.get_listen_args(role)["ssl_context"]
    except BaseException:
        server.http_server.stop()  # Dask goes on without a preload that failed
        raise
