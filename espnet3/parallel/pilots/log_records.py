"""Records of Python's logging, from a worker's items to the handlers of the driver.

    logger.info(...) in an item ──> Outlet of its slot ──("log", ...)──> the driver's loggers and their handlers

A worker's loggers get the levels that the driver's have, so that what nobody wants costs what it costs anywhere. What a
handler of the worker's own takes stays with that: a provider may configure logging there. At most `MOST` records
a second travel per worker process; of the rest, the number does.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from espnet3.parallel.engine.loop import items_in_hand

MOST = 100  # records a second from one worker process, and so many at once
_PAUSE = 0.05  # seconds between two messages of one slot
_LONGEST = 100_000  # characters of a record's text that travel
_SHORT = 80  # characters of an item in a message
_PLAIN = (str, int, float, bool, type(None))
# what Dask and this package say of themselves goes where it always went
_OURS = ("distributed", "dask", "tornado", "bokeh", "espnet3.parallel")

Levels = tuple[
    dict[str, int], int
]  # of loggers by name, "" the root; and what `logging.disable` was called with
Message = tuple[str, list[dict[str, Any]], int]  # the worker, records' attributes, and how many were left out


def _is_ours(name: str) -> bool:
    return name.startswith(_OURS) and any(name == each or name.startswith(f"{each}.") for each in _OURS)


# --- the worker's side ----------------------------------------------------------------------------


class _Allowance:
    """So many records a second: what is not used is saved up for one second."""

    def __init__(self) -> None:
        self._left = float(MOST)
        self._at = time.monotonic()
        self._lock = threading.RLock()  # re-entrant: a finaliser may log in the midst of it

    def take(self) -> bool:
        with self._lock:
            now = time.monotonic()
            self._left, self._at = min(MOST, self._left + MOST * (now - self._at)), now
            if self._left < 1:
                return False
            self._left -= 1
            return True


class _Levels:
    """The levels that this process's loggers have been given, and those that they had."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._lock = threading.Lock()

    def take_over(self, levels: Levels) -> None:
        """Give this process's loggers the driver's levels; those with handlers of their own keep theirs."""
        by_name, disabled = levels
        with self._lock:
            for name in self._before.keys() - by_name.keys():
                logging.getLogger(name).setLevel(self._before.pop(name))
            for name, level in by_name.items():
                logger = logging.getLogger(name)
                if logger.level != level and not logger.handlers:
                    self._before.setdefault(name, logger.level)
                    logger.setLevel(level)
            if logging.root.manager.disable != disabled:
                logging.disable(disabled)


_ALLOWANCE = _Allowance()
_LEVELS = _Levels()
_OPEN: dict[int, Outlet] = {}  # by the thread that runs items
take_over_levels = _LEVELS.take_over


class Outlet:
    """Sends a slot's records while it is inside user code; what is left then goes before its answer.

    Args:
        worker: The worker's name.
        send: Sends a message of a run to the driver; None where nothing can be sent but an answer.
        lock: Held by whoever uses the slot's channel.
    """

    def __init__(
        self,
        worker: str,
        send: Callable[[int, Message], None] | None = None,
        lock: threading.Lock | None = None,
    ) -> None:
        self.worker = worker
        self._send = send
        self._lock = lock or threading.Lock()
        self._run: int | None = None
        self._records: deque[dict[str, Any]] = deque()
        self._left_out = 0
        self._wake = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def open(self, run_id: int) -> Iterator[None]:
        """Take the records of this thread, and those of threads that no slot has."""
        _install()
        me = threading.get_ident()
        _OPEN[me], self._run = self, run_id
        try:
            yield
        finally:
            with self._lock:  # from here on the slot's own thread reads and writes the channel
                self._run = None
            _OPEN.pop(me, None)

    def end(self) -> None:
        """Send no more: the channel is closed."""
        self._ended = True
        self._wake.set()

    def put(self, record: logging.LogRecord) -> None:
        """Take a record, or count it where there are too many."""
        if not _ALLOWANCE.take():
            self._left_out += 1
            return
        items = items_in_hand() if _OPEN.get(threading.get_ident()) is self else ()
        self._records.append(_fields_of(record, self.worker, items))
        if self._send is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._pump, name="log-records", daemon=True)
            self._thread.start()
        self._wake.set()

    def take(self) -> Message | None:
        """Return what has gathered and was not sent, or None."""
        if not self._records and not self._left_out:
            return None
        records = [self._records.popleft() for _ in range(len(self._records))]
        left_out, self._left_out = self._left_out, 0
        return self.worker, records, left_out

    def _pump(self) -> None:
        assert self._send is not None
        while not self._ended:
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                message = self.take() if self._run is not None else None
                if message is not None and self._run is not None:
                    try:
                        self._send(self._run, message)
                    except OSError:  # the driver has gone, and the slot notices when it answers
                        return
            time.sleep(_PAUSE)


