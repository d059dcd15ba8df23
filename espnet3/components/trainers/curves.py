"""The curves of a training as a page of HTML: a chart for each figure, of the training and the validation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from espnet3.parallel.views.charts import STYLE

_WIDTH, _HEIGHT = 800.0, 230.0
_COLOURS = {"train": "#2f6fb3", "valid": "#d9722b"}


def page_of_epochs(epochs: Sequence[Mapping[str, Any]], title: str) -> str:
    """Return the page for the lines of `epochs.jsonl`; what is not finite, null there, is left out of its curve."""
    charts: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for epoch in epochs for name in epoch if name != "epoch"):
        charts.setdefault(name.removeprefix("train/").removeprefix("valid/"), []).append(name)
    order = sorted(charts, key=lambda name: (name != "loss", name))
    body = "".join(f"<h2>{escape(name)}</h2>{_chart(epochs, charts[name])}" for name in order)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def _chart(epochs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    values = [epoch[name] for epoch in epochs for name in names if epoch.get(name) is not None] or [0.0]
    low, high = min(0.0, *values), max(values)
    first, last = epochs[0]["epoch"] + 1, epochs[-1]["epoch"] + 1
    across, up = _WIDTH / max(last - first, 1), _HEIGHT / ((high - low) or 1.0)
    drawn = []
    for value in (low, (low + high) / 2, high):
        y = (high - value) * up
        drawn.append(f'<line class="grid" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for at, name in enumerate(names):
        colour = _COLOURS.get(name.partition("/")[0], "#2f9e6e")
        line = []
        for epoch in epochs:
            if (value := epoch.get(name)) is None:
                continue
            number = epoch["epoch"] + 1
            x, y = (number - first) * across, (high - value) * up
            line.append(f"{x:.1f},{y:.1f}")
            said = f"epoch {number}: {escape(name)} {value:.4g}"
            drawn.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{said}</title></circle>'
            )
        drawn.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn.append(f'<text x="{200 * at}" y="-12" style="fill:{colour}">{escape(name)}</text>')
    drawn.append(f'<text y="{_HEIGHT + 18}">epochs {first} to {last}</text>')
    label = escape(f"{', '.join(names)} over {len(epochs)} epochs")
    frame = f'<svg role="img" aria-label="{label}" viewBox="-70 -30 900 290">'
    return f'<div class="wide">{frame}{"".join(drawn)}</svg></div>'
