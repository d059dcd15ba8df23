"""A run's facts as one HTML page: no network, no script, light and dark, readable by a screen reader."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from espnet3.parallel.messages import counted
from espnet3.parallel.views import charts, latency, timeline
from espnet3.parallel.views.charts import amount, duration
from espnet3.parallel.views.conclusions import conclusions
from espnet3.parallel.views.facts import RunFacts
from espnet3.parallel.views.rates import binned
from espnet3.parallel.views.style import STYLE

_MOST_GROUPS = 50
_MOST_CONFIG = 200_000  # characters
_MOST_TRACEBACK = 8_000
_QUANTILES = (0.5, 0.9, 0.99)
_NOT_RECORDED = (
    "How long items took and what workers did is recorded in sums over half a second or more, with the slowest items "
    "by name and the most memory that a worker's process has used; not which worker ran which item, nor the time of an "
    "item in which a worker died. Of a driver or job that was killed the last record is missing: half a second of "
    "work, or a two-hundredth of its time."
)


def page_of(facts: RunFacts) -> str:
    """Return the page."""
    title = f"{facts.runner.partition(':')[2] or facts.runner} in {Path(facts.run).name}"
    found = conclusions(facts)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="dim">{escape(facts.run)} · read {charts.clock(facts.read)}</p>',
        '<section aria-label="Conclusions"><ol class="conclusions">'
        + "".join(f"<li>{_inline(one)}</li>" for one in found)
        + "</ol></section>",
        _tiles(facts),
        *(f'<p class="note">{escape(note)}</p>' for note in (facts.sampled, *facts.notes) if note),
        _section("Throughput", _throughput(facts)),
        _section("Who worked when", _timeline(facts)),
        _section("How long items took", _times(facts)),
        _section(f"Failures ({facts.failed:,})", _failures(facts)),
        _section("Sessions, retries and losses", _sessions(facts)),
        _section("What was run", _recorded(facts)),
        _section("What is not recorded", f"<p>{escape(_NOT_RECORDED)}</p>"),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def quantiles(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the median, the 90 % and the 99 % quantile of values, each with its share."""
    ordered = sorted(values)
    return [(share, ordered[min(len(ordered) - 1, int(share * len(ordered)))]) for share in _QUANTILES]


def _tiles(facts: RunFacts) -> str:
    last = facts.computed[-1] if facts.computed else None
    tiles = [
        (f"{facts.ok + facts.failed:,}", f"of {facts.items:,} items"),
        (f"{facts.failed:,}", "failed"),
        (facts.state, "the run is"),
    ]
    if last is not None:
        work = max(1e-9, last.figure("seconds") - last.figure("start_seconds"))
        tiles += [
            (duration(last.figure("seconds")), "last session"),
            (f"{last.figure('items') / work:,.3g}/s", "items while at work"),
            (f"{last.figure('busy_seconds') / max(1e-9, last.figure('slot_seconds')):.0%}", "workers busy"),
        ]
    if facts.times.memory:
        tiles.append((amount(facts.times.memory), "of memory, the largest worker"))
    cells = "".join(
        f"<div><strong>{escape(value)}</strong><span>{escape(name)}</span></div>" for value, name in tiles
    )
    return f'<section class="tiles" aria-label="Figures">{cells}</section>'


def _throughput(facts: RunFacts) -> str:
    if not facts.stretches:
        return "<p>No item has an outcome yet.</p>"
    rows = [
        (
            charts.clock(one.begin),
            charts.clock(one.end),
            f"{one.items:,}",
            _rate(one.items, one.end - one.begin),
        )
        for one in facts.stretches[:200]
    ]
    return (
        charts.throughput(binned(facts.stretches, facts.begin))
        + '<p class="dim">Items are spread evenly between two recorded moments.</p>'
        + _folded("As a table", _table(("from", "to", "items", "items/s"), rows))
    )


def _timeline(facts: RunFacts) -> str:
    rows, left = timeline.rows_of(facts)
    if not rows:
        return "<p>Nobody has worked on it yet.</p>"
    more = f'<p class="dim">{escape(left)}</p>' if left else ""
    used = {bar.kind for _, found in rows for bar in found}
    legend = "".join(
        f'<span><i class="{k}"></i>{name}</span>' for k, name in timeline.KINDS.items() if k in used
    )
    spoken = [(name, bar.title) for name, found in rows for bar in found]
    return f'<p class="legend" aria-hidden="true">{legend}</p>{charts.timeline(rows)}{more}' + _folded(
        "As a table", _table(("who", "what"), spoken)
    )


def _times(facts: RunFacts) -> str:
    parts = [latency.item_times(facts.times)]
    means = [
        (session.figure("busy_seconds") / session.figure("items"), int(session.figure("items")))
        for session in facts.computed
    ]
    if means and not parts[0]:
        items = sum(n for _, n in means)
        mean = sum(seconds * n for seconds, n in means) / items
        parts.append(
            f"<p>An item took <strong>{duration(mean)}</strong> on average, over {items:,} items.</p>"
        )
    shards = facts.shard_seconds()
    per_item = [seconds / n for seconds, _, n in shards]
    if len(per_item) >= 3:
        shown = ", ".join(f"{share:.0%}: {duration(value)}" for share, value in quantiles(per_item))
        parts.append(
            f"<p>Seconds per item, averaged over each of {len(per_item)} shards. Quantiles {shown}.</p>"
        )
        parts.append(charts.histogram(per_item))
        slow = [(name, seconds, f"{duration(seconds)}, {n:,} items") for seconds, name, n in shards[:10]]
        parts.append(f"<h3>Slowest shards</h3>{charts.bars(slow)}")
    if facts.slowest and not facts.times.slow:
        slow = [(f"item {index}", seconds, duration(seconds)) for seconds, index in facts.slowest[:10]]
        parts.append(f"<h3>Slowest of the failed items</h3>{charts.bars(slow)}")
    return "".join(parts) or "<p>No time is recorded yet.</p>"


