"""The picture of `espnet3-parallel watch` on a terminal, by rich: at 80 columns as at 200."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from espnet3.parallel.messages import duration, printable
from espnet3.parallel.views.charts import amount
from espnet3.parallel.views.live import LiveFacts, Worker
from espnet3_parallel.runs import counts_of, pace, plain_line, state_of

_COLOURS = {"running": "cyan", "pending": "yellow", "done": "green", "new": "dim", "not_started": "dim"}
_LONG = ("in", "where")  # columns
_FRAME = 9  # lines beside those of workers and failures
_FEW = 3  # failures and slow items that are shown


def drawn(found: Sequence[LiveFacts], folder: Path, now: float, height: int = 25) -> RenderableType:
    """Return the picture of one run, or a line and a bar for each of several in a folder."""
    hint = _text("q leaves, and the run goes on" if any(f.status.alive for f in found) else "", style="dim")
    if len(found) == 1:
        return Group(*_one(found[0], now, height), hint)
    lines = [part for facts in found for part in (_text(plain_line(facts, folder), cut=True), _bar(facts))]
    return Group(*lines, hint)


def _one(facts: LiveFacts, now: float, height: int) -> list[RenderableType]:
    status = facts.status
    head = Text.assemble(_text(Path(status.run).name, style="bold"), "  ", (state_of(facts), _colour(facts)))
    head.append(_text(f"  {Path(status.run).parent}", style="dim"))
    head.no_wrap = True
    counts = _text(f"{counts_of(status)}{pace(facts.rate, facts.seconds_left)}")
    if facts.memory:
        counts.append(f", {amount(facts.memory)} on this machine", style="dim")
    lines: list[RenderableType] = [head, _bar(facts), counts, Text()]
    if facts.workers:
        lines += [_workers(facts.workers, now, max(4, height - _FRAME - 2 * _FEW)), Text()]
    for group in facts.failures[:_FEW]:
        lines.append(_text(f"{group.cause}: {group.count:,} x {group.text}", style="red", cut=True))
    if len(facts.failures) > _FEW:
        lines.append(_text(f"… {len(facts.failures) - _FEW} more kinds of failures", style="red"))
    if facts.slow:
        slow = ", ".join(f"{name} ({duration(seconds)})" for seconds, name in facts.slow[:_FEW])
        lines.append(_text(f"slowest seen: {slow}", style="dim"))
    lines += [_text(f"note: {note}", style="yellow") for note in status.notes]
    return lines


def _bar(facts: LiveFacts) -> RenderableType:
    status = facts.status
    total, done, colour = max(1, status.items), status.ok + status.failed, _colour(facts)
    bar = ProgressBar(total, done, complete_style=colour, finished_style=colour)
    return Padding(bar, 0)  # padded: a bar by itself does not end its line


def _colour(facts: LiveFacts) -> str:
    return {"at work": "cyan", "complete": "green"}.get(state_of(facts), "yellow")


def _workers(workers: Sequence[Worker], now: float, room: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("worker", "state", "done", "in", "for", "memory", "where"):
        justify: JustifyMethod = "right" if name in ("done", "memory") else "left"
        # where room is short, only long texts are cut
        table.add_column(name, no_wrap=name not in _LONG, justify=justify)
    shown = workers if len(workers) <= room else workers[: room - 1]
    for worker in shown:
        peak = f"≤ {amount(worker.peak)}" if worker.peak else ""
        table.add_row(
            _text(worker.name),
            _text(worker.state.replace("_", " "), style=_COLOURS.get(worker.state, "red")),
            f"{worker.done:,}/{worker.items:,}" if worker.items else f"{worker.done:,}",
            _text(worker.doing or worker.note, cut=True),
            duration(max(0.0, now - worker.since)) if worker.since else "",
            amount(worker.memory) if worker.memory else peak,
            _text(worker.where, cut=True),
        )
    if len(shown) < len(workers):
        table.add_row(f"… {len(workers) - len(shown):,} more")
    return table


def _text(text: str, style: str = "", *, cut: bool = False) -> Text:
    return Text(printable(text), style, no_wrap=cut or None, overflow="ellipsis" if cut else None)
