"""Counts a run's outcomes, and shows them on standard error: a bar, or a line now and then, and a last line.

The exception of a run that stops early gets a last line: which results are kept, and how the same call goes on.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

from espnet3.parallel.checks import loaded
from espnet3.parallel.engine.lines import LineStream
from espnet3.parallel.engine.loop import Block
from espnet3.parallel.errors import ItemError, NoWorkersError, TooManyFailuresError, add_note
from espnet3.parallel.ledger.errors import DamagedFolderError
from espnet3.parallel.messages import counted, duration, printable, shortened, warn_caller
from espnet3.parallel.records import SHORT_WORK, ItemFailure, RunSummary, Tally

_LOOK = 1.0  # seconds between two looks at the run, also while no item ends
_DRAW = 0.1  # seconds between two drawings of the bar
_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
_OFTEN, _FIRST, _SELDOM = 10.0, 60.0, 60.0  # a line every 10 s in the first minute, then one a minute
_COLD = 60.0  # seconds of work after which the rate does not wait for workers without a finished item
_SETTLED = 1.0  # seconds after the first worker in which the others of one machine come
_SLOWER = 1.1  # times as long as one worker: less is noise
_WORTH_TELLING = 1.0  # seconds: less is not worth a change of the configuration
_PART = 0.1  # share of the time lost above which its cause is named
_ENOUGH = 50  # results that are looked at
_NO_RESULT = rb'"result":null,"crc":\d+}\n\Z'  # the end of an item's line without a result
_STOPS = (KeyboardInterrupt, ItemError, TooManyFailuresError, NoWorkersError)


class Report:
    """Counts the outcomes of one session of a run, shows them, and stops a hopeless run.

    A thread looks at the run once a second: while workers start or models load, no item ends.
    """

    def __init__(self, run: Any) -> None:  # `run.Run`
        self.tally = Tally()  # of the workers, updated by the launcher
        self.retries = 0
        self._run = run
        self._name = printable(type(run.runner).__name__)
        self._total = len(run.items)
        self._show: bool = run.runner.progress
        self._nones = NoneWatch(self._name, 0 if run.writes else self._total)
        self._done = self._failed = self._kept = self._kept_failed = 0
        self._kinds: dict[str, tuple[int, ItemFailure]] = {}
        self._begin = time.perf_counter()
        self._drawn = 0.0
        self._bar: _Bar | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if not self._show:
            return
        if _is_terminal(sys.stderr) or _in_notebook():
            self._bar = _Bar(self._name, self._total)
            self._draw(self._begin)
        self._thread = threading.Thread(target=self._look, name="progress", daemon=True)
        self._thread.start()

    def resume(self, kept: int, failed: int, line: str) -> None:
        """Count the outcomes of earlier sessions in the folder, and print the line about them."""
        self._done, self._kept, self._kept_failed = kept, kept, failed
        self._begin = time.perf_counter()
        if self._show and line:
            say(f"{self._name}: {line}")
        self._check()

    def add(self, block: Block) -> None:
        """Count outcomes."""
        self._done += len(block.values)
        self._failed += len(block.failed)
        self.retries += block.retries
        self.tally.halved += block.halved
        for at in block.failed:
            failure: ItemFailure = block.values[at]
            count, first = self._kinds.get(failure.error_type, (0, failure))
            self._kinds[failure.error_type] = count + 1, first
        if self._bar is not None and (now := time.perf_counter()) - self._drawn > _DRAW:
            self._draw(now)
        self._nones.see(block.values)
        self._check()

    def summary(self) -> RunSummary:
        """Return the figures of the session up to now."""
        t, now = self.tally, time.perf_counter()
        return RunSummary(
            items=self._done - self._kept,
            failed=self._failed,
            retries=self.retries,
            seconds=now - self._begin,
            kept=self._kept,
            kept_failed=self._kept_failed,
            start_seconds=(t.ready if t.ready is not None else now) - self._begin,
            launch_seconds=(t.joined if t.joined is not None else now) - self._begin,
            **{name: getattr(t, name) for name in RunSummary.__slots__ if hasattr(t, name)},
        )

    def end(self, summary: RunSummary) -> None:
        """Note the figures at the runner, end the bar and print the last line: a table in a notebook."""
        self._run.runner.summary = summary
        self.tally.warm = True
        self._close(self._begin + summary.seconds)  # the bar's rate is that of the last line
        if not self._show:
            return
        lines = [f"{self._name}: {line}" for line in (last_line(summary), advice(summary)) if line]
        if summary.items and _in_notebook():
            _show(summary.table(self._name), lines)
        else:
            for line in lines:
                _print(line)

    def stopped(self, error: BaseException) -> None:
        """End the bar, and note at the run's exception which results are kept, and how the same call goes on."""
        self._close()
        if isinstance(error, DamagedFolderError) or not (self._done or isinstance(error, _STOPS)):
            return  # the folder may be gone, and its results unknown
        line = self._last_words(error)
        add_note(error, line)
        if sys.version_info < (3, 11):  # notes are not printed
            say(line)

    def _check(self) -> None:
        limit, failed = self._run.runner.max_failures, self._failed + self._kept_failed
        if limit is None or failed <= (limit * self._total if 0 < limit < 1 else limit):
            return
        lines = shortened(
            [
                f"{count:,} x {first.error_type}, the first in {first.name}: {' '.join(first.message.split()):.200}"
                for count, first in sorted(self._kinds.values(), key=lambda kind: -kind[0])
            ]
        )
        if self._kept_failed:
            lines.append(f"{self._kept_failed:,} in earlier sessions; retry_failed=True runs them again")
        message = f"{failed} of {self._total} items failed, and max_failures is {limit:g}"
        raise TooManyFailuresError("\n  ".join([message, *lines]), self._kinds)

    def _last_words(self, error: BaseException) -> str:
        done, total, folder = self._done, self._total, self._run.folder
        if folder is None:
            return (
                f"stopped with {done:,} of {total:,} items done, and nothing is kept: the same call starts from the "
                "beginning. With an output_dir it would go on where it stopped"
            )
        where = f", which are kept in {folder}" if done else f" in {folder}"
        kept = f"stopped with {done:,} of {total:,} items done{where}"
        if isinstance(error, TooManyFailuresError):
            return (
                f"{kept}: the same call stops again; a higher max_failures lets it go on with the {total - done:,} "
                "left, and retry_failed=True runs the failed items again"
            )
        again = " (shards that were not finished start over)" if self._run.writes else ""
        failed = ", the failed item among them" if isinstance(error, ItemError) else ""
        rest = f"the {total - done:,} left{failed}{again}" if done < total else "the merge"
        return f"{kept}: the same call goes on with {rest}"

    def _close(self, at: float | None = None) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if self._bar is not None:
            self._draw(at or time.perf_counter())
            self._bar.close()
            self._bar = None

    def _look(self) -> None:
        said, every = self._begin, _OFTEN
        while not self._closed.wait(_LOOK):
            now = time.perf_counter()
            if self._bar is not None:
                self._draw(now)
            elif now - said >= every:
                said, every = now, _OFTEN if now - self._begin < _FIRST else _SELDOM
                _print(f"{self._name}: {self._done:,} of {self._total:,} items, {self._status(now)}")

    def _status(self, now: float) -> str:
        t, parts = self.tally, [self._phase(now)]
        if self._failed:
            parts.append(f"{self._failed:,} failed")
        if t.ready is not None and now - t.ready >= _SETTLED and t.workers < t.asked:
            parts.append(f"{t.workers:,} of {counted(t.asked, 'worker')}")  # jobs may wait for hours
        return ", ".join(parts)

    def _phase(self, now: float) -> str:
        t, done = self.tally, self._done - self._kept
        if t.joined is None:
            what, since = f"starting {counted(t.asked, 'worker')}" if t.asked else "starting", self._begin
        elif t.ready is None:
            what, since = "loading the env", t.joined
        elif not done or not (t.warm or now - t.ready > _COLD):
            what, since = "working", t.ready
        else:
            seconds, left = now - t.ready, self._total - self._done
            to_go = f", {duration(left * seconds / done)} left" if left else ""
            return f"{done / max(seconds, 1e-9):,.1f} items/s{to_go}"
        return f"{what}, {duration(now - since)}" if now - since >= 1 else what

    def _draw(self, now: float) -> None:
        assert self._bar is not None
        self._drawn = now
        self._bar.draw(self._done, self._status(now))


