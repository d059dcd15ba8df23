"""Who a process is, so that another one can tell later whether it is still alive."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


def this_process() -> dict[str, Any]:
    """Return what identifies this process on this host until the next boot.

    Process ids are reused, so the start time goes with the id; hosts share names (`localhost`), so the boot
    id goes with the name; containers share a boot, so the namespace of process ids goes with it.
    """
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot_id": boot_id(),
        "pid_namespace": _pid_namespace(),
        "process_start": process_start(os.getpid()),
    }


def boot_id() -> str | None:
    """Return the id of this boot of this host; None where the system has none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _pid_namespace() -> str | None:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return None


def process_start(pid: int) -> int | None:
    """Return when a process started, in ticks since the boot; None for one that is gone or a zombie.

    None as well where the system has no /proc: ask `is_alive`.
    """
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # the name in parentheses may hold anything, also spaces and parentheses
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X", b"x") else int(fields[19])


def is_alive(who: dict[str, Any]) -> bool | None:
    """Whether a process described by `this_process` is alive; None if that cannot be found out from here."""
    here = this_process()
    if any(who.get(key) != here[key] for key in ("host", "boot_id", "pid_namespace")):
        return None
    pid = who.get("pid")
    if type(pid) is not int or pid <= 0:
        return None
    if here["process_start"] is not None:
        return process_start(pid) == who.get("process_start")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it is there, and another user's
    return True
