"""Charts as inline SVG: no script, colours from the page's style sheet, each with a name for screen readers."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 860, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 26
_ROW = 18
_LETTER = 6.5  # width of one, of those that are wide
_CLOCK = 75  # width of a clock's time and the next number beside it
_NAME = 96  # width of the names of a timeline's rows


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a timeline's row: in seconds, with a style class and what a pointer is told."""

    begin: float
    end: float
    kind: str
    title: str


def throughput(points: Sequence[tuple[float, float]]) -> str:
    """Draw items per second over time."""
    begin, end = points[0][0], points[-1][0]
    most = nice(max(rate for _, rate in points))
    x, y = _scale(begin, end, _LEFT, WIDTH - _RIGHT), _scale(0, most, HEIGHT - _BOTTOM, _TOP)
    path = [f"M{x(begin):.1f} {y(0):.1f}"]
    for at, (when, rate) in enumerate(points[:-1]):
        path.append(f"V{y(rate):.1f}H{x(points[at + 1][0]):.1f}")
        del when
    path.append(f"V{y(0):.1f}Z")
    body = [
        *_levels(most, y, "/s"),
        f'<path class="area" d="{"".join(path)}"/>',
        *_clock(begin, end, x, HEIGHT),
    ]
    return _svg(body, HEIGHT, f"Items per second from {clock(begin)} to {clock(end)}, at most {most:,.3g}")