class NoneWatch:
    """Warns of a forgotten `return`, where the first results of a run are all None."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._left = min(total, _ENOUGH) if total > 1 else 0  # results to look at; a single None may be meant

    def see(self, values: Iterable[Any]) -> None:
        """Look at results, as far as the first ones are not seen yet."""
        for value in islice((one for one in values if not isinstance(one, ItemFailure)), self._left):
            if value is not None and not (type(value) is bytes and re.search(_NO_RESULT, value)):
                self._left = 0
                return
            self._left -= 1
            if not self._left:
                which = f"the first {_ENOUGH:,} of" if self._total > _ENOUGH else "all"
                warn_caller(
                    f"{self._name} returned None for {which} {self._total:,} items: is a `return` missing?"
                )


def last_line(s: RunSummary) -> str:
    """Return a run's last line: items, failures, seconds of start-up and of work, items/s, workers."""
    if s.kept and not s.items:
        failed = f", {s.kept_failed:,} of them failed: retry_failed=True runs those again"
        return f"all {s.kept:,} items were done before{failed if s.kept_failed else ''}"
    failures = f"{s.failed:,} failed" if s.failed else "none failed"
    extra = f", {s.retries:,} {'retries' if s.retries > 1 else 'retry'}" if s.retries else ""
    extra += f", {counted(s.deaths, 'worker')} lost and replaced" if s.deaths else ""
    extra += f", batches halved {counted(s.halved, 'time')}: they did not fit into memory" if s.halved else ""
    kept = f" ({s.kept:,} more were done before)" if s.kept else ""
    threads = f" of {s.slots // s.workers} threads" if s.slots > s.workers else ""
    efficiency = f", efficiency {s.efficiency:.2f}" if s.work_seconds >= SHORT_WORK else ""
    return (
        f"{counted(s.items, 'item')}{kept}, {failures}{extra}, start {_seconds(s.start_seconds)}, work "
        f"{_seconds(s.work_seconds)}, {s.rate:,.1f} items/s on {counted(s.workers, 'worker')}{threads}"
        f"{efficiency}"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:,.1f} s"


