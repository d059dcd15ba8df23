"""Workers over time: a row for each of a driver's workers, or for each shard of detached jobs."""

from __future__ import annotations

from collections.abc import Sequence

from espnet3.parallel.timing.reading import Stint, shard_of, worker_name
from espnet3.parallel.views.charts import Bar, amount, duration
from espnet3.parallel.views.facts import RunFacts

Row = tuple[str, list[Bar]]

_MOST_ROWS = 60
_MOST_BARS = 60  # of a row's items
KINDS = {
    "launch": "start",
    "env": "imports and env",
    "work": "items",
    "idle": "idle share",
    "alive": "at work",
    "lost": "died or stopped",
}
_ENDED = {"died": "gave no more sign of life", "alive": "at work", "released": "left in order"}


def rows_of(facts: RunFacts) -> tuple[list[Row], str]:
    """Return the rows by when they begin, the first ones, and a sentence on those that are left out; "" if none are."""
    rows: dict[str, list[Bar]] = {}
    for worker, bars in _worker_bars(facts).items():
        rows.setdefault(shard_of(worker) if facts.shards else worker_name(worker), []).extend(bars)
    for span in facts.shards:
        bars = rows.setdefault(span.name, [])
        did = [bar for bar in bars if span.begin <= bar.end <= span.end]
        kind = {"died": "lost", "alive": "alive"}.get(span.ended, "work")
        if kind != "work" or not did:  # its time after the last record is not known
            end = max((bar.end for bar in did), default=span.begin)
            how = f"on {span.host}, process {span.pid}: {duration(span.seconds)}, {_ENDED[span.ended]}"
            bars.append(Bar(end, max(end, span.end), kind, how))
    for bars in rows.values():
        bars.sort(key=lambda bar: bar.begin)
    found = sorted(rows.items(), key=lambda row: row[1][0].begin)
    left = len(found) - _MOST_ROWS
    what = "shards" if facts.shards else "workers"
    return found[:_MOST_ROWS], f"{left:,} more {what} are left out." if left > 0 else ""


def _worker_bars(facts: RunFacts) -> dict[str, list[Bar]]:
    """Return what each worker did as `times.jsonl` has it: its start, its env, its items, and where it died."""
    times = facts.times
    found: dict[str, list[Bar]] = {}
    begins: dict[str, list[float]] = {}  # moments from which on a worker or a shard's job was being started
    for name, when in [*((span.name, span.begin) for span in facts.shards), *times.losses]:
        begins.setdefault(name, []).append(when)
    sessions = [session.begin for session in facts.sessions]
    for one in times.arrivals:
        ready = one.when - one.imports - one.env
        moments = [*sessions, *begins.get(one.worker, ()), *begins.get(shard_of(one.worker), ())]
        began = max((moment for moment in moments if moment <= ready), default=ready)
        text = f"imports {duration(one.imports)}, env {duration(one.env)}"
        found.setdefault(one.worker, []).append(Bar(ready, one.when, "env", text))
        if began < ready:
            found[one.worker].append(Bar(began, ready, "launch", f"its start: {duration(ready - began)}"))
    stints: dict[str, list[Stint]] = {}
    for stint in times.stints:
        stints.setdefault(stint.worker, []).append(stint)
    for worker, did in stints.items():
        found.setdefault(worker, []).extend(bar for stint in _fewer(did) for bar in _bars(stint))
    for worker, when in times.losses:
        text = "its process ended with items in progress, which were run again"
        found.setdefault(worker, []).append(Bar(when, when, "lost", text))
    return found


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
    each = -(-len(stints) // _MOST_BARS)
    found = []
    for at in range(0, len(stints), each):
        part = stints[at : at + each]
        busy, items = sum(one.busy for one in part), sum(one.items for one in part)
        memory = max(one.memory for one in part)
        found.append(Stint(part[0].worker, part[0].begin, max(one.end for one in part), busy, items, memory))
    return found
