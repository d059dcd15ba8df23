"""From measurements to medians, ranges and ratios."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.cases import COMPLETE, FAULT_SECONDS, Case, Figure
from benchmarks.rounds import Measurement

OURS = "ours"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one system in one case, over all rounds."""

    case: str  # name of the case
    figure: str  # key of the figure
    unit: str  # its unit
    lower_is_better: bool  # which way is better
    system: str  # name of the system
    n: int  # items of each run
    values: tuple[float, ...]  # one for each round that gave a figure
    median: float | None  # of the values; None where there are none
    low: float | None  # the least value
    high: float | None  # the greatest value
    ratio: float | None  # how many times better ours is, by the medians; below 1 the other is better
    status: str  # the worst status of all rounds
    outcome: str  # W6: what became of the run; for a run that hangs, where
    named: bool | None  # W6: whether the error named the poison item in every round
    note: str  # what else needs to be said


_BAD_FIRST = ("failed", "hangs", "not installed", "left out", "ok")


def summarise(cases: Sequence[Case], systems: Sequence[str], taken: Iterable[Measurement]) -> list[Row]:
    """Return a row for each figure of each case and each system, in the order of the table."""
    of: dict[tuple[str, str], list[Measurement]] = {}
    for m in taken:
        of.setdefault((m.case, m.system), []).append(m)
    rows = []
    for case in cases:
        for figure in case.figures:
            ours = _values(of.get((case.name, OURS), []), figure)
            ran = [(system, of[case.name, system]) for system in systems if (case.name, system) in of]
            rows += [_row(case, figure, system, found, ours) for system, found in ran]
    return rows


def _values(found: Sequence[Measurement], figure: Figure) -> list[float]:
    return [m.figures[figure.key] for m in found if m.status == "ok" and figure.key in m.figures]


def _row(case: Case, figure: Figure, system: str, found: Sequence[Measurement], ours: Sequence[float]) -> Row:
    values = _values(found, figure)
    worst = min(found, key=lambda m: _BAD_FIRST.index(m.status))
    middle = median(values) if values else None
    # W6: how soon a run that lost results gave up compares with nothing.
    whole = figure != FAULT_SECONDS or all(m.outcome == COMPLETE for m in found)
    return Row(
        case.name,
        figure.key,
        figure.unit,
        figure.lower_is_better,
        system,
        max(m.n for m in found),
        tuple(values),
        middle,
        min(values, default=None),
        max(values, default=None),
        better_by(figure, middle, median(ours)) if ours and whole and middle is not None else None,
        worst.status,
        ", ".join(sorted({m.outcome for m in found if m.outcome})),
        None if all(m.named is None for m in found) else all(m.named for m in found),
        _note(worst, found),
    )


def better_by(figure: Figure, theirs: float, ours: float) -> float | None:
    """Return how many times better ours is; None where one of them is nothing."""
    above, below = (theirs, ours) if figure.lower_is_better else (ours, theirs)
    return above / below if below > 0 else None


def _note(worst: Measurement, found: Sequence[Measurement]) -> str:
    parts = []
    if worst.status in ("failed", "hangs"):
        share = f"{sum(m.status == worst.status for m in found)} of {len(found)}"
        parts.append(f"{worst.status} ({share}): {_last_line(worst.detail) or worst.outcome}")
    elif worst.status == "not installed":
        parts.append(f"not installed: {worst.detail}")
    elif worst.status == "left out":
        parts.append(worst.detail)
    elif worst.detail:
        parts.append(worst.detail.split(":")[0])
    if left := max(m.left_behind for m in found):
        parts.append(f"{left} processes left behind")
    return ", ".join(parts)


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:100] if text.strip() else ""
