"""The work of a forked process until its driver says stop or is gone: slots of our own, or a worker of Dask's.

    driver ── boot, then the line "stop", or "leave" ──> this process
           <── JSON lines: that it is up, or why not; that its slots have no driver any more ──

Beside a worker of Dask's on a node, that worker stands in the driver's place here.

Items of our own slots run in their threads. The main thread waits for the driver, and wakes up every second: by that
the driver sees that the process is not frozen.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import sys
import time
import traceback
from typing import Any

from espnet3.parallel.checks import is_installed, own_attribute
from espnet3.parallel.engine.watch import end_process
from espnet3.parallel.env.store import ENVS, name_worker
from espnet3.parallel.pilots.channel import worker_context
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.pilots.worker import Slots
from espnet3.parallel.surroundings import SETTLED, surroundings

_WAKE_UP = 1000  # milliseconds
_LOOK = 0.02  # seconds between looks at what is in hand
_LAST_ITEM = 0.25  # seconds that an item may still take, where another one has ended the run
_CLOCK = 0.05  # seconds that a file system's clock may be behind
# in the server, before any module that its driver names
_BEGAN, _AT_START = time.time(), frozenset(sys.modules)


def run(sock: socket.socket, boot: dict[str, Any]) -> None:
    """Run as `boot` says."""
    if "scheduler" in boot:
        import asyncio  # 40 ms that slots of our own need not wait for

        import dask

        dask.config.set(boot["config"])
        asyncio.run(_serve_dask(sock, boot))
    else:
        _serve_slots(sock, boot)
    ENVS.clear()


def _send(sock: socket.socket, message: dict[str, Any]) -> None:
    try:
        sock.sendall(json.dumps(message).encode() + b"\n")
    except OSError:  # the driver is gone
        end_process()


def _serve_slots(sock: socket.socket, boot: dict[str, Any]) -> None:
    began = dict.fromkeys(sys.modules, _BEGAN), time.time()
    host, pid = socket.gethostname(), os.getpid()

    def as_new() -> bool:
        return surroundings(SETTLED) == before and not _edited(*began)

    try:
        node = boot.get("node")
        name_worker(boot.get("id") or f"local-{boot['name']}-{pid}")
        hello = Hello(boot["name"], node or f"process {pid}", pid, host, boot["threads"])
        place = boot["address"], boot["key"]
        slots = Slots(*place, hello, worker_context(**boot["tls"]) if boot.get("tls") else None, as_new)
        before = surroundings(SETTLED)  # an item may change them for the items after it
        _send(sock, {"pid": pid})  # it has started, also where its first item ends it
        slots.open()
    except Exception:
        _send(sock, {"error": traceback.format_exc()})
        return
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while not poller.poll(_WAKE_UP):
        if node is not None and not slots.n_open:
            if slots.unreached:
                logging.getLogger(__name__).warning("worker %s ends: %s", boot["name"], slots.unreached)
            _send(sock, {"error": slots.unreached} if slots.unreached else {"over": True})
            return
    if _receive(sock).startswith(b"leave"):
        slots.leaving = True
        while slots.is_needed():
            time.sleep(_LOOK)
    else:
        slots.end(_LAST_ITEM)


def _receive(sock: socket.socket) -> bytes:
    try:
        word = sock.recv(256)
    except ConnectionError:
        word = b""
    if not word:  # the driver is gone
        end_process()
    return word


def _edited(shared: dict[str, float], since: float) -> bool:
    for name in sys.modules.keys() - _AT_START:
        file = own_attribute(sys.modules.get(name), "__file__")
        if not isinstance(file, str) or is_installed(file):
            continue
        try:
            if os.stat(file).st_mtime > shared.get(name, since) - _CLOCK:
                return True
        except OSError:  # removed meanwhile
            return True
    return False


async def _serve_dask(sock: socket.socket, boot: dict[str, Any]) -> None:
    import asyncio

    from distributed import Worker

    from espnet3.parallel.dask_compat.clusters import guard_listeners
    from espnet3.parallel.local.pages import behind_secret

    guard_listeners()
    # the folder of a worker that died is removed by all those that start next to it
    logging.getLogger("distributed.diskutils").setLevel(logging.CRITICAL)
    stop = asyncio.Event()

    def on_message() -> None:
        _receive(sock)
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors of the end are expected
        stop.set()

    asyncio.get_running_loop().add_reader(sock, on_message)
    try:
        worker = await behind_secret(Worker, boot["pages"])(boot["scheduler"], **boot["options"])
    except Exception:
        _send(sock, {"error": traceback.format_exc()})
        return
    name_worker(worker.id)  # for calls without an env too
    _send(sock, {"pid": os.getpid(), "address": worker.address})
    finished = asyncio.ensure_future(worker.finished())
    await asyncio.wait({finished, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    await worker.close(executor_wait=False, nanny=False, reason="stopped by the driver")
