"""Files of a run folder: written whole or not at all, or appended to in whole lines; folders are 0700, files 0600.

    Draft ──write──> .name.<token>.tmp ──commit──> name       a reader sees the old content or all of the new one

`write_whole` for content at hand, a `Draft` for content that comes piece by piece, `create_whole` where one of several
writers is to be the first. Each leaves no temporary file behind, unless its process is killed.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import os
import pwd
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from datetime import datetime, timezone
from functools import cache, lru_cache
from pathlib import Path
from types import TracebackType, UnionType
from typing import Any, BinaryIO, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.errors import DamagedFolderError, FolderWriteError
from espnet3.parallel.messages import shown

R = TypeVar("R")

PRIVATE = 0o600  # mode of a file for its owner alone
BY_UMASK = 0o666  # of a file that others may read as far as the umask lets them
SYNC_SECONDS = 1.0  # that a power failure may cost; the death of a process costs no written line
# names of this package in a run folder, and beside the user's own files in a split
_OURS = re.compile(
    r"detached|(split|session)\.\d+|(run|receipt|manifest)\.json|(results|errors|events)\.jsonl|lease\.\d+\.json"
)
_OF_A_SPLIT = re.compile(r"done|.*\.jsonl?")
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES}  # network file systems; folders that may not be read
_TOKEN = "[0-9a-f]" * 32  # as a pattern; `.*.tmp` would take the drafts of file.scp for those of `file`
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_BUFFER = 1 << 16  # bytes of a draft that are written at a time
_HUGE = 1 << 53  # no count, size or time of a run is as large


def now() -> str:
    """Return this moment in UTC as text, to a millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one that names the file and what to do."""
    try:
        yield
    except FolderWriteError:
        raise
    except OSError as error:
        raise FolderWriteError(
            f"{path.parent}: cannot write {path.name}: {error.strerror or error}; free space, change its permissions "
            "or take another output_dir, and start again: what was written is kept"
        ) from error


def make_folder(path: Path, *, parents: bool = False) -> None:
    """Create a folder for its owner alone, and those above it with `parents`; one that exists keeps its mode."""
    with writing(path):
        for folder in (*(reversed(path.parents) if parents else ()), path):
            folder.mkdir(mode=0o700, exist_ok=True)  # if another driver is faster, the lease decides later


class Draft:
    """Writes a file atomically: readers see it after `commit`; without that, `close` drops it.

    Until then the content is in `temporary`, beside the file; each writer has a name of its own.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int = PRIVATE) -> None:
        self.path = os.fspath(path)
        folder, name = os.path.split(self.path)
        self.temporary = os.path.join(folder, f".{name}.{os.urandom(16).hex()}.tmp")
        fd = os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        self.file = os.fdopen(fd, "wb", _BUFFER)  # to write to

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        with contextlib.suppress(OSError) if kind is not None else contextlib.nullcontext():
            self.close()  # the first error is the one to report

    def commit(self, *, durable: bool = True) -> None:
        """Put the content in the file's place; `durable` has the disk hold it first."""
        self.file.flush()
        if durable:
            os.fsync(self.file.fileno())
        self.file.close()  # before the rename: over NFS another host could see the file without its end
        os.replace(self.temporary, self.path)
        if durable:
            sync_folder(os.path.dirname(self.path))

    def close(self) -> None:
        """Drop the content, unless it was committed; a second call does nothing."""
        try:
            self.file.close()
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.temporary)


def write_whole(
    path: str | os.PathLike[str], data: bytes, *, durable: bool = True, mode: int = PRIVATE
) -> None:
    """Write a file so that it has either its old content or all of the new one; `durable` as for `Draft.commit`."""
    with writing(Path(path)), Draft(path, mode) as draft:
        draft.file.write(data)
        draft.commit(durable=durable)


