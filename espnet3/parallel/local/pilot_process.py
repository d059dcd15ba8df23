"""What a forked worker process of our own runs: slots to its driver, until that says stop or is gone.

    driver ── boot, then lines: "check", "stop" ──> this process
           <── one JSON line for each, the first says that its slots are open ──

Items run in the threads of its slots. Its main thread waits for the driver, and wakes up every second: by that the
driver sees that the process is not frozen.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any

from espnet3.parallel.checks import surroundings
from espnet3.parallel.env.worker_id import name_worker
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.pilots.worker import STARTED, Slots

_WAKE_UP = 1000  # milliseconds
_STDLIB = os.path.dirname(os.__file__) + os.sep  # sysconfig would say it too, and takes a millisecond to load
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_CLOCK = 0.05  # seconds that a file system's clock may be behind


def run(sock: socket.socket, boot: dict[str, Any]) -> None:
    """Run as `boot` says."""
    began = time.time()
    try:
        _open(boot)
    except Exception:
        _send(sock, {"error": traceback.format_exc()})
        return
    before = surroundings()  # what an item may change for those that come after it
    _send(sock, {"up": True})
    STARTED.set()
    inbox = b""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while True:
        if not poller.poll(_WAKE_UP):
            continue
        data = _receive(sock)
        if not data:
            _leave()
        inbox += data
        while b"\n" in inbox:
            line, inbox = inbox.split(b"\n", 1)
            if line == b"stop":
                return
            _send(sock, {"as_new": surroundings() == before and not _edited(began)})


def _open(boot: dict[str, Any]) -> None:
    STARTED.clear()
    host, pid = socket.gethostname(), os.getpid()
    name_worker(f"local-{boot['name']}-{pid}")
    hello = Hello(boot["name"], f"process {pid}", pid, host, boot["threads"])
    Slots(boot["address"], boot["key"], boot["driver"], True, hello).open()


def _leave() -> None:
    """The driver is gone: end at once, with all that was started here."""
    os.killpg(os.getpid(), signal.SIGKILL)


def _edited(since: float) -> bool:
    """Whether the source of a module that is loaded here was written after a moment; installed ones are not asked."""
    limit = since - _CLOCK
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or file.startswith(_STDLIB) or any(each in file for each in _INSTALLED):
            continue
        try:
            if os.stat(file).st_mtime > limit:
                return True
        except OSError:  # removed meanwhile
            return True
    return False


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(256)
    except ConnectionError:
        return b""


def _send(sock: socket.socket, message: dict[str, Any]) -> None:
    try:
        sock.sendall(json.dumps(message).encode() + b"\n")
    except OSError:  # the driver is gone
        _leave()
