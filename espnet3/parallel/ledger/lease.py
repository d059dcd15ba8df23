"""A folder's lease: one driver at a time, and a dead one's is taken over by itself.

    lease.1.json  lease.2.json  lease.3.json     the highest number holds; each is written by one process

A lease is taken by creating the file of the next number; the file system lets only one process do it
(a hard link to a finished file: also on NFS). No process ever replaces another's lease, so two drivers that
find the same dead one cannot take it over both. The holder touches its file every few seconds.

Dead is: on the same host a process that is gone, whatever the clock says. From elsewhere a file that is
not touched: its age by the file system's own clock (against a file touched just now), and then, since a
clock may have jumped, by watching it for longer than two beats. The lease in a copy of a folder has no holder:
folder and path are others than those it was written for, and no process touches it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from espnet3.parallel.ledger import files
from espnet3.parallel.ledger.errors import (
    DamagedFolderError,
    FolderInUseError,
    FolderWriteError,
    LeaseLostError,
)

T = TypeVar("T")

BEAT = 2.0  # seconds between two signs of life
STALE = 30.0  # seconds without one before a holder on another host is suspected
_KEPT = 4  # files of earlier holders that stay, for people
_PROC = Path("/proc")
_NAME = re.compile(r"lease\.\d+\.json")
_HELD: set[str] = set()  # tokens of the leases this process holds


class Lease:
    """The right to write to a folder that exists, kept by a sign of life each `beat` seconds."""

    def __init__(self, path: str | os.PathLike[str], beat: float = BEAT) -> None:
        self.path = Path(path)
        self.beat = beat
        self._file = self.path  # of the lease, once it is taken
        self._facts: dict[str, Any] = {}
        self._lost = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, who: str) -> None:
        """Take the lease."""
        token = uuid.uuid4().hex
        self._facts = {
            "run_id": who,
            "since": files.now(),
            **this_process(),
            "token": token,
            "folder": _place(self.path),
        }
        # before the file is there: other threads take a token that is not held for a dead one's
        _HELD.add(token)
        try:
            while not self._take():  # another driver was faster: the next look finds it alive
                pass
        except BaseException:  # Ctrl-C too
            _HELD.discard(token)
            raise
        self._beaten = time.monotonic()
        self._thread = threading.Thread(target=self._keep, name="espnet3-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if another driver has taken the lease over."""
        if not self._lost and time.monotonic() > self._beaten + STALE:
            self._look()  # this process was stopped, and the next beat may come too late
        if self._lost:
            raise LeaseLostError(self._lost)

    def release(self) -> None:
        """Give the lease back; a second call, and one in a forked child, does nothing."""
        if self._thread is None or os.getpid() != self._facts["pid"]:
            return
        self._stop.set()
        self._thread.join()
        self._thread = None
        _HELD.discard(self._facts["token"])
        if self._lost:
            return
        # on a full disk, or where the folder is gone, the lease ends with this process, or with the token above
        with suppress(FolderWriteError):
            files.write_json(self._file, {**self._facts, "released": files.now()})

    def _take(self) -> bool:
        newest = newest_lease(self.path)
        self._refuse_if_alive(newest)
        self._file = self.path / f"lease.{_number(newest) + 1}.json"
        with files.writing(self._file):
            try:
                # whole from its first moment on: a reader would take a part of it for a damaged one
                files.create_whole(self._file, json.dumps(self._facts, indent=2).encode())
            except FileExistsError:
                return False
            *earlier, newest = leases(self.path)
            if newest != self._file:  # all of its time went by since its number was looked for
                self._file.unlink(missing_ok=True)
                return False
            for old in earlier[: 1 - _KEPT]:
                old.unlink(missing_ok=True)
        return True

    def _refuse_if_alive(self, file: Path) -> None:
        with files.writing(file):  # a holder's file is its user's alone: another user has no business here
            try:
                held = files.read_json(file)
            except FileNotFoundError:
                return  # cleaned up by a later holder: look again
            except DamagedFolderError:
                held = {}  # damaged: its age alone has to tell
        if held.get("released"):
            return
        alive, copied = is_alive(held), is_copied(self.path, held)
        if alive and held.get("pid") == os.getpid():
            alive = held.get("token") in _HELD  # of this process, and maybe given back without a note
        if alive is None or (alive and copied):
            alive = self._is_touched(file, at_once=not copied)
        if alive:
            pid, host, since, run = (held.get(k, "(unknown)") for k in ("pid", "host", "since", "run_id"))
            raise FolderInUseError(
                f"{self.path} is in use: process {pid} on {host} has been working in it since {since} "
                f"(run {run}). Wait for it, stop it, or take another output_dir"
            )

    def _is_touched(self, file: Path, *, at_once: bool) -> bool:
        touched = _touched(file)
        if touched is None:
            return False
        if at_once and abs(disk_now(self.path) - touched) < STALE * 1e9:
            return True
        # long ago, or in the future: its holder is dead, or a clock has jumped
        end = time.monotonic() + 2.5 * self.beat  # that of all who take this folder
        while time.monotonic() < end:
            time.sleep(min(0.1, self.beat / 4))  # a file on another host's disk sends no event
            if _touched(file) != touched:
                return True
        return False

    def _keep(self) -> None:
        while not self._lost and not self._stop.wait(self.beat):
            self._look()

    def _look(self) -> None:
        try:
            os.utime(self._file)  # without times: the file system's clock, not this host's
            newest = newest_lease(self.path)
        except OSError:  # a disk that does not answer, or is full: the next beat tries again
            return
        self._beaten = time.monotonic()
        if _number(newest) > _number(self._file):
            self._lost = (
                f"{self.path} was taken over by another driver ({newest.name}), because this "
                "process gave no sign of life for too long. What it has written stays valid"
            )


