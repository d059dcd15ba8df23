"""How many items came in between when and when, from the times that a run's folder holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from espnet3.parallel.ledger.split import ERRORS, RESULTS, SESSION, SPLIT, split_folders
from espnet3.parallel.timing.reading import Stint, shard_of
from espnet3.parallel.views.sessions import Session
from espnet3.parallel.views.spans import Span, shard_ends

_BINS = 80


@dataclass(frozen=True, slots=True)
class Stretch:
    """Items that came in between two moments; nothing is recorded of when in between.

    Attributes:
        begin: In seconds since the epoch.
        end: The same.
        items: How many.
    """

    begin: float
    end: float
    items: int


def stretches(
    run: Path,
    sessions: Sequence[Session],
    drivers: Sequence[Span],
    shards: Sequence[Span],
    done: int,
    stints: Sequence[Stint] = (),
) -> list[Stretch]:
    """Return what a folder says of when its items came in, as finely as it says it."""
    found = [Stretch(one.begin, one.end, one.items) for one in stints]
    timed = Timed(stints)
    found += [
        Stretch(span.begin, span.end, span.items)
        for span in _whole(shards)
        if span.items and not timed.has(span)
    ]
    ends = shard_ends(run)
    for session, after in zip_longest(sessions, sessions[1:]):
        known = timed.items_in(session.begin, float("inf") if after is None else after.begin)
        if session.figures:
            begin, end = _work_of(session)
            left = int(session.figure("items")) - known
            if end is not None and left > 0:
                inside = [(when, n) for when, n in ends if begin <= when <= end + 1 and not known]
                found += _between(begin, inside) if inside else [Stretch(begin, end, left)]
        elif session.ended not in ("submitted", "merged"):  # at work, killed, or stopped
            have = done if after is None else after.ok_before + after.failed_before
            items = have - session.ok_before - session.failed_before - known
            end = session.end or _last_write(run, session, drivers, after)
            found.append(Stretch(session.begin, max(session.begin, end), items))
    return sorted((one for one in found if one.items > 0), key=lambda one: one.begin)


class Timed:
    """Whose items are in the recorded times."""

    def __init__(self, stints: Sequence[Stint]) -> None:
        self._stints = stints
        self._workers = {shard_of(one.worker) for one in stints}

    def has(self, span: Span) -> bool:
        """Whether they have a shard's."""
        return span.name in self._workers

    def items_in(self, begin: float, end: float) -> int:
        """Return how many items they have that began between two moments."""
        return sum(one.items for one in self._stints if begin <= one.begin < end)


def binned(found: Sequence[Stretch], begin: float | None = None) -> list[tuple[float, float]]:
    """Return moments at equal distances and the items per second from each to the next; the last is the end.

    A stretch's items are spread evenly over it.
    """
    if not found:
        return []
    first_item, end = min(one.begin for one in found), max(one.end for one in found)
    begin = first_item if begin is None else min(begin, first_item)
    width = max(1e-3, (end - begin) / _BINS)
    rates = [0.0] * _BINS
    for one in found:
        length = max(1e-3, one.end - one.begin)
        first, last = int((one.begin - begin) / width), int((one.end - begin) / width)
        for k in range(min(first, _BINS - 1), min(last, _BINS - 1) + 1):
            low, high = begin + k * width, begin + (k + 1) * width
            overlap = max(0.0, min(high, one.begin + length) - max(low, one.begin))
            rates[k] += one.items * overlap / length / width
    return [*((begin + k * width, rate) for k, rate in enumerate(rates)), (end, rates[-1])]


def _work_of(session: Session) -> tuple[float, float | None]:
    """Return when a session's first item began, and when it ended."""
    seconds = session.figure("seconds")
    if not seconds or session.end is None:
        return session.begin, session.end
    end = session.begin + seconds
    return min(end, session.begin + session.figure("start_seconds")), end


def _between(begin: float, ends: Sequence[tuple[float, int]]) -> Iterator[Stretch]:
    for end, n in ends:
        yield Stretch(begin, max(begin, end), n)
        begin = max(begin, end)


def _last_write(run: Path, session: Session, drivers: Sequence[Span], after: Session | None) -> float:
    """Return when a session that has noted no end last wrote an outcome, as far as that can be told."""
    files = [
        split / name
        for kind in (SPLIT, SESSION)
        for split in split_folders(run, kind)
        for name in (RESULTS, ERRORS)
    ]
    until = float("inf") if after is None else after.begin
    times = [file.stat().st_mtime for file in files if file.exists()]
    times = [when for when in times if session.begin <= when <= until]
    return max(times, default=drivers[-1].end if drivers and after is None else session.begin)


def _whole(shards: Sequence[Span]) -> list[Span]:
    """Return one span for each shard: from its first attempt that is known to its last."""
    begins: dict[str, float] = {}
    last: dict[str, Span] = {}
    for span in shards:
        begins.setdefault(span.name, span.begin)
        last[span.name] = span
    return [Span(s.name, s.host, s.pid, begins[name], s.end, s.ended, s.items) for name, s in last.items()]
