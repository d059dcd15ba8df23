"""The stage compare: counts by jiwer for each utterance, a table, and a plot."""

from pathlib import Path

import pytest

from espnet3.parallel import parallel_map, set_parallel
from src.comparison import Counts, comparison_table, count, plot, rate
from tests.components.needed import needed


def test_the_counts_of_workers_are_those_of_jiwer() -> None:
    """Edits counted over two workers add up to the rates that jiwer gives for the whole."""
    import jiwer

    references = ["please hold", "press one", "goodbye", "you have five new messages"]
    hypotheses = ["please old", "press", "good bye", "you have five new messages now"]
    set_parallel({"env": "local", "n_workers": 2})
    pairs = list(zip(references, hypotheses, strict=True))
    found = [Counts(**each) for each in parallel_map(count, pairs)]
    assert rate(found, "word_errors", "words") == pytest.approx(jiwer.wer(references, hypotheses))
    assert rate(found, "character_errors", "characters") == pytest.approx(jiwer.cer(references, hypotheses))


def test_the_table_has_a_line_for_each_model_and_group() -> None:
    """Rates are of all utterances and of the longer ones; a group without utterances has none."""
    counts = {"a": [Counts(1, 1, 4, 2), Counts(3, 0, 12, 1)], "b": [Counts(1, 0, 4, 0)]}
    assert comparison_table(counts).splitlines() == [
        "model  utterances    WER     CER",
        "a      2             25.0 %  18.8 %",
        "a      1 (2+ words)  0.0 %   8.3 %",
        "a      0 (5+ words)  -       -",
        "b      1             0.0 %   0.0 %",
        "b      0 (2+ words)  -       -",
        "b      0 (5+ words)  -       -",
    ]


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    """The plot is a PNG file of a readable size, also where an utterance has more errors than characters."""
    needed("matplotlib")
    counts = {"a": [Counts(n, 1, 5 * n, n) for n in range(1, 20)], "b": [Counts(1, 3, 3, 9)] * 2}
    plot(counts, tmp_path / "plot.png")
    content = (tmp_path / "plot.png").read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 10_000
