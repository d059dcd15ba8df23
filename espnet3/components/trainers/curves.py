"""The curves of a training as a page of HTML: a chart for each figure, of the training and the validation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from espnet3.parallel.views.charts import STYLE

_LEFT, _WIDTH, _TOP, _HEIGHT = 70.0, 800.0, 30.0, 230.0
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
    curves = {
        name: [(epoch["epoch"] + 1, epoch[name]) for epoch in epochs if epoch.get(name) is not None]
        for name in names
    }
    points = [point for curve in curves.values() for point in curve] or [(1, 0.0)]
    first, last = min(points)[0], max(points)[0]
    low, high = min(0.0, *(value for _, value in points)), max(value for _, value in points)
    across, up = _WIDTH / max(last - first, 1), _HEIGHT / ((high - low) or 1.0)
    drawn = []
    for value in (low + (high - low) * part / 4 for part in range(5)):
        y = _TOP + (high - value) * up
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(_text(_LEFT - 8, y + 4, f"{value:.3g}", "end"))
    drawn += [
        _text(_LEFT + (epoch - first) * across, _TOP + _HEIGHT + 18, f"epoch {epoch}", "middle")
        for epoch in sorted({first, (first + last) // 2, last})
    ]
    for at, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS.get(name.partition("/")[0], "#2f9e6e")
        drawn.append(_text(_LEFT + 200 * at, 14, name, "start", colour))
        places = [
            (
                _LEFT + (epoch - first) * across,
                _TOP + (high - value) * up,
                f"epoch {epoch}: {name} {value:.4g}",
            )
            for epoch, value in curve
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{escape(said)}</title></circle>'
            for x, y, said in places
        ]
    label = escape(f"{', '.join(names)} over {len(epochs)} epochs")
    return f'<div class="wide"><svg role="img" aria-label="{label}" viewBox="0 0 900 290">{"".join(drawn)}</svg></div>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "") -> str:
    style = f' style="fill:{colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'
