"""Progress of a run on standard error: a bar or a line a minute, and a last line."""

from __future__ import annotations

import sys
import time
from typing import Any

from espnet3.parallel.records import RunSummary

_QUIET_EVERY = 60.0  # seconds between lines where standard error is no terminal


class Progress:
    """A bar in items on a terminal; elsewhere one line a minute.

    Args:
        total: Items planned.
        name: Shown before the bar.
        enabled: False says nothing at all.
    """

    def __init__(self, total: int, name: str, enabled: bool) -> None:
        self.total = total
        self.name = name
        self.enabled = enabled
        self.done = self._kept = 0
        self._begin = self._last = time.monotonic()
        self._bar: Any = None
        if enabled and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=name, unit="item", smoothing=0.05, dynamic_ncols=True)

    def resume(self, kept: int, line: str) -> None:
        """Count items that were done in earlier sessions, and print the line that says so.

        Args:
            kept: How many.
            line: What to print; empty for a new run.
        """
        self.done = self._kept = kept
        if self._bar is not None:
            self._bar.initial = self._bar.n = self._bar.last_print_n = kept
        if self.enabled and line:
            _say(f"{self.name}: {line}", self._bar)

    def add(self, n: int) -> None:
        """Count `n` more items."""
        self.done += n
        if self._bar is not None:
            self._bar.update(n)
        elif self.enabled and time.monotonic() - self._last > _QUIET_EVERY:
            self._last = time.monotonic()
            rate = (self.done - self._kept) / (self._last - self._begin)
            left = (self.total - self.done) / rate if rate else float("inf")
            print(
                f"{self.name}: {self.done:,} of {self.total:,} items, {rate:.1f} items/s, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def close(self, summary: RunSummary | None = None) -> None:
        """Remove the bar and print the last line."""
        if self._bar is not None:
            self._bar.close()
        if self.enabled and summary is not None:
            print(f"{self.name}: {last_line(summary)}", file=sys.stderr, flush=True)


def say(line: str) -> None:
    """Print a line on standard error, above any progress bar."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(line, file=sys.stderr)
    else:
        print(line, file=sys.stderr, flush=True)


def _say(line: str, bar: Any) -> None:
    if bar is None:
        print(line, file=sys.stderr, flush=True)
    else:
        bar.write(line, file=sys.stderr)


def last_line(summary: RunSummary) -> str:
    """Return the line a run ends with: items, failures, seconds, items/s, efficiency."""
    s = summary
    if s.kept and not s.items:
        again = (
            f", {s.kept_failed:,} of them failed: retry_failed=True runs those again" if s.kept_failed else ""
        )
        return f"all {s.kept:,} items were done before{again}"
    rate = s.items / max(s.seconds, 1e-9)
    failures = f"{s.failed:,} failed" if s.failed else "none failed"
    extra = f", {s.retries:,} retries" if s.retries else ""
    extra += f", {s.deaths} worker{'s' if s.deaths > 1 else ''} lost and replaced" if s.deaths else ""
    workers = f"{s.slots} workers" if s.slots != 1 else "1 worker"
    kept = f" ({s.kept:,} more were done before)" if s.kept else ""
    return (
        f"{s.items:,} items{kept}, {failures}{extra}, {s.seconds:.2f} s, {rate:,.1f} items/s, "
        f"efficiency {min(s.efficiency, 1.0):.2f} on {workers}"
    )
