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
    """Return a table for each figure: median, range, ratio; for W6 one for each fault."""
    blocks = []
    for case in cases:
        mine = [r for r in rows if r.case == case.name]
        if case.measure == "faults":
            blocks.append(f"{case.name}: {case.title}\n\n{_faults(mine)}\n")
            continue
        for figure in case.figures:
            better = "less" if figure.lower_is_better else "more"
            table = _figure([r for r in mine if r.figure == figure.key])
            blocks.append(f"{case.name}: {case.title}: {figure.unit} ({better} is better)\n\n{table}\n")
    return "\n".join(blocks)


def _figure(rows: Sequence[Row]) -> str:
    head = ["system", "items", "median", "min .. max", "ours better x", "note"]
    body = []
    for r in rows:
        if r.status != "left out":
            n = f"{r.n:,}" if r.values else ""
            body.append([load(r.system).title, n, number(r.median), _range(r), number(r.ratio), r.note])
    return grid(head, body, text=(0, 5)) + _left_out(rows)


def _faults(rows: Sequence[Row]) -> str:
    head = ["system", "items", "outcome", "right", "poison named", "s", "min .. max", "ours better x", "note"]
    seconds = {r.system: r for r in rows if r.figure == "seconds"}
    results = [r for r in rows if r.figure == "results"]
    body = []
    for r in results:
        if r.status != "left out":
            s = seconds[r.system]
            named = {None: "", True: "yes", False: "no"}[r.named]
            figures = [number(r.median), named, number(s.median), _range(s), number(s.ratio)]
            body.append([load(r.system).title, f"{r.n:,}" if r.n else "", r.outcome, *figures, r.note])
    return grid(head, body, text=(0, 2, 8)) + _left_out(results)


def _left_out(rows: Sequence[Row]) -> str:
    reasons = [f"{r.system} ({r.note})" for r in rows if r.status == "left out"]
    return f"\n\nLeft out: {'; '.join(reasons)}." if reasons else ""


def _range(row: Row) -> str:
    return f"{number(row.low)} .. {number(row.high)}" if row.values else ""


def overview(cases: Sequence[Case], systems: Sequence[str], rows: Sequence[Row]) -> str:
    """Return tables of medians with a row for each system: speed, and how it starts, stops and fails."""
    speed = [c for c in cases if c.measure in ("rate", "efficiency", "bandwidth")]
    rest = [c for c in cases if c not in speed]
    return "\n\n".join(_medians(group, systems, rows) for group in (speed, rest) if group)


def _medians(cases: Sequence[Case], systems: Sequence[str], rows: Sequence[Row]) -> str:
    columns = [(c, f) for c in cases for f in c.figures if f.key != "results"]
    found = {(r.case, r.figure, r.system): r for r in rows}
    head = ["medians", *(f"{c.name} {_SHORT.get(f.key, f.key)}" for c, f in columns)]
    body = [[name, *(_cell(c, found.get((c.name, f.key, name))) for c, f in columns)] for name in systems]
    return grid(head, body)


_SHORT = {
    "us_per_item": "µs",
    "driver_bytes_per_item": "B",
    "efficiency": "eff",
    "mb_per_s": "MB/s",
    "first_result_s": "first",
    "close_s": "close",
    "exit_s": "exit",
    "seconds": "s",
    "again_percent": "% again",
    "restart_s": "s again",
}


def _cell(case: Case, row: Row | None) -> str:
    if row is None or row.status == "left out":
        return ""
    if not row.values:
        return row.status
    outcome = f"{row.outcome} " if case.measure == "faults" else ""
    return outcome + number(row.median)
