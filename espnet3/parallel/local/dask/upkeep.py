"""Turns off the periodic work and the log lines of Dask that nobody needs here."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import dask

from espnet3.parallel.dask_compat import default_config, interrupted_before_start, is_failed_broadcast

# Dask's periodic work costs 2 to 4 points of efficiency on two cores, and pilots need none of it.
# A value the user set (file, environment, dask.config.set) stays.
QUIET: dict[str, Any] = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "2s",
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.worker.http.routes": [],
    "distributed.scheduler.http.routes": [],
    # Dask's look at GPUs takes the first word of CUDA_VISIBLE_DEVICES for a number or a whole UUID, and fails on others
    "distributed.diagnostics.nvml": False,
}

# what Dask logs about a worker that was killed on purpose; a user's own logging settings stay
for _name in ("distributed.batched", "distributed.comm", "distributed.core", "distributed.scheduler"):
    if not logging.getLogger(_name).level:
        logging.getLogger(_name).setLevel(logging.ERROR)


def _is_an_error(record: logging.LogRecord) -> bool:
    """Whether a record is about more than cancelled tasks and workers that are gone: a cluster that closes has both."""
    kind, error, _ = record.exc_info or (None, None, None)
    if interrupted_before_start(error) or is_failed_broadcast(record):
        return False
    return kind is None or not issubclass(kind, asyncio.CancelledError)


for _name in (
    *(f"distributed.{part}" for part in ("client", "core", "scheduler", "worker")),
    "tornado.application",
):
    logging.getLogger(_name).addFilter(_is_an_error)


def quiet_config() -> dict[str, Any]:
    """Return the entries of `QUIET` that the user has not set."""
    defaults = default_config()
    return {
        key: value
        for key, value in QUIET.items()
        if dask.config.get(key, None) == dask.config.get(key, None, config=defaults)
    }
