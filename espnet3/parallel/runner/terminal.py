"""A bar on a terminal, and what this process prints and logs meanwhile: lines above it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any

from espnet3.parallel.engine.lines import LineStream

_SHOWN: set[TerminalBar] = set()


def _forked() -> None:
    for bar in _SHOWN:
        bar.forked()


os.register_at_fork(after_in_child=_forked)


class TerminalBar:
    """A bar on the last line of the terminal, which what is printed scrolls past.

    Standard output and error are replaced while it is there, where they are terminals, and with them the streams of the
    logging handlers that write to them.

    Args:
        bar: A `tqdm` bar.
    """

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._lock = threading.RLock()  # re-entrant: a signal's handler may print while the bar is drawn
        self._in_line = False  # the cursor stands behind a prompt, which the bar must not overwrite
        self._streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
        self._lines: dict[str, LineStream] = {}
        for name, stream in self._streams.items():
            if stream is not None and stream.isatty():
                self._lines[name] = LineStream(stream, self._above, prompts=True)
                setattr(sys, name, self._lines[name])
        self._forked = False
        _SHOWN.add(self)
        self._handlers = [
            (handler, lines)
            for handler in _stream_handlers()
            for lines in self._lines.values()
            if handler.stream is lines.stream
        ]
        for handler, lines in self._handlers:
            handler.setStream(lines)

    def draw(self, done: int, status: str) -> None:
        """Draw the bar at so many items, with a text behind it."""
        with self._lock:
            self._bar.n = done
            self._bar.set_postfix_str(status, refresh=False)
            if not self._in_line:
                self._bar.refresh()

    def close(self) -> None:
        """Leave the bar as it is, and take the streams back."""
        for lines in self._lines.values():
            lines.pass_on_all()
        for handler, lines in self._handlers:
            if handler.stream is lines:
                handler.setStream(lines.stream)
        for name, lines in self._lines.items():
            if getattr(sys, name) is lines:
                setattr(sys, name, lines.stream)
        _SHOWN.discard(self)
        with self._lock:
            self._bar.close()

    def forked(self) -> None:
        """Draw no more in a child process: the bar, and its locks, are the parent's."""
        self._forked = True

    def _above(self, stream: Any, text: str) -> bool:
        if self._forked:
            return False
        with self._lock:
            if not self._in_line:
                self._bar.clear()
            stream.write(text)
            stream.flush()
            self._in_line = not text.endswith("\n")
            if not self._in_line:
                self._bar.refresh()
        return True


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    loggers = [logging.root, *list(logging.root.manager.loggerDict.values())]
    handlers = [each for logger in loggers for each in getattr(logger, "handlers", ())]
    return [each for each in dict.fromkeys(handlers) if isinstance(each, logging.StreamHandler)]
