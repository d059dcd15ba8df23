"""What the recipe prints at the end: tables of error rates, and the demo's closing report."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH = 88


def percent(rate: float | None) -> str:
    """Return a rate for reading; a group without reference words has none."""
    return "-" if rate is None else f"{100 * rate:.1f} %"


def metrics_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one line per metric, test set and group of utterances."""
    rows = [("test set", "metric", "utterances", "rate", "errors", "of")]
    for path, test_sets in results.items():
        name = path.rpartition(".")[2]
        for test_set, whole in test_sets.items():
            groups = {"": whole, **{f"{n}+ words": group for n, group in whole["min_words"].items()}}
            for group, score in groups.items():
                unit = "words" if "words" in score else "characters"
                rate = percent(score[name.lower()])
                label = f"{score['utterances']} ({group})" if group else str(score["utterances"])
                rows.append((test_set, name, label, rate, str(score["errors"]), f"{score[unit]} {unit}"))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """What the demo measured.

    Attributes:
        source: What was decoded, in words.
        utterances: How many.
        failed: How many of them failed.
        audio: Seconds of audio.
        wall: Seconds it took, with the start of the workers.
        workers: How many there were.
        folder: Where the outputs are.
        wer: The WER entry of metrics.json, None without references.
        cer: The CER entry, None without references.
    """

    source: str
    utterances: int
    failed: int
    audio: float
    wall: float
    workers: int
    folder: Path
    wer: Mapping[str, Any] | None = None
    cer: Mapping[str, Any] | None = None


def demo_report(figures: DemoFigures, rows: Sequence[Mapping[str, str]]) -> str:
    """Return the closing report.

    Args:
        figures: The measured figures.
        rows: `utt_id`, `hyp` and, with references, `ref` of every utterance.
    """
    rule = "─" * WIDTH
    return "\n".join([rule, *_figures(figures), rule, *_lines(figures, rows), rule])


def _figures(figures: DemoFigures) -> Iterator[str]:
    failed = f", {figures.failed} of them failed (errors.jsonl)" if figures.failed else ""
    workers = "1 worker" if figures.workers == 1 else f"{figures.workers} workers"
    speed = figures.wall / figures.audio if figures.audio else 0.0
    yield f"  decoded     {figures.utterances} {figures.source}{failed}"
    yield f"  audio       {figures.audio:.1f} s"
    yield f"  wall time   {figures.wall:.1f} s with {workers} (real-time factor {speed:.3f})"
    for name, score, unit in (("WER", figures.wer, "words"), ("CER", figures.cer, "characters")):
        if score is not None:
            rate = percent(score[name.lower()])
            yield f"  {name}         {rate:<8} {score['errors']} errors in {score[unit]} {unit}"
    yield f"  outputs     {figures.folder}"


def _lines(figures: DemoFigures, rows: Sequence[Mapping[str, str]], most: int = 20) -> Iterator[str]:
    if figures.wer is None:
        for row in rows[:most]:
            yield from _wrapped(f"{row['utt_id']}:", row["hyp"] or "(no words found)")
        if len(rows) > most:
            yield f"  ... and {len(rows) - most} more in {figures.folder / 'hyp.scp'}"
        return
    for number, row in enumerate(_examples(rows)):
        if number:
            yield ""
        yield f"  {row['utt_id']}"
        yield from _wrapped("  ref", row["ref"])
        yield from _wrapped("  hyp", row["hyp"] or "(no words found)")


def _examples(rows: Sequence[Mapping[str, str]], count: int = 3) -> list[Mapping[str, str]]:
    """Choose examples by place, not by how well they went, among those that fit on a line."""
    short = [row for row in rows if len(row["ref"]) <= WIDTH - 12] or list(rows)
    return [short[(2 * k + 1) * len(short) // (2 * count)] for k in range(min(count, len(short)))]


def _wrapped(label: str, text: str) -> list[str]:
    start = f"  {label}  "
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * min(len(start), 12))
