"""Charts as inline SVG, with the page's style sheet, and how moments, lengths of time and memory are written.

Places across are percent of the width, so that a chart needs no script to fit any. Each has a name for screen readers.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from espnet3.parallel.messages import duration

_HEIGHT, _TOP, _ROW = 150, 18, 18  # pixels


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a row, with a style class and the text under a pointer."""

    begin: float
    end: float
    kind: str
    title: str


def columns(found: Sequence[tuple[float, str]], top: str, scale: Sequence[str], label: str) -> str:
    """Draw columns of a height and a title, with the name `top` of the highest and texts below at equal distances."""
    most = max(height for height, _ in found) or 1.0
    width = 100 / len(found)
    body = [_text(0, 12, top)]
    for place, (height, title) in enumerate(found):
        if height:
            tall = max(1.0, height / most * _HEIGHT)
            body.append(_rect("work", place * width, width * 0.94, _TOP + _HEIGHT - tall, tall, title))
    return _svg(body, scale, _HEIGHT, label)


def rows(found: Sequence[tuple[str, Sequence[Bar]]], begin: float, end: float, label: str) -> str:
    """Draw a row for each name, with its bars; the name stands beside it, and above it where there is no room."""
    percent = 100 / max(end - begin, 1e-9)
    lines = []
    for name, bars in found:
        places = [((bar.begin - begin) * percent, max(0.2, (bar.end - bar.begin) * percent)) for bar in bars]
        drawn = [_rect(bar.kind, *at, 2, _ROW - 5, bar.title) for bar, at in zip(bars, places, strict=True)]
        svg = f'<svg role="img" aria-label="{escape(name)}" height="{_ROW}">{"".join(drawn)}</svg>'
        lines.append((name, svg))
    lines.append(("", _svg([], moments(begin, end), 0, label, 0)))
    return "".join(f'<div class="row"><span>{escape(name)}</span>{drawn}</div>' for name, drawn in lines)


def moments(begin: float, end: float) -> list[str]:
    """Return a scale of a time: when it begins, and lengths of time since then."""
    return [clock(begin, date=False), *(f"+{duration((end - begin) * part / 4)}" for part in range(1, 5))]


def clock(when: float, *, date: bool = True) -> str:
    """Return a moment as text, in UTC."""
    text = datetime.datetime.fromtimestamp(when, datetime.timezone.utc)
    return text.strftime("%Y-%m-%d %H:%M:%S UTC" if date else "%H:%M:%S")


def amount(n_bytes: int) -> str:
    """Return an amount of memory, to about two digits."""
    return f"{n_bytes / 2**20:,.0f} MiB" if n_bytes < 2**30 else f"{n_bytes / 2**30:,.1f} GiB"


def _rect(kind: str, left: float, width: float, top: float, height: float, title: str) -> str:
    place = f'x="{left:.2f}%" width="{width:.2f}%" y="{top:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {place}><title>{escape(title)}</title></rect>'


def _text(left: float, top: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{left:.2f}%" y="{top:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(body: Sequence[str], scale: Sequence[str], height: float, label: str, top: int = _TOP) -> str:
    bottom = top + height
    line = f'<line class="grid" x1="0%" x2="100%" y1="{bottom}" y2="{bottom}"/>'
    under = []
    for place, text in enumerate(scale):
        anchor = "start" if place == 0 else "end" if place == len(scale) - 1 else "middle"
        under.append(_text(100 * place / (len(scale) - 1), bottom + 16, text, anchor))
    return f'<svg role="img" aria-label="{escape(label)}" height="{bottom + 22}">{"".join([*body, line, *under])}</svg>'


STYLE = """
:root{--fg:#1c2128;--bg:#fff;--dim:#59636e;--line:#d5dbe1;--card:#f5f7f9;--work:#2f6fb3;--launch:#b9a3d9;--env:#d99a2b;
--idle:#c9d1d9;--alive:#2f9e6e;--lost:#c93c37}
@media (prefers-color-scheme:dark){:root{--fg:#e2e7ec;--bg:#14181d;--dim:#9aa5b1;--line:#323a43;--card:#1d232a;
--work:#5b9be0;--launch:#8f7bb5;--env:#d9a441;--idle:#4b5661;--alive:#4cbf8c;--lost:#e5645e}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:920px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--line)}
h3{font-size:.95rem;margin:1rem 0 .3rem}
p{margin:.5rem 0}.dim{color:var(--dim);font-size:.88rem;overflow-wrap:anywhere}
.note{border-left:3px solid var(--env);padding-left:10px}
.conclusions{background:var(--card);border-radius:8px;padding:14px 16px 14px 36px;margin:16px 0}
.conclusions li{margin:.3rem 0}
code,pre{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace}code{overflow-wrap:anywhere}
pre{background:var(--card);border-radius:6px;padding:10px;overflow-x:auto}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(105px,1fr));gap:10px}
.tiles div{background:var(--card);border-radius:8px;padding:10px 12px;display:flex;flex-direction:column}
.tiles strong{font-size:1.15rem}.tiles span{color:var(--dim);font-size:.85rem}
.wide{overflow-x:auto}.wide table{min-width:34rem}
.row{display:grid;grid-template-columns:10rem 1fr;gap:0 8px;color:var(--dim);font-size:.8rem}
.row span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;text-align:right}
svg{width:100%;display:block}svg text{fill:var(--dim);font:12px system-ui,sans-serif}
.grid{stroke:var(--line);stroke-width:1}
.work{fill:var(--work);background:var(--work)}.launch{fill:var(--launch);background:var(--launch)}
.env{fill:var(--env);background:var(--env)}.idle{fill:var(--idle);background:var(--idle)}
.alive{fill:var(--alive);background:var(--alive)}.lost{fill:var(--lost);background:var(--lost)}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.85rem;color:var(--dim)}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px}
table{border-collapse:collapse;width:100%;font-size:.88rem}
th{text-align:left;white-space:nowrap;color:var(--dim);font-weight:600}
th,td{padding:4px 10px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
td:first-child{white-space:nowrap}td:last-child{overflow-wrap:anywhere}
details{margin:.4rem 0}summary{cursor:pointer}summary:focus-visible{outline:2px solid var(--work);outline-offset:2px}
@media (max-width:600px){svg text{font-size:13px}.row{display:block}.row span{display:block;text-align:left}}
"""
