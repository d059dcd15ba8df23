"""Files of a run folder: written whole or not at all, or appended to in whole lines; folders are 0700, files 0600."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from espnet3.parallel.ledger import atomic
from espnet3.parallel.ledger.errors import DamagedFolderError, FolderWriteError

SYNC_SECONDS = 1.0  # what a power failure may cost; what a process has written survives its own death
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST}


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating system's error into one that names the file and says what to do."""
    try:
        yield
    except FolderWriteError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            fix = (
                "the disk is full (or a quota is used up): free space and start again, what is whole is kept"
            )
        elif error.errno in _READ_ONLY:
            fix = "it is not writable for this user: change its permissions, or take another output_dir"
        elif error.errno in _IN_THE_WAY:
            fix = "a file stands where a folder must be: move it away, or take another output_dir"
        else:
            fix = "nothing that was whole is lost: start again to go on"
        raise FolderWriteError(
            f"{path.parent}: cannot write {path.name}: {error.strerror or error}; {fix}"
        ) from error


def make_folder(path: Path) -> None:
    """Create a folder for its owner alone; one that exists keeps its mode."""
    with writing(path):
        missing = [p for p in (path, *path.parents) if not p.exists()]
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another driver was faster: the lease decides later
                folder.mkdir(mode=0o700)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def write_whole(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file so that it has either its old content or all of the new one; `durable` as for `Draft.commit`."""
    with writing(path):
        atomic.write_whole(path, data, durable=durable)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, indented for people, keys in the order given."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, text.encode("utf-8", "backslashreplace") + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedFolderError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise DamagedFolderError(f"{path} is damaged: it holds a {type(value).__name__}, not an object")
    return value


class Appender:
    """A file that grows by whole lines; after an error its end is where it was before.

    Each `append` is one write to the operating system, so a process may be killed at any moment and
    loses nothing it has appended. The disk itself is told (fsync) at most once a second, and at the end.

    Args:
        path: Created if missing; an unfinished last line of an earlier process is ended first.
        durable: The disk is told; else what was appended survives this process, but not a power failure.
    """

    def __init__(self, path: Path, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        with writing(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self.size = os.fstat(self._fd).st_size
        self._synced = time.monotonic()
        self._dirty = self._broken = False
        if self.size and os.pread(self._fd, 1, self.size - 1) != b"\n":
            self.append([b"\n"])

    def append(self, lines: Sequence[bytes]) -> None:
        """Append lines, each with its end, in one write."""
        if self._broken:
            raise FolderWriteError(
                f"{self.path} could not be cut back after a failed write: start again to go on"
            )
        data = b"".join(lines)
        with writing(self.path):
            self.check()
            try:
                atomic.write_all(self._fd, data)
            except OSError:
                self._cut_back()
                raise
            self.size += len(data)
            self._dirty = True
            if self._durable and time.monotonic() - self._synced >= SYNC_SECONDS:
                self.sync()

    def check(self) -> None:
        """Raise `DamagedFolderError` where the file is gone from its folder: what is written to it is lost."""
        if not os.fstat(self._fd).st_nlink or not self.path.exists():
            raise DamagedFolderError(
                f"{self.path} is gone: it was deleted or moved while the run was writing to it. Put it back, or start "
                "again to compute what it held, and leave the folder alone until the run has ended"
            )

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._fd, self.size)
        except OSError:
            self._broken = True  # a torn line stays at the end: no reader takes it, and nothing may follow it

    def sync(self) -> None:
        """Have the disk hold what was appended."""
        if self._dirty and self._durable:
            with writing(self.path):
                os.fsync(self._fd)
        self._dirty, self._synced = False, time.monotonic()

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        if self._fd < 0:
            return
        try:
            self.sync()
        finally:
            os.close(self._fd)
            self._fd = -1