def advice(s: RunSummary) -> str:
    """Return why several workers were no faster than one; "" if they were faster.

    One worker builds the env once and runs the items in this process: it starts no workers, imports nothing there, and
    moves neither items nor results.
    """
    alone = s.env_seconds + s.busy_seconds
    # the time that a lost worker spent on its last item is unknown
    if s.slots < 2 or not s.items or s.deaths or s.seconds <= max(_SLOWER * alone, alone + _WORTH_TELLING):
        return ""
    moving = s.work_seconds - s.busy_seconds / s.slots
    lost = {
        "starting the workers": s.launch_seconds,
        "imports on the workers": s.import_seconds,
        "the env": s.env_seconds,
        "moving items and results, and waiting for the last of them": moving,
    }
    told = sorted(((took, what) for what, took in lost.items() if took > _PART * s.seconds), reverse=True)
    causes = ", ".join(f"{what} took {_seconds(took)}" for took, what in told)
    return f"one worker would have been faster, about {_seconds(alone)} in place of {_seconds(s.seconds)}: {causes}"


class _Bar:
    def __init__(self, name: str, total: int) -> None:
        self._bar = _bar_class()(
            total=total, desc=name, unit="item", bar_format=_FORMAT, file=sys.stderr, dynamic_ncols=True
        )
        self._lock = threading.RLock()  # re-entrant: a signal's handler may print while the bar is drawn
        self._pid = os.getpid()
        self._lines: dict[str, LineStream] = {}
        for output in ("stdout", "stderr"):
            if _is_terminal(stream := getattr(sys, output)):
                self._lines[output] = LineStream(stream, self._above)
                setattr(sys, output, self._lines[output])
                _redirect_logs(stream, self._lines[output])

    def draw(self, done: int, text: str) -> None:
        with self._lock:
            self._bar.n = done
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.refresh()

    def close(self) -> None:
        for name, lines in self._lines.items():
            lines.pass_on_all()
            _redirect_logs(lines, lines.stream)
            if getattr(sys, name) is lines:
                setattr(sys, name, lines.stream)
        with self._lock:
            self._bar.close()

    def _above(self, stream: Any, text: str) -> bool:
        if os.getpid() != self._pid:  # a forked child: the bar, and its locks, are the parent's
            return False
        with self._lock:
            self._bar.clear()
            stream.write(text)
            stream.flush()
            self._bar.refresh()
        return True


def _redirect_logs(old: Any, new: Any) -> None:
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and handler.stream is old:
                handler.setStream(new)


def say(line: str) -> None:
    """Print a line on standard error, above any progress bar."""
    if _in_notebook():
        _bar_class().write(printable(line), file=sys.stderr)
    else:
        _print(line)  # past a bar on a terminal, as anything that is printed


def _print(line: str) -> None:
    with suppress(AttributeError, OSError, ValueError):  # there is none, it is closed, or its reader has gone
        sys.stderr.write(f"{printable(line)}\n")
        sys.stderr.flush()


def _show(table: str, lines: list[str]) -> None:
    from html import escape

    below = "".join(f"<p>{escape(line)}</p>" for line in lines[1:])
    loaded("IPython").display.display({"text/html": table + below, "text/plain": "\n".join(lines)}, raw=True)


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _in_notebook() -> bool:
    ipython = loaded("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def _bar_class() -> Any:
    with warnings.catch_warnings():
        # it calls itself experimental; a notebook without ipywidgets gets the bar of a terminal
        warnings.simplefilter("ignore")
        from tqdm.autonotebook import tqdm

    return tqdm
