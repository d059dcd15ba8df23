"""How long items took, drawn: quantiles, histogram, the slowest, time against cost."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from espnet3.parallel.timing.counts import PER_OCTAVE, edge_of
from espnet3.parallel.timing.reading import RunTimes
from espnet3.parallel.views import charts
from espnet3.parallel.views.charts import duration

_COLUMNS = 40  # of the histogram, at most
_MOST_POINTS = 2000
_SHOWN = 10
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_HOW = (
    '<p class="dim">Items of less than some milliseconds are timed in steps of several, and those of a batch '
    "together: each counts with the mean. An item that was tried again counts with all its attempts.</p>"
)


def item_times(times: RunTimes) -> str:
    """Return quantiles, histogram, slowest items and time against cost; "" where no time is recorded."""
    if not times.items:
        return ""
    shown = ", ".join(f"{share:.4g}% took at most {duration(value)}" for share, value in shares_of(times))
    mean = f"<strong>{duration(times.busy / times.items)}</strong> on average" if times.busy else ""
    parts = [
        f"<p>An item took {mean}, over {times.items:,} items: {shown}.</p>",
        charts.columns(columns_of(times.counts), "items"),
        _HOW,
    ]
    if times.slow:
        slow = [(f"item {name}", seconds, duration(seconds)) for seconds, _, name in times.slow[:_SHOWN]]
        parts.append(f"<h3>Slowest items</h3>{charts.bars(slow)}")
    if len(times.costs) > 1:
        points = times.costs[:: max(1, len(times.costs) // _MOST_POINTS)]
        drawn = charts.scatter([(cost, seconds) for seconds, cost in points], "item_cost", "s")
        parts.append(f"<h3>Time against cost</h3>{drawn}<p>{escape(cost_says(times))}</p>")
    return "".join(parts)


def shares_of(times: RunTimes) -> list[tuple[float, float]]:
    """Return quantiles of the items' seconds, each with its share in percent; no finer than there are items."""
    found = times.quantiles([share for share in _QUANTILES if times.items * (1 - share) >= 1] or [0.5])
    return [(100 * share, value) for share, value in found]


def columns_of(counts: dict[int, int]) -> list[tuple[float, float, int]]:
    """Return a histogram's columns: where each begins and ends, in seconds, and how many items it has."""
    first, last = min(counts), max(counts)
    width = max(1, -(-(last - first + 1) // _COLUMNS))
    if width > 1:
        width = max(width, PER_OCTAVE // 4)
    found = []
    for begin in range(first, last + 1, width):
        n = sum(counts.get(number, 0) for number in range(begin, begin + width))
        found.append((edge_of(begin), edge_of(begin + width), n))
    return found


def cost_says(times: RunTimes) -> str:
    """Return what the sample says of `item_cost`: how well its order agrees with that of the seconds."""
    agreement = rank_correlation(times.costs)
    n = f"over {len(times.costs):,} sampled items"
    if agreement is None:
        return f"All items of the sample have the same cost or took the same time ({n})."
    how = "well" if agreement > 0.7 else "somewhat" if agreement > 0.3 else "hardly"
    return f"Cost and time agree {how}: their rank correlation is {agreement:.2f} {n}."


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's rank correlation (1904), ties with their mean rank; None where one side is constant."""
    first, second = _ranks([a for a, _ in pairs]), _ranks([b for _, b in pairs])
    mean = (len(pairs) - 1) / 2
    product = sum((a - mean) * (b - mean) for a, b in zip(first, second, strict=True))
    squares = sum((a - mean) ** 2 for a in first) * sum((b - mean) ** 2 for b in second)
    return float(product / squares**0.5) if squares else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, at = [0.0] * len(values), 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for k in range(at, end + 1):
            ranks[order[k]] = (at + end) / 2
        at = end + 1
    return ranks