def timeline(rows: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """Draw who worked when: a row for each worker, session or shard, with its stretches."""
    begin = min(bar.begin for _, bars in rows for bar in bars)
    end = max(*(bar.end for _, bars in rows for bar in bars), begin + 0.001)
    x = _scale(begin, end, _NAME, WIDTH - _RIGHT)
    height = _TOP + _ROW * len(rows) + _BOTTOM
    body = []
    for place, (name, bars) in enumerate(rows):
        top = _TOP + place * _ROW
        body.append(f'<text x="{_NAME - 8}" y="{top + 12}" class="end">{escape(name)}</text>')
        for bar in bars:
            width = max(1.5, x(bar.end) - x(bar.begin))
            body.append(
                f'<rect class="{bar.kind}" x="{x(bar.begin):.1f}" y="{top + 2}" width="{width:.1f}" '
                f'height="{_ROW - 5}" rx="2"><title>{escape(bar.title)}</title></rect>'
            )
    body += _clock(begin, end, x, height)
    return _svg(body, height, f"Timeline of {len(rows)} rows from {clock(begin)} to {clock(end)}")


def histogram(values: Sequence[float]) -> str:
    """Draw how often lengths of time occur; over a logarithmic axis where they span more than a factor of thirty."""
    low, high = min(values), max(values)
    logarithmic = low > 0 and high / low > 30
    bins = max(5, min(30, math.ceil(math.sqrt(len(values))) * 2))
    edges = _edges(low, high if high > low else low * 1.5 + 1e-9, bins, logarithmic)
    counts = [0] * bins
    for value in values:
        place = next((k for k in range(bins) if value <= edges[k + 1]), bins - 1)
        counts[place] += 1
    return columns(list(zip(edges, edges[1:], counts, strict=False)), "times")


def columns(found: Sequence[tuple[float, float, int]], what: str) -> str:
    """Draw a histogram of lengths of time."""
    bins, most = len(found), nice(max(count for _, _, count in found))
    most += most % 2 if most < 10 else 0  # there is no half of an item
    y, step = _scale(0, most, HEIGHT - _BOTTOM, _TOP), (WIDTH - _LEFT - _RIGHT) / bins
    body = _levels(most, y, "")
    for k, (begin, end, count) in enumerate(found):
        if count:
            title = f"{count:,} from {duration(begin)} to {duration(end)}"
            body.append(
                f'<rect class="work" x="{_LEFT + k * step + 1:.1f}" y="{y(count):.1f}" width="{step - 2:.1f}" '
                f'height="{max(1.0, y(0) - y(count)):.1f}"><title>{title}</title></rect>'
            )
    edges = [begin for begin, _, _ in found] + [found[-1][1]]
    for k in range(0, bins + 1, max(1, bins // 6)):
        where = "end" if k == bins else "middle"
        at = f'x="{_LEFT + k * step:.1f}" y="{HEIGHT - 8}"'
        body.append(f'<text {at} class="{where}">{duration(edges[k])}</text>')
    n = sum(count for _, _, count in found)
    return _svg(body, HEIGHT, f"Histogram of {n:,} {what} from {duration(edges[0])} to {duration(edges[-1])}")


def scatter(points: Sequence[tuple[float, float]], across: str, up: str) -> str:
    """Draw points; both axes begin at 0, and are named."""
    right, top = nice(max(x for x, _ in points)), nice(max(y for _, y in points))
    x, y = _scale(0, right, _LEFT, WIDTH - _RIGHT), _scale(0, top, HEIGHT - _BOTTOM, _TOP)
    body = _levels(top, y, f" {up}")
    body += [f'<circle class="point" cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.5"/>' for a, b in points]
    for k in range(5):
        where = {0: "", 4: "end"}.get(k, "middle")
        shown = f"{across} 0" if k == 0 else f"{right * k / 4:.4g}"
        body.append(f'<text x="{x(right * k / 4):.1f}" y="{HEIGHT - 8}" class="{where}">{shown}</text>')
    return _svg(body, HEIGHT, f"{len(points):,} items: time ({up}) against {across}")


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Draw one bar for each row: its name, its value, and the value as it is shown."""
    most = max(value for _, value, _ in rows) or 1.0
    height, left = _TOP + _ROW * len(rows) + 4, 160
    room = _LETTER * max(len(shown) for _, _, shown in rows)  # behind the longest bar
    body = []
    for place, (name, value, shown) in enumerate(rows):
        top, width = _TOP + place * _ROW, max(1.5, value / most * (WIDTH - left - 12 - room))
        body.append(f'<text x="{left - 8}" y="{top + 12}" class="end">{escape(name[:24])}</text>')
        body.append(
            f'<rect class="work" x="{left}" y="{top + 2}" width="{width:.1f}" height="{_ROW - 5}" rx="2"/>'
        )
        body.append(f'<text x="{left + width + 6:.1f}" y="{top + 12}">{escape(shown)}</text>')
    return _svg(body, height, "; ".join(f"{name}: {shown}" for name, _, shown in rows))


def clock(when: float, *, date: bool = True) -> str:
    """Return a moment as text, in UTC."""
    text = datetime.datetime.fromtimestamp(when, datetime.timezone.utc)
    return text.strftime("%Y-%m-%d %H:%M:%S UTC" if date else "%H:%M:%S")


def duration(seconds: float) -> str:
    """Return a length of time, to two or three digits."""
    if seconds < 0.1:
        number, unit = (1e3 * seconds, "ms") if seconds >= 1e-3 else (1e6 * seconds, "µs")
        return f"{number:.2g} {unit}" if number < 10 else f"{number:.0f} {unit}"
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def amount(n_bytes: int) -> str:
    """Return an amount of memory, to about two digits."""
    return f"{n_bytes / 2**20:,.0f} MiB" if n_bytes < 2**30 else f"{n_bytes / 2**30:,.1f} GiB"


def nice(value: float) -> float:
    """Return the next of 1, 2, 3, 4, 5, 6, 8 and 10 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        factor * power for factor in (1, 2, 3, 4, 5, 6, 8, 10) if factor * power >= value * (1 - 1e-9)
    )


def _edges(low: float, high: float, bins: int, logarithmic: bool) -> list[float]:
    if logarithmic:
        ratio = (high / low) ** (1 / bins)
        return [low * ratio**k for k in range(bins)] + [high]
    return [low + (high - low) * k / bins for k in range(bins)] + [high]


class _scale:  # noqa: N801  called like the function it stands for
    """Maps values to places, linearly."""

    __slots__ = ("_begin", "_factor", "_low")

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._begin = low, start
        self._factor = (end - start) / (high - low) if high > low else 0.0

    def __call__(self, value: float) -> float:
        return self._begin + (value - self._low) * self._factor


def _levels(most: float, y: _scale, unit: str) -> list[str]:
    body = []
    for k in range(3):
        value = most * k / 2
        body.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        body.append(
            f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" class="end">{value:,.4g}{unit if value else ""}</text>'
        )
    return body


def _clock(begin: float, end: float, x: _scale, height: float) -> list[str]:
    """Draw the axis of a time: when it begins, and round numbers of seconds, minutes or hours since then."""
    long = end - begin
    unit, seconds = ("s", 1.0) if long < 300 else ("min", 60.0) if long < 36_000 else ("h", 3600.0)
    step = nice(long / seconds / 6)
    body = [f'<text x="{x(begin):.1f}" y="{height - 8}">{clock(begin, date=False)}</text>']
    for k in range(1, int(long / seconds / step) + 1):
        place = x(begin + k * step * seconds)
        where = "end" if place > WIDTH - _RIGHT - 30 else "middle"
        if place > x(begin) + _CLOCK:
            body.append(
                f'<text x="{place:.1f}" y="{height - 8}" class="{where}">+{k * step:,.4g} {unit}</text>'
            )
    return body


def _svg(body: Sequence[str], height: float, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="xMinYMin">{"".join(body)}</svg>'
    )
