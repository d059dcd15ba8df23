"""How a run is, as text for people: the status, and a live line while it goes on."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from espnet3.parallel.detached.looking.status import FolderStatus
from espnet3.parallel.detached.states import JobState, RunStatus
from espnet3.parallel.messages import printable
from espnet3.parallel.views.live import LiveFacts

_WIDTH = 80
_REASONS = 3  # for waiting or unstarted jobs: the most frequent ones are shown
_SHOWN = 10  # shards that need attention and are listed one by one
_FINE = (JobState.DONE, JobState.PENDING, JobState.RUNNING, JobState.NEW, JobState.NOT_STARTED)
_SPAN = 60.0  # seconds over which the rate is taken
_EVERY = ((60.0, 10.0), (float("inf"), 60.0))  # without a terminal: until then, a line every so many seconds


def print_status(found: RunStatus | FolderStatus, as_json: bool = False) -> None:
    """Print a status, wrapped at 80 columns, or as JSON."""
    say(json.dumps(found.to_json(), indent=2) if as_json else status_text(found))


def say(text: object, file: TextIO | None = None, *, end: str = "\n", flush: bool = False) -> None:
    """Print a text that may hold anything, such as an item's: a terminal shows it, and does not obey it."""
    print(printable(str(text)), file=file, end=end, flush=flush)


def status_text(found: RunStatus | FolderStatus) -> str:
    """Return a status as text of 80 columns."""
    lines = _of_jobs(found) if isinstance(found, RunStatus) else _of_folder(found)
    return "\n".join([*lines, *(wrapped(f"note: {note}") for note in found.notes)])


def _of_folder(found: FolderStatus) -> list[str]:
    left = found.items - found.ok - found.failed
    if found.alive:
        end = f"a driver is at work: {found.driver}"
    elif found.merged:
        end = "complete, and merged"
    elif left:
        end = f"no driver is at work: the same call of the runner computes the {left:,} that are left"
    else:
        end = "no driver is at work: the same call of the runner merges it"
    return [wrapped(f"{found.run}: {_counts(found)}"), wrapped(end)]


def _of_jobs(found: RunStatus) -> list[str]:
    lines = [wrapped(f"{found.run} ({found.env}): {_counts(found)}")]
    for state, count in sorted(found.counts.items(), key=lambda pair: list(JobState).index(pair[0])):
        lines.append(wrapped(f"{count:6d} {_word(state):14} {state.sentence}", 22))
        if state in (JobState.PENDING, JobState.NOT_STARTED):
            reasons = Counter(shard.note for shard in found.shards if shard.state is state and shard.note)
            lines += [
                wrapped(f"{number:6d} of them: {note}", 7) for note, number in reasons.most_common(_REASONS)
            ]
    ended = [shard for shard in found.shards if shard.state not in _FINE]
    for shard in ended[:_SHOWN]:
        text = f"shard {shard.shard} ({shard.job_id or 'no job'}) {_word(shard.state)}: {shard.note}"
        lines.append(wrapped(text.rstrip(": ")))
    if len(ended) > _SHOWN:
        lines.append(f"... and {len(ended) - _SHOWN:,} more; --json lists all")
    return lines


def wrapped(text: str, indent: int = 4) -> str:
    """Break a text between words at 80 columns; a word that is longer, such as a path, stays whole."""
    after = " " * indent
    lines = [
        textwrap.fill(
            line,
            _WIDTH,
            initial_indent=after if number else "",
            subsequent_indent=after,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for number, line in enumerate(text.splitlines())
    ]
    return "\n".join(lines)


def _word(state: JobState) -> str:
    return state.value.replace("_", " ")


def _counts(found: RunStatus | FolderStatus) -> str:
    return f"{found.ok + found.failed:,} of {found.items:,} items, {found.failed:,} failed"


class LiveLine:
    """One line about a run that goes on: how far it is, how fast, and how long it may take.

    It is written over and over on a terminal. Elsewhere there is a new line every ten seconds, and after a minute
    one every minute.

    Args:
        stream: Where to; None: standard error.
        clock: Returns the seconds since some moment.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._begin = self._next = clock()
        self._seen: deque[tuple[float, int]] = deque()
        self._in_place = self._stream.isatty()
        self._width = 0

    def show(self, found: RunStatus | FolderStatus) -> None:
        """Show a status."""
        now = self._clock()
        self._seen.append((now, found.ok + found.failed))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _SPAN:
            self._seen.popleft()
        text = self._text(found)
        if self._in_place:
            text = printable(text)[: shutil.get_terminal_size().columns - 1]
            print(f"\r{text.ljust(self._width)}", end="", file=self._stream, flush=True)
            self._width = len(text)
        elif now >= self._next:
            say(text, self._stream, flush=True)
            self._next = now + next(every for until, every in _EVERY if now - self._begin < until)

    def close(self) -> None:
        """Remove the line from a terminal."""
        if self._in_place and self._width:
            print(f"\r{' ' * self._width}\r", end="", file=self._stream, flush=True)
            self._width = 0

    def _text(self, found: RunStatus | FolderStatus) -> str:
        (begin, before), (now, done) = self._seen[0], self._seen[-1]
        rate = (done - before) / (now - begin) if done > before else 0.0
        pace = f", {rate:,.1f} items/s, {span((found.items - done) / rate)} left" if rate else ""
        if isinstance(found, FolderStatus):
            return f"{_counts(found)}{pace}"
        living = [f"{n} {_word(state)}" for state, n in found.counts.items() if state.alive]
        return f"{_counts(found)}{pace}; jobs: {', '.join(living)}"


def plain_line(facts: LiveFacts) -> str:
    """Return one line about a run that is watched where there is no terminal."""
    status = facts.status
    pace = f", {facts.rate:,.1f} items/s" if facts.rate else ""
    left = f", {span(facts.seconds_left)} left" if facts.seconds_left else ""
    end = "" if status.alive else ", complete" if status.done or status.merged else ", nobody works on it"
    causes = "".join(
        f"; {group.count:,} x {group.error_type}: {' '.join(group.message.split()):.60}"
        for group in facts.failures[:1]
    )
    return f"{Path(status.run).name}: {_counts(status)}{pace}{left}{end}{causes}"


def span(seconds: float) -> str:
    """Return a length of time, to about two digits."""
    if seconds < 100:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
