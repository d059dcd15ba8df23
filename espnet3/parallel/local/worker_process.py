"""What a forked local worker process runs: one `distributed.Worker`, until its driver says stop or is gone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import traceback
from typing import Any

_HEARTBEAT = 2.0  # seconds; Dask's own is 0.5, and each heartbeat costs both ends 3 ms of processor time


def run(sock: socket.socket, boot: dict[str, Any]) -> None:
    """Run a Dask worker as `boot` says."""
    import dask

    dask.config.set(boot["config"])
    asyncio.run(_serve(sock, boot))


async def _serve(sock: socket.socket, boot: dict[str, Any]) -> None:
    from distributed import Worker

    from espnet3.parallel.dask_compat import slow_heartbeats
    from espnet3.parallel.dask_compat.servers import guard_listeners, guarded
    from espnet3.parallel.env.worker_id import name_worker
    from espnet3.parallel.local.pages import ask_for_secret
    from espnet3.parallel.pilots.worker import STARTED

    guard_listeners()
    STARTED.clear()
    # the folder of a worker that died is removed by the cluster, and by each worker that starts next to it
    logging.getLogger("distributed.diskutils").setLevel(logging.CRITICAL)
    sock.setblocking(False)
    stop = asyncio.Event()

    def on_message() -> None:
        try:
            message = sock.recv(16)
        except BlockingIOError:
            return
        if not message:  # the driver is gone: leave at once, with all we started
            os.killpg(os.getpid(), signal.SIGKILL)
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what breaks from here on was asked for
        stop.set()

    asyncio.get_running_loop().add_reader(sock, on_message)
    secret = boot["pages"]
    make = Worker if secret is None else guarded(Worker, lambda worker: ask_for_secret(worker, secret))
    try:
        worker = await make(boot["scheduler"], **boot["options"])
    except Exception:
        await _send(sock, {"error": traceback.format_exc()})
        return
    name_worker(worker.id)  # for calls without an env too
    slow_heartbeats(worker, _HEARTBEAT)  # the driver detects death from the process
    await _send(sock, {"address": worker.address, "directory": worker.local_directory})
    STARTED.set()
    finished = asyncio.ensure_future(worker.finished())
    await asyncio.wait({finished, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    await worker.close(executor_wait=False, nanny=False, reason="stopped by the driver")


async def _send(sock: socket.socket, message: dict[str, Any]) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, json.dumps(message).encode() + b"\n")
