"""Progress of a run on standard error: a bar, or a line now and then, and a last line; in a notebook a table."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from typing import Any

from espnet3.parallel.messages import printable
from espnet3.parallel.records import RunSummary, Tally
from espnet3.parallel.runner.figures import advice, last_line, status
from espnet3.parallel.runner.terminal import TerminalBar

_LOOK = 1.0  # seconds between looks at what the run is doing, also while no item ends
_DRAW = 0.1  # seconds between two drawings of the bar
_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
_OFTEN, _FIRST, _SELDOM = 10.0, 60.0, 60.0  # a line every 10 s in the first minute, then one a minute


class Progress:
    """A bar in items on a terminal and in a notebook; elsewhere a line every ten seconds, later one a minute.

    A thread looks once a second at what the run is doing: while workers start or models load, no item ends.

    Args:
        total: Items planned.
        name: Shown before the bar.
        enabled: False says nothing at all.

    Attributes:
        tally: The run's counts, to be kept by what runs it.
    """

    def __init__(self, total: int, name: str, enabled: bool) -> None:
        self.tally = Tally()
        self.total = total
        self.name = printable(name)
        self.enabled = enabled
        self.done = self.failed = self._kept = 0
        self._begin = time.perf_counter()
        self._drawn = 0.0
        self._bar: TerminalBar | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if not enabled:
            return
        if _is_terminal() or _in_notebook():
            self._bar = TerminalBar(
                _bar_class()(
                    total=total,
                    desc=self.name,
                    unit="item",
                    bar_format=_FORMAT,
                    file=sys.stderr,
                    dynamic_ncols=True,
                )
            )
            self._draw()
        self._thread = threading.Thread(target=self._look, name="progress", daemon=True)
        self._thread.start()

    def resume(self, kept: int, line: str) -> None:
        """Count items that were done in earlier sessions, and print the line that says so."""
        self.done = self._kept = kept
        if self.enabled and line:
            say(f"{self.name}: {line}")

    def add(self, n: int, failed: int = 0) -> None:
        """Count `n` more items, of which `failed` have failed."""
        self.done += n
        self.failed += failed
        if self._bar is not None and time.perf_counter() - self._drawn > _DRAW:
            self._draw()

    def close(self, summary: RunSummary | None = None) -> None:
        """End the bar and print the last line; a notebook shows the figures as a table in its place."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if self._bar is not None:
            self._draw(summary)
            self._bar.close()
        if self.enabled and summary is not None:
            lines = [f"{self.name}: {line}" for line in (last_line(summary), advice(summary)) if line]
            if summary.items and _in_notebook():
                _show(summary.table(self.name), lines)
            else:
                for line in lines:
                    _print(line)

    def _look(self) -> None:
        said, every = 0.0, _OFTEN
        while not self._closed.wait(_LOOK):
            now = time.perf_counter() - self._begin
            if self._bar is not None:
                self._draw()
            elif now - said >= every:
                said, every = now, _OFTEN if now < _FIRST else _SELDOM
                _print(f"{self.name}: {self.done:,} of {self.total:,} items, {self._status()}")

    def _status(self, summary: RunSummary | None = None) -> str:
        done, now = self.done - self._kept, time.perf_counter()
        if summary is not None and self.tally.ready is not None:  # what the last line says
            now = self.tally.ready + summary.work_seconds
            self.tally.warm = True
        return status(self.tally, done, self.total - self.done, self.failed, self._begin, now)

    def _draw(self, summary: RunSummary | None = None) -> None:
        assert self._bar is not None
        self._drawn = time.perf_counter()
        self._bar.draw(self.done, self._status(summary))


def say(line: str) -> None:
    """Print a line on standard error, above any progress bar."""
    if _in_notebook():
        _bar_class().write(printable(line), file=sys.stderr)
    else:
        _print(line)  # past a bar on a terminal, as anything that is printed


def _print(line: str) -> None:
    if sys.stderr is None:  # as under pythonw; print would take standard output
        return
    try:
        print(
            printable(line), file=sys.stderr, flush=hasattr(sys.stderr, "flush")
        )  # print needs no more than a write
    except (OSError, ValueError):  # it is closed, or its reader has gone: there is nobody to say it to
        pass


def _show(table: str, lines: list[str]) -> None:
    """Display a table with what is to be said below it, or the lines where there is no HTML."""
    from html import escape

    display: Any = sys.modules["IPython"].display.display
    below = "".join(f"<p>{escape(line)}</p>" for line in lines[1:])
    display({"text/html": table + below, "text/plain": "\n".join(lines)}, raw=True)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is no standard error, or it is closed
        return False


def _in_notebook() -> bool:
    """Whether this is the kernel of a notebook, which is no terminal and yet shows a bar."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def _bar_class() -> Any:
    if not _in_notebook():
        from tqdm import tqdm

        return tqdm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without ipywidgets gets the bar of a terminal
        from tqdm.auto import tqdm as of_a_notebook

    return of_a_notebook