def create_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file that is not there yet, for its owner alone; of several writers one is the first."""
    with Draft(path) as draft:
        draft.file.write(data)
        draft.file.flush()
        try:
            os.link(draft.temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # some FUSE and Windows file systems: a reader may see it empty for a moment
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
                file.write(data)


def write_plainly(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file without rename and sync, where no reader looks for it before another file is there.

    For thousands of files at a time: renaming takes as long again on a network file system.
    """
    with open(open_to_write(path, os.O_TRUNC), "wb") as file:
        file.write(data)


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
    """Return the drafts of a file (or of a pattern) whose writers were killed or are still writing."""
    return list(folder.glob(f".{name}.{_TOKEN}.tmp"))


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write a JSON file, indented for people, keys in the order given; one of a thousand need not be `durable`."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, text.encode("utf-8", "backslashreplace") + b"\n", durable=durable)


def open_plain(path: str | os.PathLike[str], buffering: int = -1, *, own: bool = False) -> BinaryIO:
    """Open a file of a run folder to read it, if it is a regular one: a pipe there would be waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise
        raise DamagedFolderError(f"{path} is damaged: it is not a regular file") from error
    status = os.fstat(fd)
    why = writers(status, owner_alone=True) if own else ""
    if stat.S_ISREG(status.st_mode) and not why:
        return open(fd, "rb", buffering)
    os.close(fd)
    if why:
        raise ConfigError(f"{path} {why}, and says what is to be run: it is not believed")
    raise DamagedFolderError(f"{path} is damaged: it is not a regular file")


def read_json(path: str | os.PathLike[str], like: type | None = None, *, own: bool = False) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    try:
        with open_plain(path, own=own) as file:
            value = json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise DamagedFolderError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise DamagedFolderError(f"{path} is damaged: it holds a {type(value).__name__}, not an object")
    for name, kind in _types_of(like).items() if like is not None else ():
        if name in value and not is_of(value[name], kind):
            what = kind if get_args(kind) else getattr(kind, "__name__", kind)
            raise DamagedFolderError(
                f"{path} is damaged: its {name!r} is {shown(value[name])}, not of type {what}"
            )
    return value


def lines_of(path: Path, before: int = 0, at: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number, the offset and the bytes of each line behind so many, a torn one at the end too."""
    with open_plain(path, 1 << 20) as file:
        file.seek(at)
        for number, line in enumerate(file, before + 1):
            yield number, at, line
            at += len(line)


def open_to_write(path: str | os.PathLike[str], flags: int = os.O_APPEND) -> int:
    """Return a descriptor of a regular file to write to, made if missing; a link in its place is not followed."""
    flags |= os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags, 0o600)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))


def read_record(path: Path, cls: type[R], *, own: bool = False) -> R:
    """Read a JSON file that holds the fields of a dataclass, and maybe more of another version."""
    values, names = read_json(path, cls, own=own), _types_of(cls)
    try:
        return cls(**{name: value for name, value in values.items() if name in names})
    except TypeError as error:
        raise DamagedFolderError(f"{path} is damaged: {error}") from error


def read_or_none(path: Path, like: type | None = None) -> dict[str, Any] | None:
    """Read a JSON file as `read_json` does; None where there is none, or not a whole one."""
    try:
        return read_json(path, like)
    except (OSError, DamagedFolderError):
        return None


_types_of: Callable[[Any], dict[str, Any]] = lru_cache(get_type_hints)