def _fields_of(record: logging.LogRecord, worker: str, items: Sequence[Any]) -> dict[str, Any]:
    """Return a record's attributes as plain values, with its text in full and where it comes from."""
    fields = {name: _plain(value) for name, value in record.__dict__.items()}
    text = record.getMessage()
    if record.exc_info and not record.exc_text:
        fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
    where = ""
    if items:
        where = f", item {_short(items[0])}"
    if len(items) > 1:
        where = f", items {_short(items[0])} to {_short(items[-1])}"
    text = f"[worker {worker}{where}] {text}"
    item = _plain(items[0]) if len(items) == 1 else [_plain(item) for item in items] or None
    return {**fields, "msg": text[:_LONGEST], "args": None, "exc_info": None, "worker": worker, "item": item}


def _plain(value: Any) -> Any:
    return value if type(value) in _PLAIN else repr(value)[:_LONGEST]


def _short(item: Any) -> str:
    text = repr(item)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."


_call_handlers = logging.Logger.callHandlers


def _relay_or_handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    """What `Logger.callHandlers` is on a worker."""
    outlet = _OPEN.get(threading.get_ident()) or next(iter(list(_OPEN.values())), None)
    if outlet is None or _is_ours(record.name) or _has_handler(logger):
        _call_handlers(logger, record)
        return
    try:
        outlet.put(record)
    except (
        Exception
    ):  # arguments that do not fit the text, an item whose repr raises: said as logging says it
        logging.Handler().handleError(record)


def _has_handler(logger: logging.Logger | None) -> bool:
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _install() -> None:
    # not a handler of the root logger: with one there, `logging.basicConfig` in a provider would do nothing
    logging.Logger.callHandlers = _relay_or_handle  # type: ignore[method-assign,assignment]


# a child that an item forks has the slot's channel, but not the threads that use it
os.register_at_fork(after_in_child=_OPEN.clear)


# --- the driver's side ----------------------------------------------------------------------------


def levels_here() -> Levels:
    """Return the levels of this process's loggers, for its workers."""
    root = logging.root
    loggers = [each for each in list(root.manager.loggerDict.values()) if isinstance(each, logging.Logger)]
    by_name = {each.name: each.level for each in loggers if each.level and not _is_ours(each.name)}
    return {"": root.level, **by_name}, root.manager.disable


class Inlet:
    """Gives the records of workers to this process's loggers, and says how many more there were."""

    def __init__(self) -> None:
        self._left_out: dict[str, int] = {}
        self._said = time.monotonic()

    def take(self, message: Message) -> None:
        """Handle a message of a worker."""
        worker, records, left_out = message
        for fields in records:
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
            logging.getLogger("espnet3.parallel").warning(
                "[worker %s] ... %s more records left out: more than %d in a second",
                worker,
                f"{n:,}",
                MOST,
                extra={"worker": worker, "item": None},
            )
