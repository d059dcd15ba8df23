"""Relay log records and printed lines of items from their workers to the driver.

    logger.info(...) in an item ──> Outlet of its slot ──("log", ...)──> the driver's loggers and their handlers
    print(...) in an item ──> the worker's own output; where a bar is shown there, or it is not the driver's output,
                              as above to the driver

A worker's loggers get the levels that its driver's have been given, so that a record that is not wanted is never
made. Records with a handler on the worker stay there: a provider may configure logging. At most `MOST` records and
lines a second travel per worker process; of the rest, the number does.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from espnet3.parallel.engine.lines import LineStream
from espnet3.parallel.engine.loop import items_in_hand
from espnet3.parallel.messages import brief
from espnet3.parallel.pilots.channel import Channel

MOST = 100  # records a second from one worker process, and so many at once
_LONGEST = 100_000  # characters of a record's text that travel
_SHORT = 80  # characters of an item in a message
_FEW = 8  # records that are sent at once before an item has ended: they fit into a socket's buffer
_PLAIN = (str, int, float, bool, type(None))
_STREAMS = ("stdout", "stderr")
_PRINTED = "printed"  # the key of a line in place of a record: its stream
# records of Dask and of this package go where they always went
_OURS = ("distributed.", "dask.", "tornado.", "bokeh.", "espnet3.parallel.")
_SENT = deque[float](maxlen=MOST)  # when the last records and lines were taken
_OPEN: dict[int, Outlet] = {}  # by the thread that runs items
_call_handlers, _basic_config = logging.Logger.callHandlers, logging.basicConfig


@dataclass(frozen=True)  # with slots it would be pickled in Python, for each run
class Hearing:
    """The driver's wishes about records and lines of its items."""

    levels: dict[str, int]  # of its loggers by name, "" the root
    disabled: int  # the argument of `logging.disable`
    host: str
    # the files of its output and error; None: replaced by its program, or a terminal with a bar
    files: dict[str, tuple[int, int] | None]


def hearing_here() -> Hearing:
    """Return the wishes of this process, a driver."""
    root = logging.root
    loggers = [each for each in list(root.manager.loggerDict.values()) if isinstance(each, logging.Logger)]
    levels = {each.name: each.level for each in loggers if each.level and not _is_ours(each.name)}
    bar = isinstance(sys.stderr, LineStream)
    files = {name: _file_of(name, bar) for name in _STREAMS}
    return Hearing({"": root.level, **levels}, root.manager.disable, socket.gethostname(), files)


def _is_ours(name: str) -> bool:
    return f"{name}.".startswith(_OURS)


def _file_of(name: str, bar: bool = False) -> tuple[int, int] | None:
    stream = getattr(sys, name)
    if isinstance(stream, LineStream):
        stream = stream.stream
    if stream is None or stream is not getattr(sys, f"__{name}__"):
        return None
    try:
        status = os.fstat(stream.fileno())
        return None if bar and stream.isatty() else (status.st_dev, status.st_ino)
    except (OSError, ValueError):  # it is closed
        return None


def _is_too_much() -> bool:
    now = time.monotonic()
    if len(_SENT) == MOST and now - _SENT[0] < 1:
        return True
    _SENT.append(now)
    return False