def is_of(value: Any, kind: Any) -> bool:
    """Return whether a value read from JSON is of a type; a dataclass is an object with its fields."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Any or origin is Sequence:  # items are written in a form of their own
        return True
    if origin is Literal:
        return value in inner
    if origin in (Union, UnionType):
        return any(is_of(value, each) for each in inner)
    if origin in (int, float):
        number = isinstance(value, int) or (origin is float and isinstance(value, float))
        return number and type(value) is not bool and abs(value) < _HUGE  # false for NaN
    if is_dataclass(origin) or is_typeddict(origin):
        try:
            origin(**value)
        except TypeError:  # it is no object, or a field is missing, or is one of a newer version
            return False
        types = _types_of(origin)
        return all(is_of(one, types.get(name, Any)) for name, one in value.items())
    if not isinstance(value, origin):
        return False
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(is_of(one, inner[-1]) for one in values) if inner else True


class Appender:
    """A file that grows by whole lines; after an error its end is where it was before.

    Each `append` is one write to the operating system, so a process may be killed at any moment and
    loses nothing it has appended. The disk itself is told (fsync) at most once a second, and at the end: without
    `durable` not at all. An unfinished last line of an earlier process is ended first.
    """

    def __init__(self, path: Path, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        with writing(path):
            self._fd = open_to_write(path)
            self.size = os.fstat(self._fd).st_size
        self._synced = time.monotonic()
        if self.size and os.pread(self._fd, 1, self.size - 1) != b"\n":
            self.append([b"\n"])

    def append(self, lines: Sequence[bytes]) -> None:
        """Append lines, each with its end, in one write."""
        data = b"".join(lines)
        with writing(self.path):
            self.check()
            view = memoryview(data)
            try:
                while view:  # the system may take fewer bytes at a time, near a full disk for one
                    view = view[os.write(self._fd, view) :]
            except OSError:
                with contextlib.suppress(OSError):  # else a torn line stays at the end: no reader takes it
                    os.ftruncate(self._fd, self.size)
                raise
            self.size += len(data)
            if self._durable and time.monotonic() - self._synced >= SYNC_SECONDS:
                self.sync()

    def check(self) -> None:
        """Raise `DamagedFolderError` if the file is gone from its folder: further lines would be lost."""
        if not os.fstat(self._fd).st_nlink or not self.path.exists():
            raise DamagedFolderError(
                f"{self.path} is gone: it was deleted or moved while the run was writing to it. Put it back, or start "
                "again to compute what it held, and leave the folder alone until the run has ended"
            )

    def sync(self) -> None:
        """Have the disk hold all appended lines."""
        if self._durable:
            with writing(self.path):
                os.fsync(self._fd)
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        if self._fd < 0:
            return
        try:
            self.sync()
        finally:
            os.close(self._fd)
            self._fd = -1


class NewLines:
    """Reads files that others append to: of each the whole lines since it was last read to its end."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[int, int]] = {}  # lines and bytes of each

    def of(self, file: Path) -> Iterator[tuple[int, bytes]]:
        """Yield the lines, each with its number; none of a file that is not there, or not for this user."""
        read = self._read.get(file, (0, 0))
        with contextlib.suppress(OSError):
            for number, at, line in lines_of(file, *read):
                if line[-1:] != b"\n":  # torn: its writer is at it, or was killed there
                    break
                yield number, line
                read = number, at + len(line)
        self._read[file] = read

    def records(self, file: Path) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects in the lines; a damaged line is passed over."""
        for _, line in self.of(file):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield record


def refuse_others(run: Path) -> None:
    """Raise if another user could have written to a run folder, before its content is acted on.

    In a folder that others cannot enter only a file's owner counts: with a umask of 002 all files are the group's.
    """
    left = [(os.path.realpath(run), True)]
    while left:
        path, reached = left.pop()
        try:
            status = os.lstat(path)
        except FileNotFoundError:  # a lease that is cleaned up
            continue
        why = writers(status) if reached else writers(status, owner_alone=True)
        if why or stat.S_ISLNK(status.st_mode):
            raise ConfigError(
                f"{path} {why or 'is a link'}, so somebody else may have written what this run is. Look at it "
                "(`espnet3-parallel status` and `report` only read), and chown or chmod it, or say that you trust its "
                "writers: --trust, DetachedRun.open(folder, trust=True)"
            )
        if not stat.S_ISDIR(status.st_mode):
            continue
        at_top, name = path == os.path.realpath(run), os.path.basename(path)
        mine = _OURS if at_top else _OF_A_SPLIT if _OURS.fullmatch(name) and name != "detached" else None
        inside = reached and bool(status.st_mode & 0o011)
        left += [(one.path, inside) for one in os.scandir(path) if mine is None or mine.fullmatch(one.name)]


def writers(status: os.stat_result, *, owner_alone: bool = False) -> str:
    """Name the other writers of a file or folder; empty if only this user and root can write to it."""
    if status.st_uid not in (os.geteuid(), 0):
        try:
            name = pwd.getpwuid(status.st_uid).pw_name
        except KeyError:
            name = str(status.st_uid)
        return f"belongs to the user {name}"
    if owner_alone or stat.S_ISLNK(status.st_mode):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "can be written to by everybody"
    if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid):
        return "can be written to by its group"
    return ""


@cache
def _is_private(gid: int) -> bool:
    try:
        group, name = grp.getgrgid(gid), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}
