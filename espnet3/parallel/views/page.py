"""A run's facts as one HTML page: no network, no script, light and dark, readable by a screen reader.

At its top are three sentences: the run's state, its trouble, and where its time went. Its timeline has a row for each
worker of a driver, or for each shard of detached jobs.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from espnet3.parallel.ledger.split import ERRORS
from espnet3.parallel.messages import counted, duration
from espnet3.parallel.records import place_of
from espnet3.parallel.timing.reading import RunTimes, Stint, shard_of, worker_name
from espnet3.parallel.timing.recorder import PER_OCTAVE, edge_of
from espnet3.parallel.views import charts
from espnet3.parallel.views.charts import STYLE, Bar, amount
from espnet3.parallel.views.facts import SHOWN, FailureGroup, RunFacts

_MOST_GROUPS = 50
_MOST_CONFIG = 200_000  # characters
_MOST_TRACEBACK = 8_000
_BINS = 80  # of the throughput
_COLUMNS = 40  # of the histogram, at most
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_HOW = (
    "Items of less than some milliseconds are timed in steps of several, and those of a batch together: each counts "
    "with the mean. An item that was tried again counts with all its attempts."
)
_NOT_RECORDED = (
    "How long items took and what workers did is recorded in sums over half a second or more, with the slowest items "
    "by name and the most memory that a worker's process has used; not which worker ran which item, nor the time of an "
    "item in which a worker died. Of a driver or job that was killed the last record is missing: half a second of "
    "work, or a two-hundredth of its time."
)
_MOST_ROWS = 60
_MOST_BARS = 60  # of a row's items
_KINDS = {
    "launch": "start",
    "env": "imports and env",
    "work": "items",
    "idle": "idle share",
    "alive": "at work",
    "lost": "died or stopped",
}
_ENDED = {"died": "gave no more sign of life", "alive": "at work", "released": "left in order"}

Row = tuple[str, list[Bar]]


def page_of(facts: RunFacts) -> str:
    """Return the page."""
    title = f"{facts.runner.partition(':')[2] or facts.runner} in {Path(facts.run).name}"
    took = facts.ended - facts.began
    until = "is at work now" if facts.state == "at work" else f"ended {charts.clock(facts.ended)}"
    busy = f", at work for {duration(facts.worked)} of it" if facts.worked < 0.95 * took else ""
    when = f"It began {charts.clock(facts.began)} and {until}: {duration(took)}{busy}."
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="dim">{escape(facts.run)} · read {charts.clock(facts.read)}</p>',
        f"<p>{escape(when)}</p>",
        '<section aria-label="Conclusions"><ol class="conclusions">'
        + "".join(f"<li>{_inline(one)}</li>" for one in conclusions(facts))
        + "</ol></section>",
        _tiles(facts),
        *(f'<p class="note">{escape(note)}</p>' for note in (facts.sampled, *facts.notes) if note),
    ]
    sections = {
        "Throughput": _throughput(facts),
        "Who worked when": _timeline(facts),
        "How long items took": _times(facts),
        f"Failures ({facts.failed:,})": _failures(facts),
        "Sessions, retries and losses": _sessions(facts),
        "What was run": _recorded(facts),
        "What is not recorded": f"<p>{escape(_NOT_RECORDED)}</p>",
    }
    parts += [f"<section><h2>{escape(name)}</h2>{body}</section>" for name, body in sections.items()]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _tiles(facts: RunFacts) -> str:
    last = facts.computed[-1] if facts.computed else None
    sessions = counted(len(facts.sessions), "session")
    tiles = [
        (duration(facts.ended - facts.began), f"it took, in {sessions}"),
        (f"{facts.ok + facts.failed:,}", f"of {facts.items:,} items"),
        (f"{facts.failed:,}", "failed"),
        (facts.state, "state"),
    ]
    if last is not None:
        work = max(1e-9, last.figure("seconds") - last.figure("start_seconds"))
        tiles += [
            (_rate(last.figure("items") / work), "items while at work"),
            (f"{last.figure('busy_seconds') / max(1e-9, last.figure('slot_seconds')):.0%}", "workers busy"),
        ]
    if facts.times.memory:
        tiles.append((amount(facts.times.memory), "of memory, the largest worker"))
    cells = "".join(
        f"<div><strong>{escape(value)}</strong><span>{escape(name)}</span></div>" for value, name in tiles
    )
    return f'<section class="tiles" aria-label="Figures">{cells}</section>'


def _throughput(facts: RunFacts) -> str:
    if not facts.times.stints:
        return "<p>Nothing is recorded yet of when items came in.</p>"
    begin, end, rates = binned(facts.times.stints, facts.sessions[0].begin if facts.sessions else None)
    width = (end - begin) / len(rates)
    shown = [(charts.clock(begin + place * width), _rate(rate)) for place, rate in enumerate(rates)]
    drawn = [(rate, f"{moment}: {text}") for rate, (moment, text) in zip(rates, shown, strict=True)]
    top = _rate(max(rates))
    label = f"Items per second from {charts.clock(begin)} to {charts.clock(end)}, at most {top}"
    return (
        charts.columns(drawn, top, charts.moments(begin, end), label)
        + '<p class="dim">Items are spread evenly between two recorded moments.</p>'
        + _folded("As a table", _table(("from", "items"), shown))
    )


def _rate(number: float) -> str:
    return f"{number:,.0f}/s" if number >= 100 else f"{number:.3g}/s"


def binned(found: Sequence[Stint], begin: float | None = None) -> tuple[float, float, list[float]]:
    """Return when stints begin (or `begin`, if that is earlier) and end, and the items per second in each bin."""
    first, end = min(one.begin for one in found), max(one.end for one in found)
    first = first if begin is None else min(begin, first)
    end = max(end, first + 1e-3)
    width = (end - first) / _BINS
    rates = [0.0] * _BINS
    for one in found:
        length = max(1e-3, one.end - one.begin)
        start = min(one.begin, end - length)  # a stint without length has a bin too
        at, last = int((start - first) / width), int((start + length - first) / width)
        for place in range(max(0, at), min(last + 1, _BINS)):
            low = first + place * width
            overlap = min(low + width, start + length) - max(low, start)
            rates[place] += one.items * max(0.0, overlap) / length / width
    return first, end, rates


def _timeline(facts: RunFacts) -> str:
    rows, left = rows_of(facts)
    if not rows:
        return "<p>Nothing is recorded yet of any worker.</p>"
    bars = [bar for _, found in rows for bar in found]
    begin, end = min(bar.begin for bar in bars), max(bar.end for bar in bars)
    used = {bar.kind for bar in bars}
    legend = "".join(
        f'<span><i class="{kind}"></i>{name}</span>' for kind, name in _KINDS.items() if kind in used
    )
    table = _table(("who", "what"), [(name, bar.title) for name, found in rows for bar in found])
    label = f"Timeline of {len(rows)} rows from {charts.clock(begin)} to {charts.clock(end)}"
    return (
        f'<p class="legend" aria-hidden="true">{legend}</p>'
        + charts.rows(rows, begin, end, label)
        + (f'<p class="dim">{escape(left)}</p>' if left else "")
        + _folded("As a table", table)
    )


def _times(facts: RunFacts) -> str:
    times = facts.times
    parts = []
    if times.items:
        found = times.quantiles([share for share in _QUANTILES if times.items * (1 - share) >= 1] or [0.5])
        shares = ", ".join(f"{100 * share:.4g}% took at most {duration(value)}" for share, value in found)
        mean = f"<strong>{duration(times.busy / times.items)}</strong> on average"
        parts.append(f"<p>An item took {mean}, over {times.items:,} items: {shares}.</p>{_histogram(times)}")
        parts.append(f'<p class="dim">{_HOW}</p>')
    if facts.slowest:
        slow = ", ".join(f"item {index} ({duration(seconds)})" for seconds, index in facts.slowest)
        parts.append(f"<p>The slowest: {escape(slow)}.</p>")
    return "".join(parts) or "<p>No time is recorded yet.</p>"


def _histogram(times: RunTimes) -> str:
    first, last = min(times.counts), max(times.counts)
    width = -(-(last - first + 1) // _COLUMNS)
    if width > 1:
        width = max(width, PER_OCTAVE // 4)
    begins = range(first, last + 1, width)
    found = []
    for begin in begins:
        n = sum(times.counts.get(number, 0) for number in range(begin, begin + width))
        title = f"{n:,} from {duration(edge_of(begin))} to {duration(edge_of(begin + width))}"
        found.append((float(n), title))
    edges = [edge_of(begin) for begin in (*begins, begins[-1] + width)]
    scale = [duration(edges[round(part * (len(edges) - 1) / 4)]) for part in range(5)]
    label = f"Histogram of {times.items:,} items from {scale[0]} to {scale[-1]}"
    return charts.columns(found, f"{max(n for n, _ in found):,.0f} items", scale, label)


def _failures(facts: RunFacts) -> str:
    parts, left = ["" if facts.failures else "<p>None.</p>"], SHOWN
    types: dict[str, list[FailureGroup]] = {}
    for group in facts.failures[:_MOST_GROUPS]:
        types.setdefault(group.error_type, []).append(group)
    for name, groups in sorted(types.items(), key=lambda one: -sum(group.count for group in one[1])):
        items = counted(sum(group.count for group in groups), "item")
        parts.append(f"<h3><code>{escape(name)}</code>: {items}</h3>")
        for group in groups:
            rows = list(zip(group.indices, group.messages, strict=True))[: max(1, left)]
            left -= len(rows)
            trace = group.traceback
            if len(trace) > _MOST_TRACEBACK:
                trace = f"{trace[: _MOST_TRACEBACK // 2]}\n…\n{trace[-_MOST_TRACEBACK // 2 :]}"
            how = "" if group.cause == "error" else f" ({group.cause})"
            most = f"at most {counted(group.attempts, 'attempt')}"
            parts.append(
                f"<p><strong>{group.count:,} x</strong> {escape(group.message[:300])}{escape(how)}; {most}</p>"
                + _table(("item", "message"), rows)
                + _folded(f"Traceback of the first, {place_of(group.worker)}", f"<pre>{escape(trace)}</pre>")
            )
    kinds = len(facts.failures) - _MOST_GROUPS
    parts.append(f"<p>{kinds:,} more kinds are left out.</p>" if kinds > 0 else "")
    if facts.failed > SHOWN - left:
        file, all_of = Path(facts.run, ERRORS), f"All {counted(facts.failed, 'failed item')}"
        where = f'<a href="{file.as_uri()}">{ERRORS}</a>, and ' if file.exists() else ""
        command = shlex.join(["espnet3-parallel", "failures", facts.run])
        parts.append(f"<p>{all_of} are in {where}listed by <code>{escape(command)}</code>.</p>")
    return "".join(parts)


def _sessions(facts: RunFacts) -> str:
    names = ("session", "began", "it", "had", "ran", "failed", "retries", "deaths", "ended")
    rows, repaired = [], []
    for number, one in enumerate(facts.sessions):
        ended = one.error or {"": "without a word"}.get(one.ended, one.ended)
        if not one.ended and facts.state == "at work" and one is facts.sessions[-1]:
            ended = "at work"
        it, had = "resumed" if one.resumed else "started", f"{one.ok_before + one.failed_before:,}"
        figures = [f"{int(one.figure(n)):,}" if one.figures else "" for n in names[5:8]]
        rows.append((str(number), charts.clock(one.begin), it, had, f"{one.ran:,}", *figures, ended[:200]))
        repaired += [f"<p>Session {number}: {escape(sentence)}</p>" for sentence in one.repaired]
    found = [_table(names, rows), *repaired]
    if facts.ends:
        unfinished = []
        for end in facts.ends:
            shards, more = ", ".join(map(str, end.shards[:_MOST_GROUPS])), len(end.shards)
            shards += f", … ({more:,})" if more > _MOST_GROUPS else ""
            seen = charts.clock(end.noticed) if end.noticed else "now"
            unfinished.append((seen, end.state.replace("_", " "), shards, end.sentence))
        found.append("<h3>Jobs that did not finish their shards</h3>")
        found.append(_table(("seen", "how", "shards", "which means"), unfinished))
    lost = sum(span.ended == "died" for span in (*facts.drivers, *facts.shards))
    in_all = [
        (len(facts.shards), "time", "a job worked on a shard"),
        (facts.retries, "time", "an item was tried again"),
        (facts.deaths, "process", "ended with items in progress, which were run again"),
        (lost, "process", "ended without giving back what it held"),
    ]
    said = [f"{counted(n, one)} {what}." for n, one, what in in_all if n]
    if said:
        found.append(f"<p>In all: {escape(' '.join(said))}</p>")
    return "".join(found)


def _recorded(facts: RunFacts) -> str:
    said, origin = facts.recorded, facts.recorded.get("origin") or {}
    git = origin.get("git") or {}
    states = {"True": ", with changes that were not committed", "False": ", clean"}
    state = states.get(str(git.get("dirty")), "")
    indices = json.dumps(said.get("indices"), ensure_ascii=False, default=str)
    rows = [
        ("runner", facts.runner),
        ("provider", facts.provider),
        ("indices", indices if len(indices) <= 300 else f"{indices[:300]}…"),
        ("seed", str(said.get("seed"))),
        ("command", " ".join(map(str, origin.get("command") or []))),
        ("started in", f"{origin.get('cwd')} on {origin.get('host')}"),
        ("git", f"{git['commit']}{state}" if git.get("commit") else "not in a checkout"),
        ("versions", _pairs({**(origin.get("versions") or {}), **(said.get("packages") or {})})),
        ("policy", _pairs(said.get("policy") or {})),
    ]
    config = json.dumps(said.get("config"), indent=2, ensure_ascii=False, default=str)
    if len(config) > _MOST_CONFIG:
        config = f"{config[:_MOST_CONFIG]}\n… {len(config) - _MOST_CONFIG:,} more characters are in run.json"
    history = "".join(
        f"<p>Forced over another run on {escape(str(one.get('time')))}: "
        f"{escape('; '.join(map(str, one.get('forced', []))))}</p>"
        for one in said.get("history") or []
    )
    folded = _folded("Configuration (secrets masked)", f"<pre>{escape(config)}</pre>")
    return _table(("what", "value"), rows) + history + folded


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _inline(sentence: str) -> str:
    parts = sentence.split("`")
    return "".join(f"<code>{escape(p)}</code>" if k % 2 else escape(p) for k, p in enumerate(parts))


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def conclusions(facts: RunFacts) -> list[str]:
    """Return at most three sentences."""
    return [sentence for sentence in (_state(facts), _trouble(facts), _time(facts)) if sentence]


def _state(facts: RunFacts) -> str:
    failed = f", {facts.failed:,} of them a failure" if facts.failed else ""
    if facts.state == "complete":
        how = ""
        if facts.computed:
            last = facts.computed[-1]
            how = (
                f" The last session ran {counted(int(last.figure('items')), 'item')} in "
                f"{duration(last.figure('seconds'))} on {counted(int(last.figure('workers')), 'worker')}."
            )
        return f"All {counted(facts.items, 'item')} have an outcome{failed}.{how}"
    have = f"{facts.ok + facts.failed:,} of {counted(facts.items, 'item')} have an outcome{failed}"
    if facts.state == "at work":
        return f"{have}; the run is at work."
    ended = facts.sessions[-1] if facts.sessions else None
    why = f" It stopped at {ended.error.splitlines()[0]:.120}." if ended is not None and ended.error else ""
    again = f"`espnet3-parallel retry {facts.run}`" if facts.shards else "the same call of the runner"
    rest = f"compute the {facts.left:,} that are left" if facts.left else "merge them"
    return f"{have}, and no process works on it.{why} To {rest}: {again}."


def _trouble(facts: RunFacts) -> str:
    if facts.failures:
        first = facts.failures[0]
        replay = shlex.join(["espnet3-parallel", "replay", facts.run, first.indices[0]])
        share = first.count / max(1, facts.failed)
        return (
            f"{first.count:,} of {counted(facts.failed, 'failure')} ({share:.0%}) are {first.text:.160}. "
            f"`{replay}` runs the first one here."
        )
    if facts.deaths:
        return (
            f"{counted(facts.deaths, 'worker process')} ended in the middle of items, which were run again."
        )
    if facts.retries:
        return f"{counted(facts.retries, 'time')} an item was tried again because it had raised."
    if facts.computed and all(one.figures for one in facts.sessions):
        return "Nothing had to be done twice: no worker process was lost, and no item was tried again."
    return ""


def _time(facts: RunFacts) -> str:
    if facts.computed:
        last = facts.computed[-1]
        seconds, start = last.figure("seconds"), last.figure("start_seconds")
        busy, present, items = last.figure("busy_seconds"), last.figure("slot_seconds"), last.figure("items")
        return (
            f"Start-up took {start / max(1e-9, seconds):.0%} of the last session ({duration(start)} of "
            f"{duration(seconds)}); workers were busy for {busy / max(1e-9, present):.0%} of the time they were there, "
            f"and an item took {duration(busy / items)} on average."
        )
    times = facts.times
    if not times.busy:
        return ""
    start = sum(one.imports + one.env for one in times.arrivals)
    return (
        f"An item took {duration(times.busy / times.items)} on average, over {counted(times.items, 'item')}; "
        f"imports and env took {start / (start + times.busy):.0%} of the workers' time."
    )


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
            how = (
                f"on {span.host}, process {span.pid}: {duration(span.end - span.begin)}, {_ENDED[span.ended]}"
            )
            bars.append(Bar(end, max(end, span.end), kind, how))
    for bars in rows.values():
        bars.sort(key=lambda bar: bar.begin)
    found = sorted(rows.items(), key=lambda row: row[1][0].begin)
    left = len(found) - _MOST_ROWS
    what = "shards" if facts.shards else "workers"
    return found[:_MOST_ROWS], f"{left:,} more {what} are left out." if left > 0 else ""


def _worker_bars(facts: RunFacts) -> dict[str, list[Bar]]:
    times = facts.times
    found: dict[str, list[Bar]] = {}
    begins: dict[str, list[float]] = {}  # moments at which the start of a worker or job began
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
    each = -(-len(stints) // _MOST_BARS)
    found = []
    for at in range(0, len(stints), each):
        part = stints[at : at + each]
        busy, items = sum(one.busy for one in part), sum(one.items for one in part)
        memory = max(one.memory for one in part)
        found.append(Stint(part[0].worker, part[0].begin, max(one.end for one in part), busy, items, memory))
    return found
