"""WER and CER against values counted by hand."""

from __future__ import annotations

import os
import random
from pathlib import Path

import jiwer
import pytest

from espnet3.components.metrics.cer import CER
from espnet3.components.metrics.error_rate import Edits, ErrorRate
from espnet3.components.metrics.wer import WER
from espnet3.parallel import set_parallel

REF = ["one", "two words", "the cat sat on the mat", "press star now please"]
HYP = ["", "two word", "the cat sat mat the hat", "press the star now please"]
# Words: 1 deleted; 1 substituted; on -> mat and mat -> hat substituted; 1 inserted.
DATA = {"utt_id": ["a", "b", "c", "d"], "ref": REF, "hyp": HYP}


def test_wer_counts_by_hand() -> None:
    """Deletions, substitutions and insertions add up to the counts made by hand."""
    result = WER()(DATA, "test", Path())
    assert (result["deletions"], result["substitutions"], result["insertions"]) == (1, 3, 1)
    assert (result["errors"], result["words"], result["utterances"], result["exact"]) == (5, 13, 4, 0)
    assert result["wer"] == pytest.approx(5 / 13)


def test_longer_utterances_are_reported_apart() -> None:
    """The groups hold the references of at least so many words, and nothing else."""
    groups = WER(min_words=(2, 5))(DATA, "test", Path())["min_words"]
    assert (groups["2"]["utterances"], groups["2"]["errors"], groups["2"]["words"]) == (3, 4, 12)
    assert (groups["5"]["utterances"], groups["5"]["errors"], groups["5"]["words"]) == (1, 2, 6)


def test_cer_counts_by_hand() -> None:
    """Characters count with the spaces between words: "ab cd" for "ab d" is one deletion of five."""
    result = CER()({"ref": ["ab cd", "xyz"], "hyp": ["ab d", "xyzz"]}, "test", Path())
    assert (result["deletions"], result["insertions"], result["characters"]) == (1, 1, 8)
    assert result["cer"] == pytest.approx(2 / 8)


@pytest.mark.parametrize("space", ["\t", "\u00a0", "\u3000", "\u2028", " \t "])
def test_any_white_space_separates_words(space: str) -> None:
    """Words behind a tab, a no-break or an ideographic space are words, and that space is one character."""
    data = {"ref": [f"a{space}b"], "hyp": ["a b"]}
    words = WER()(data, "test", Path())
    assert (words["wer"], words["words"], words["exact"]) == (0.0, 2, 1)
    characters = CER()(data, "test", Path())
    assert (characters["cer"], characters["characters"]) == (0.0, 3)


def test_accents_are_compared_as_written_or_in_one_form() -> None:
    """An accent in one character and in two differ, unless normalize names a form; another form is refused."""
    data = {"ref": ["caf\u00e9"], "hyp": ["cafe\u0301"]}
    assert WER()(data, "test", Path())["wer"] == 1.0
    assert WER(normalize="NFC")(data, "test", Path())["wer"] == 0.0
    assert CER(normalize="NFD")(data, "test", Path())["errors"] == 0
    with pytest.raises(ValueError, match="normalize = 'nfc': must be one of NFC, NFD, NFKC, NFKD, or None"):
        WER(normalize="nfc")


def test_a_group_without_words_has_no_rate() -> None:
    """No reference words give no rate (None), which is no perfect 0; words heard there are insertions."""
    result = WER(min_words=(5,))({"ref": ["a"], "hyp": ["a"]}, "test", Path())
    assert result["min_words"]["5"]["wer"] is None
    assert WER()({"ref": [], "hyp": []}, "test", Path())["wer"] is None
    result = WER()({"ref": ["", "a"], "hyp": ["x y", "a"]}, "test", Path())
    assert (result["insertions"], result["words"], result["wer"]) == (2, 1, 2.0)


def test_other_columns() -> None:
    """The columns' names are arguments; a missing one is named with those that are there."""
    metric = WER(ref_key="text", hyp_key="best")
    assert metric({"text": ["a"], "best": ["b"]}, "test", Path())["errors"] == 1
    with pytest.raises(KeyError, match=r"no column 'text' among \['hyp', 'ref'\]"):
        metric({"ref": ["a"], "hyp": ["b"]}, "test", Path())


@pytest.mark.parametrize("bad", [0, "2"])
def test_min_words_must_be_positive_numbers(bad: object) -> None:
    """A group of at least zero words, or of a word, is refused."""
    with pytest.raises(ValueError, match="is not a positive number of words"):
        WER(min_words=[bad])  # type: ignore[list-item]  # the mistake under test


@pytest.mark.parametrize("metric", [WER, CER])
def test_workers_count_the_same(metric: type[ErrorRate]) -> None:
    """Over two workers, part by part, and in this process the entries are equal, and they are jiwer's."""
    draw = random.Random(3)
    texts = [" ".join(draw.choices(["a", "bc", "def"], k=draw.randint(0, 8))) for _ in range(470)]
    data = {"utt_id": texts, "ref": texts, "hyp": texts[7:] + texts[:7]}
    alone = metric()(data, "test", Path())
    set_parallel({"env": "local", "n_workers": 2})
    assert metric()(data, "test", Path()) == alone
    assert alone["utterances"] == 470
    assert alone[metric.name] == pytest.approx(getattr(jiwer, metric.name)(data["ref"], data["hyp"]))


class Where(WER):
    def count(self, references: list[str], hypotheses: list[str]) -> Edits:
        with open("counted", "a") as file:
            file.write(f"{os.getpid()}\n")
        return super().count(references, hypotheses)


def test_the_workers_of_the_configuration_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two workers no pair is counted in this process."""
    monkeypatch.chdir(tmp_path)
    set_parallel({"env": "local", "n_workers": 2})
    texts = ["a b c"] * 1000
    assert Where(min_words=())({"ref": texts, "hyp": texts}, "test", Path())["exact"] == 1000
    counted = (tmp_path / "counted").read_text().split()
    assert len(counted) == 10 and str(os.getpid()) not in counted
