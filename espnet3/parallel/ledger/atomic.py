"""Files that are there whole or not at all: written under a name that nobody reads, then renamed into place.

    Draft ──write──> .name.<token>.tmp ──commit──> name       a reader sees the old content or all of the new one

`write_whole` for content at hand, a `Draft` for content that comes piece by piece, `create_whole` where one of several
writers is to be the first. Each leaves no temporary file behind, unless its process is killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from types import TracebackType
from typing import IO

PRIVATE = 0o600
"""Mode of a file for its owner alone."""
BY_UMASK = 0o666
"""Mode of a file that others may read as far as the umask lets them."""

_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES}  # network file systems; folders that may not be read
_TOKEN = "[0-9a-f]" * 32  # as a pattern; `.*.tmp` would take the drafts of file.scp for those of `file`
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class Draft:
    """Writes a file atomically: readers see it after `commit`; without that, `close` drops it.

    Until then the content is in `temporary`, beside the file; each writer has a name of its own.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int = PRIVATE) -> None:
        self.path = os.fspath(path)
        folder, name = os.path.split(self.path)
        self.temporary = os.path.join(folder, f".{name}.{os.urandom(16).hex()}.tmp")
        self._there = True
        self._fd = os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        with contextlib.suppress(OSError) if kind is not None else contextlib.nullcontext():
            self.close()  # the first error is the one to report

    def write(self, data: bytes) -> None:
        """Append to the content."""
        write_all(self._fd, data)

    def opened(self) -> IO[bytes]:
        """Return the draft as a binary file, to be closed before `commit`; the draft stays open."""
        return open(self._fd, "wb", closefd=False)

    def sync(self) -> None:
        """Have the disk hold the content."""
        os.fsync(self._fd)

    def commit(self, *, durable: bool = True) -> None:
        """Put the content in the file's place."""
        if durable:
            self.sync()
        self._close_file()  # before the rename: over NFS another host could see the file without its end
        os.replace(self.temporary, self.path)
        self._there = False
        if durable:
            sync_folder(os.path.dirname(self.path))

    def close(self) -> None:
        """Drop the content, unless it was committed; a second call does nothing."""
        self._close_file()
        if self._there:
            self._there = False
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.temporary)

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def write_whole(
    path: str | os.PathLike[str], data: bytes, *, durable: bool = True, mode: int = PRIVATE
) -> None:
    """Write a file so that it has either its old content or all of the new one."""
    with Draft(path, mode) as draft:
        draft.write(data)
        draft.commit(durable=durable)


def create_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file that is not there yet, for its owner alone; of several writers one is the first."""
    with Draft(path) as draft:
        draft.write(data)
        try:
            os.link(draft.temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # some FUSE and Windows file systems: a reader may see it empty for a moment
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
                file.write(data)


def write_plainly(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file that nobody looks for before another one is there: neither renamed nor synced.

    For thousands of files at a time, which a file system over the network takes twice as long to rename as well.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags, PRIVATE)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of the bytes: the system may take fewer at a time, near a full disk for one."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder survive a power failure, where the file system can."""
    try:
        fd = os.open(path or os.curdir, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def leftovers(folder: Path, name: str) -> list[Path]:
    """Return the drafts of a file, or of those that a pattern names, whose writers were killed or are still at it."""
    return list(folder.glob(f".{name}.{_TOKEN}.tmp"))