def _failures(facts: RunFacts) -> str:
    if not facts.failures:
        return "<p>None.</p>"
    parts = []
    for group in facts.failures[:_MOST_GROUPS]:
        more = ", …" if group.count > len(group.indices) else ""
        trace = group.traceback
        if len(trace) > _MOST_TRACEBACK:
            trace = f"{trace[: _MOST_TRACEBACK // 2]}\n…\n{trace[-_MOST_TRACEBACK // 2 :]}"
        parts.append(
            f"<details><summary><strong>{group.count:,} x</strong> {escape(group.cause)}: "
            f"<code>{escape(group.error_type)}</code> {escape(group.message[:300])}</summary>"
            f"<p>Items {escape(', '.join(group.indices))}{more}; the first ran on {escape(group.worker)}; at most "
            f"{group.attempts} attempt{'s' if group.attempts > 1 else ''}.</p><pre>{escape(trace)}</pre></details>"
        )
    left = len(facts.failures) - _MOST_GROUPS
    return "".join(parts) + (f"<p>{left:,} more kinds are left out.</p>" if left > 0 else "")


def _sessions(facts: RunFacts) -> str:
    names = ("session", "began", "it", "had", "ran", "failed", "retries", "deaths", "ended")
    rows = []
    for number, one in enumerate(facts.sessions):
        ended = one.error or {"": "without a word"}.get(one.ended, one.ended)
        if not one.ended and facts.state == "at work" and one is facts.sessions[-1]:
            ended = "at work"
        rows.append(
            (
                str(number),
                charts.clock(one.begin),
                "resumed" if one.resumed else "started",
                f"{one.ok_before + one.failed_before:,}",
                *(f"{int(one.figure(name)):,}" for name in ("items", "failed", "retries", "deaths")),
                ended[:200],
            )
        )
    found = [_table(names, rows)]
    found += [
        f"<p>Session {number}: {escape(sentence)}</p>"
        for number, one in enumerate(facts.sessions)
        for sentence in one.repaired
    ]
    if facts.ends:
        unfinished = [
            (
                charts.clock(one.noticed) if one.noticed else "now",
                one.state.replace("_", " "),
                _numbers(one.shards),
                one.sentence,
            )
            for one in facts.ends
        ]
        found.append("<h3>Jobs that did not finish their shards</h3>")
        found.append(_table(("seen", "how", "shards", "which means"), unfinished))
    lost = [span for span in (*facts.drivers, *facts.shards) if span.ended == "died"]
    in_all = [
        (facts.retries, "time", "an item was tried again"),
        (facts.deaths, "process", "ended with items in progress, which were run again"),
        (len(lost), "process", "ended without giving back what it held"),
    ]
    said = [f"{counted(n, one)} {what}." for n, one, what in in_all if n]
    if said:
        found.append(f"<p>In all: {escape(' '.join(said))}</p>")
    if lost:
        rows_lost = [
            (s.name, s.host, str(s.pid), charts.clock(s.begin), charts.clock(s.end)) for s in lost[:50]
        ]
        found.append(_folded("Which", _table(("what", "host", "process", "from", "last sign"), rows_lost)))
    return "".join(found)


def _recorded(facts: RunFacts) -> str:
    said, origin = facts.recorded, facts.recorded.get("origin") or {}
    git = origin.get("git") or {}
    state = {"True": ", with changes that were not committed", "False": ", clean"}.get(
        str(git.get("dirty")), ""
    )
    rows = [
        ("runner", facts.runner),
        ("provider", facts.provider),
        ("indices", _short(said.get("indices"))),
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
    return (
        _table(("what", "value"), rows)
        + history
        + _folded("Configuration (secrets masked)", f"<pre>{escape(config)}</pre>")
    )


# --- pieces ---


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _inline(sentence: str) -> str:
    """Return a sentence as HTML; what stands between backticks is code."""
    parts = sentence.split("`")
    return "".join(f"<code>{escape(p)}</code>" if k % 2 else escape(p) for k, p in enumerate(parts))


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _numbers(values: Sequence[int]) -> str:
    """Return numbers as text, stretches of them by their ends."""
    parts: list[list[int]] = []
    for value in values:
        if parts and value == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], value]
        else:
            parts.append([value])
    shown = ", ".join("-".join(map(str, part)) for part in parts[:_MOST_GROUPS])
    return f"{shown}, …" if len(parts) > _MOST_GROUPS else shown


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 300 else f"{text[:300]}…"


def _rate(items: int, seconds: float) -> str:
    return f"{items / seconds:,.3g}" if seconds > 0 else ""