def leases(folder: Path) -> list[Path]:
    """Return a folder's leases, the oldest first; the last one holds."""
    # no others beside them, such as a copy that somebody made
    return sorted((one for one in folder.glob("lease.*.json") if _NAME.fullmatch(one.name)), key=_number)


def newest_lease(folder: Path) -> Path:
    """Return the lease that holds; with the number 0 it is not there."""
    return [folder / "lease.0.json", *leases(folder)][-1]


def _number(lease: Path) -> int:
    return int(lease.name.split(".")[1])


def holder_lives(folder: Path, now_ns: int | None = None) -> bool:
    """Return whether a folder's lease is held by a process that gives signs of life, without waiting."""
    newest = newest_lease(folder)
    held = files.read_or_none(newest)
    if held is None or held.get("released") or is_copied(folder, held):
        return False
    alive = is_alive(held)
    if alive is not None:
        return alive
    now, touched = disk_now(folder) if now_ns is None else now_ns, _touched(newest)
    return touched is not None and abs(now - touched) < STALE * 1e9


def holder_of(folder: Path) -> dict[str, Any]:
    """Return the facts in a folder's newest lease about its holder, living or not; none without a lease."""
    return files.read_or_none(newest_lease(folder)) or {}


def disk_now(folder: Path) -> int:
    """Return the time in nanoseconds by the clock of a folder's disk, or this host's where it is read-only."""
    probe = folder / f".now.{uuid.uuid4().hex}.tmp"
    try:
        probe.touch(0o600)
    except OSError:
        return time.time_ns()
    try:
        return probe.stat().st_mtime_ns
    finally:
        probe.unlink(missing_ok=True)


def _place(folder: Path) -> dict[str, Any]:
    return {"path": os.path.realpath(folder), "inode": os.stat(folder).st_ino}


def is_copied(folder: Path, held: dict[str, Any]) -> bool:
    """Tell whether a lease was written for another folder: a copy's has no holder, and a moved one's keeps it."""
    place, ours = held.get("folder"), _place(folder)
    return isinstance(place, dict) and all(place.get(name) != ours[name] for name in ours)


def _touched(file: Path) -> int | None:
    try:
        # opening asks an NFS server, where stat may answer from a cache
        with files.open_plain(file) as opened:
            return os.fstat(opened.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def this_process() -> dict[str, Any]:
    """Return facts that identify this process on this host until the next boot.

    Process ids are reused, so the start time goes with the id; hosts share names (`localhost`), so the boot
    id goes with the name; containers share a boot, so the namespace of process ids goes with it.
    """
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot_id": _or_none(lambda: (_PROC / "sys/kernel/random/boot_id").read_text().strip()),
        "pid_namespace": _or_none(lambda: os.readlink(_PROC / "self/ns/pid")),
        "process_start": process_start(os.getpid()),
    }


def _or_none(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except OSError:  # a system without it, or a process that is gone
        return None


def process_start(pid: int) -> int | None:
    """Return the start of a process, in ticks since the boot; None for one that is gone or a zombie."""
    stat = _or_none((_PROC / str(pid) / "stat").read_bytes)
    if stat is None:
        return None
    # the name in parentheses may hold anything, also spaces and parentheses
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X", b"x") else int(fields[19])


def is_alive(who: dict[str, Any]) -> bool | None:
    """Tell whether a process described by `this_process` is alive; None if it cannot be seen from here."""
    here = this_process()
    if any(who.get(key) != here[key] for key in ("host", "boot_id", "pid_namespace")):
        return None
    pid, start = who.get("pid"), who.get("process_start")
    if type(pid) is not int or type(start) is not int:
        return None
    return process_start(pid) == start
