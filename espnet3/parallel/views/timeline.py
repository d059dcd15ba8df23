"""Who worked when: rows of stretches for sessions, for a driver's workers and for the shards of detached jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from espnet3.parallel.timing.reading import Arrival, RunTimes, Stint, shard_of, worker_name
from espnet3.parallel.views.charts import Bar, amount, duration
from espnet3.parallel.views.facts import RunFacts
from espnet3.parallel.views.sessions import Session
from espnet3.parallel.views.spans import Span

Row = tuple[str, list[Bar]]

MOST_ROWS = 60
_MOST_BARS = 60  # of a worker's row
KINDS = {
    "launch": "workers start",
    "env": "imports and env",
    "work": "items",
    "idle": "idle share",
    "alive": "at work",
    "lost": "died or stopped",
}
_ENDED = {"died": "gave no more sign of life", "alive": "at work", "released": "left in order"}


def rows_of(facts: RunFacts) -> tuple[list[Row], str]:
    """Return the rows, at most `MOST_ROWS`, and a sentence on those that are left out; "" if none are."""
    rows = [
        (f"session {number}", found)
        for number, session in enumerate(facts.sessions)
        if (found := session_bars(session, facts))
    ]
    of = shard_rows(facts.shards, facts.times) if facts.shards else worker_rows(facts.times)
    rows += of
    left = len(rows) - MOST_ROWS
    what = "shards" if facts.shards else "workers"
    return rows[:MOST_ROWS], f"{left:,} more {what} are left out." if left > 0 else ""


def shard_rows(spans: Sequence[Span], times: RunTimes) -> list[Row]:
    """Return a row for each shard of a detached run, by when it began: what each of its jobs did, and how it ended."""
    arrivals: dict[str, list[Arrival]] = {}
    stints: dict[str, list[Stint]] = {}
    for one in times.arrivals:
        arrivals.setdefault(shard_of(one.worker), []).append(one)
    for stint in times.stints:
        stints.setdefault(shard_of(stint.worker), []).append(stint)
    rows: dict[str, list[Bar]] = {}
    for span in spans:
        came = [one for one in arrivals.get(span.name, ()) if span.begin <= one.when <= span.end]
        did = [one for one in stints.get(span.name, ()) if span.begin <= one.begin <= span.end]
        rows.setdefault(span.name, []).extend(_job_bars(span, came, did))
    return sorted(rows.items(), key=lambda row: row[1][0].begin)


def _job_bars(span: Span, came: Sequence[Arrival], did: Sequence[Stint]) -> list[Bar]:
    """Return what a job did between its lease's begin and end; all of it is one stretch where no time is recorded."""
    how = f"{span.name} on {span.host}, process {span.pid}: {duration(span.seconds)}, {_ENDED[span.ended]}"
    kind = {"died": "lost", "alive": "alive"}.get(span.ended, "work")
    found = [bar for one in came for bar in (_start_bar(span.begin, one), _env_bar(one)) if bar is not None]
    found += [bar for stint in _fewer(did) for bar in _bars(stint)]
    if not found:
        return [Bar(span.begin, span.end, kind, how)]
    end = max(bar.end for bar in found)
    # what it did after its last record is not known; of one that left in order that is nothing
    return found if kind == "work" else [*found, Bar(end, max(end, span.end), kind, how)]


def _start_bar(begin: float, one: Arrival) -> Bar | None:
    ready = one.when - one.imports - one.env
    if ready <= begin:
        return None
    return Bar(begin, ready, "launch", f"the job starts: {duration(ready - begin)}")


def _env_bar(one: Arrival) -> Bar:
    text = f"imports {duration(one.imports)}, env {duration(one.env)}"
    return Bar(one.when - one.imports - one.env, one.when, "env", text)


def session_bars(session: Session, facts: RunFacts) -> list[Bar]:
    """Return a session's stretches: its workers' start, their env, items and idle share; one if it noted no end."""
    begin = session.begin
    if not session.figure("seconds"):
        if session.ended in ("submitted", "merged"):
            return []
        after = min((one.begin for one in facts.sessions if one.begin > begin), default=math.inf)
        seen = (min(s.end, after) for s in facts.stretches if begin <= s.begin < after)
        end = session.end or max(seen, default=begin)
        alive = not session.ended and facts.state == "at work" and session is facts.sessions[-1]
        text = session.error or ("at work" if alive else "it has noted no end: its driver was killed")
        return [Bar(begin, facts.read if alive else end, "alive" if alive else "lost", text[:300])]
    launch, start = session.figure("launch_seconds"), session.figure("start_seconds")
    end, present = begin + session.figure("seconds"), session.figure("slot_seconds")
    busy = session.figure("busy_seconds") / present if present else 1.0
    turn = begin + start + (end - begin - start) * min(1.0, busy)
    env = (
        f"imports {duration(session.figure('import_seconds'))}, env {duration(session.figure('env_seconds'))}"
    )
    return [
        Bar(begin, begin + launch, "launch", f"workers start: {duration(launch)}"),
        Bar(begin + launch, begin + start, "env", f"until the first item: {env}"),
        Bar(
            begin + start,
            turn,
            "work",
            f"items: workers busy for {busy:.0%} of {duration(end - begin - start)}",
        ),
        Bar(turn, end, "idle", f"the workers' idle share: {max(0.0, 1 - busy):.0%}"),
    ]


def worker_rows(times: RunTimes) -> list[Row]:
    """Return a row for each worker: its start, its items and its idle time, and where it died; by when it came."""
    rows: dict[str, list[Bar]] = {}
    for one in times.arrivals:
        rows.setdefault(one.worker, []).append(_env_bar(one))
    by_worker: dict[str, list[Stint]] = {}
    for stint in times.stints:
        by_worker.setdefault(stint.worker, []).append(stint)
    for worker, stints in by_worker.items():
        for stint in _fewer(stints):
            rows.setdefault(worker, []).extend(_bars(stint))
    for worker, when in times.losses:
        text = "its process ended with items in progress, which were run again"
        rows.setdefault(worker, []).append(Bar(when, when, "lost", text))
    return [
        (worker_name(worker), bars) for worker, bars in sorted(rows.items(), key=lambda row: row[1][0].begin)
    ]


def _bars(stint: Stint) -> list[Bar]:
    length = max(1e-3, stint.end - stint.begin)
    busy = min(1.0, stint.busy / length)
    memory = f", up to {amount(stint.memory)} of memory" if stint.memory else ""
    text = f"{stint.items:,} items in {duration(length)}, busy for {busy:.0%}{memory}"
    turn = stint.begin + busy * length
    idle = [Bar(turn, stint.end, "idle", text)] if busy < 0.98 else []  # less is not seen
    return [Bar(stint.begin, turn if idle else stint.end, "work", text), *idle]


def _fewer(stints: Sequence[Stint]) -> list[Stint]:
    """Join neighbours until there are no more than a row can show."""
    each = max(1, -(-len(stints) // _MOST_BARS))
    found = []
    for at in range(0, len(stints), each):
        part = stints[at : at + each]
        busy, items = sum(one.busy for one in part), sum(one.items for one in part)
        memory = max(one.memory for one in part)
        found.append(Stint(part[0].worker, part[0].begin, max(one.end for one in part), busy, items, memory))
    return found