class Outlet:
    """Sends a slot's records while it is inside user code; what is left then goes before its answer.

    `lock` is held while the slot's channel is in use.
    """

    def __init__(self, worker: str, channel: Channel, lock: threading.Lock) -> None:
        self.worker = worker
        self._channel = channel
        self._lock = lock
        self._run: int | None = None
        self._relayed: dict[str, bool] = {}  # streams that the driver prints, and whether it alone does
        self._records: deque[dict[str, Any]] = deque()
        self._left_out = 0

    def hear(self, hearing: Hearing) -> None:
        """Set this process's loggers and streams up for a driver."""
        for name, level in hearing.levels.items():
            logger = logging.getLogger(name)
            if logger.level != level and not logger.handlers:
                logger.setLevel(level)
        if logging.root.manager.disable != hearing.disabled:
            logging.disable(hearing.disabled)
        here = hearing.host == socket.gethostname()
        files = hearing.files
        same = {n for n in _STREAMS if here and files[n] is not None and files[n] == _file_of(n)}
        self._relayed = {n: here and files[n] is None for n in _STREAMS if n not in same}
        for name in self._relayed:
            stream = getattr(sys, name)
            if stream is not None and not isinstance(stream, LineStream):
                setattr(sys, name, LineStream(stream, partial(_printed, name)))

    @contextmanager
    def open(self, run_id: int) -> Iterator[None]:
        """Take the records of this thread, and those of threads that no slot has."""
        # not a handler of the root logger: with one there, `logging.basicConfig` in a provider would do nothing
        logging.Logger.callHandlers = _relay_or_handle  # type: ignore[method-assign,assignment]
        logging.basicConfig = _unless_bare
        me = threading.get_ident()
        _OPEN[me], self._run = self, run_id
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, LineStream):
                    stream.pass_on()
            with self._lock:  # from here on the slot's own thread reads and writes the channel
                self._run = None
            _OPEN.pop(me, None)

    def put(self, record: logging.LogRecord) -> None:
        """Take a record, or count it where there are too many."""
        if _is_too_much():
            self._left_out += 1
            return
        items = items_in_hand() if _OPEN.get(threading.get_ident()) is self else ()
        self._records.append(_fields_of(record, self.worker, items))
        self._send_now()

    def put_lines(self, name: str, text: str) -> bool:
        """Take lines that were printed; False if they are to be written as they are, too."""
        # as a terminal would show them: of what is written over, the last
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.removesuffix("\n").split("\n")]
        for line in lines if name in self._relayed else ():
            if _is_too_much():
                self._left_out += 1
            else:
                self._records.append({_PRINTED: name, "text": line[:_LONGEST]})
        self._send_now()
        return self._relayed.get(name, False)

    def _send_now(self) -> None:
        # while the channel is in use, with the next message: a finaliser may log in the midst of that
        if not self._lock.acquire(blocking=False):
            return
        try:
            # an item does not wait for a driver that does not read, as its consumer is slow
            if self._run is not None and self._records and self._channel.writable():
                self.flush(self._run, _FEW)
        except OSError:  # the driver has gone, and the slot notices when it answers
            pass
        finally:
            self._lock.release()

    def flush(self, run_id: int, most: int = 1 << 30) -> None:
        """Send the records so far; with the lock held."""
        if self._records or self._left_out:
            records = [self._records.popleft() for _ in range(min(len(self._records), most))]
            left_out, self._left_out = self._left_out, 0
            self._channel.send(("log", run_id, (self.worker, records, left_out)))


def _fields_of(record: logging.LogRecord, worker: str, items: Sequence[Any]) -> dict[str, Any]:
    fields = {name: _plain(value) for name, value in record.__dict__.items()}
    text = record.getMessage()
    if record.exc_info and not record.exc_text:
        fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
    where = f", item {brief(items[0], _SHORT)}" if items else ""
    if len(items) > 1:
        where = f", items {brief(items[0], _SHORT)} to {brief(items[-1], _SHORT)}"
    text = f"[worker {worker}{where}] {text}"
    item = _plain(items[0]) if len(items) == 1 else [_plain(item) for item in items] or None
    return {**fields, "msg": text[:_LONGEST], "args": None, "exc_info": None, "worker": worker, "item": item}


def _plain(value: Any) -> Any:
    return value if type(value) in _PLAIN else repr(value)[:_LONGEST]


def _current() -> Outlet | None:
    return _OPEN.get(threading.get_ident()) or next(iter(list(_OPEN.values())), None)


def _printed(name: str, stream: Any, text: str) -> bool:
    outlet = _current()
    return outlet is not None and outlet.put_lines(name, text)


def _relay_or_handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    outlet = _current()
    if outlet is None or _has_handler(logger) or _is_ours(record.name):
        _call_handlers(logger, record)
        return
    try:
        outlet.put(record)
    except Exception:  # arguments that do not fit the text, an item whose repr raises
        logging.Handler().handleError(record)


def _unless_bare(**options: Any) -> None:
    # `logging.warning(...)` gives a root logger without a handler one, which would keep all records here
    if options or _current() is None:
        _basic_config(**options)


def _has_handler(logger: logging.Logger | None) -> bool:
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


# a child that an item forks has the slot's channel, but not the threads that use it
os.register_at_fork(after_in_child=_OPEN.clear)


class Inlet:
    """Gives the records of workers to this process's loggers, prints their lines, and says how many more there were."""

    def __init__(self) -> None:
        self._left_out: dict[str, int] = {}
        self._said = time.monotonic()

    def take(self, worker: str, records: list[dict[str, Any]], left_out: int) -> None:
        """Handle a worker's records, as their attributes, and lines; `left_out`: how many more there were."""
        for fields in records:
            if _PRINTED in fields:
                stream = getattr(sys, fields[_PRINTED]) or sys.__stderr__
                print(f"[worker {worker}] {fields['text']}", file=stream)
                continue
            logger = logging.getLogger(fields["name"])
            if logger.isEnabledFor(fields["levelno"]):
                logger.handle(logging.makeLogRecord(fields))
        if left_out:
            self._left_out[worker] = self._left_out.get(worker, 0) + left_out
        if self._left_out and time.monotonic() - self._said >= 1:
            self.say_left_out()

    def say_left_out(self) -> None:
        """Say how many records were left out since this was said last."""
        left_out, self._left_out, self._said = self._left_out, {}, time.monotonic()
        for worker, n in left_out.items():
            text = f"[worker {worker}] ... {n:,} more records left out: more than {MOST} in a second"
            logging.getLogger("espnet3.parallel").warning(text, extra={"worker": worker, "item": None})
