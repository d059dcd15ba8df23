"""The summary as text: a table for each figure, and one with the medians of all."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from benchmarks.cases import Case
from benchmarks.summary import Row
from benchmarks.systems import load


def number(value: float | None) -> str:
    """Write a number with three digits that count."""
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if value == 0:
        return "0"
    digits = 2 if abs(value) >= 1 else 3
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else digits}f}"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], text: Collection[int] = (0,)) -> str:
    """Return an aligned Markdown table; the columns in `text` are set to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        pairs = enumerate(zip(cells, widths, strict=True))
        return f"| {' | '.join(c.ljust(w) if i in text else c.rjust(w) for i, (c, w) in pairs)} |"

    rule = "|".join("-" * (w + 2) if i in text else "-" * (w + 1) + ":" for i, w in enumerate(widths))
    return "\n".join([line(head), f"|{rule}|", *map(line, rows)])


def details(cases: Sequence[Case], rows: Sequence[Row]) -> str:
    """Return a table for each case: median, range and ratio of each figure, and what became of W6's runs."""
    blocks = []
    for case in cases:
        mine = [r for r in rows if r.case == case.name]
        text = f"{case.name}: {case.title}\n\n{_table(case, [r for r in mine if r.status != 'left out'])}\n"
        reasons = {f"{r.system} ({r.note})": r for r in mine if r.status == "left out"}
        blocks.append(text + (f"\nLeft out: {'; '.join(reasons)}.\n" if reasons else ""))
    return "\n".join(blocks)


def _table(case: Case, rows: Sequence[Row]) -> str:
    head, body = ["system", "items"], []
    for figure in case.figures:
        better = "less" if figure.lower_is_better else "more"
        head += [f"{figure.unit} ({better} is better)", "min .. max", "ours better x"]
    for system in dict.fromkeys(r.system for r in rows):
        own = {r.figure: r for r in rows if r.system == system}
        first = next(iter(own.values()))
        cells = [load(system).title, f"{first.n:,}" if first.n else ""]
        for figure in case.figures:
            r = own[figure.key]
            spread = f"{number(r.low)} .. {number(r.high)}" if r.values else ""
            cells += [number(r.median), spread, number(r.ratio)]
        named = {None: "", True: ", names the item", False: ", names no item"}[first.named]
        body.append([*cells, first.outcome + named, first.note])
    return grid([*head, "outcome", "note"], body, text=(0, len(head), len(head) + 1))
