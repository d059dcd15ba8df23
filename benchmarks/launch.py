"""Start a process so that whatever it does, it ends: a time limit, its process group, and its strays."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

GRACE = 2.0  # seconds that a process's own helpers get to follow it before they count as left behind
KILLED_WITHIN = 10.0
TAG = "ESPNET3_BENCHTAG"
_serial = count()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    code: int  # its exit status; negative for a signal
    exited: float  # `time.monotonic()` when it was gone
    timed_out: bool  # it was killed because its time was over
    # processes it had started that outlived it by `GRACE`; they were killed. 0 where it was killed itself
    left_behind: int


def contained(
    argv: Sequence[str], *, timeout: float, cwd: Path, log: Path, env: Mapping[str, str] | None = None
) -> Ended:
    """Run a command in a session of its own, output to `log`, and leave nothing of it alive."""
    tag = f"{os.getpid()}-{next(_serial)}"
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, **(env or {}), TAG: tag},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    over = threading.Event()
    timed_out = threading.Event()

    def limit() -> None:
        if not over.wait(timeout):
            timed_out.set()
            _kill_group(process.pid)

    watch = threading.Thread(target=limit, daemon=True)
    watch.start()
    try:
        # A thread keeps the time: wait(timeout=...) polls, which would cost W5 up to 50 ms.
        code = process.wait()
        exited = time.monotonic()
    finally:
        over.set()
        watch.join()
        if process.returncode is None:  # interrupted from the keyboard
            _kill_group(process.pid)
            process.wait()
        left = _sweep(process.pid, tag, 0.0 if timed_out.is_set() else GRACE)
    return Ended(code, exited, timed_out.is_set(), 0 if timed_out.is_set() else left)


def _kill_group(pgid: int) -> None:
    try:
        os.killpg(pgid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _sweep(pgid: int, tag: str, grace: float) -> int:
    """Wait for the process's descendants to end, kill those that do not, and return how many those were."""
    left = _wait_until_none(lambda: tagged(tag), grace)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    _kill_group(pgid)
    if stuck := _wait_until_none(lambda: [pid for pid in left if _alive(pid)], KILLED_WITHIN):
        raise RuntimeError(
            f"processes {stuck} outlive SIGKILL by {KILLED_WITHIN} s: no figure is to be trusted"
        )
    return len(left)


def _wait_until_none(look: Callable[[], list[int]], seconds: float) -> list[int]:
    """Look until there is nothing, or for so many seconds; return what there was at last."""
    deadline = time.monotonic() + seconds
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.02)  # processes that are not our children cannot be waited for
    return left


def _alive(pid: int) -> bool:
    """Return whether a process still runs; a zombie, which only its new parent can bury, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def tagged(tag: str) -> list[int]:
    """Return the processes that inherited the tag, also those that left the group (Linux)."""
    mark, found = f"{TAG}={tag}".encode(), []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended meanwhile, or is another user's
    return found
