"""WER and CER against values counted by hand."""

import random
from pathlib import Path

import jiwer
import pytest

from espnet3.components.metrics.cer import CER
from espnet3.components.metrics.error_rate import ErrorRate
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


@pytest.mark.parametrize("space", ["\t", "\u3000"])
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


@pytest.mark.parametrize("metric", [WER, CER])
def test_workers_count_the_same(metric: type[ErrorRate]) -> None:
    """Over two workers, part by part, and in this process the entries are equal, and they are jiwer's."""
    draw = random.Random(3)
    texts = [" ".join(draw.choices(["a", "bc", "def"], k=draw.randint(0, 8))) for _ in range(470)]
    data = {"utt_id": texts, "ref": texts, "hyp": texts[7:] + texts[:7]}
    with pytest.raises(KeyError, match=r"no column 'text' among \['hyp', 'ref', 'utt_id'\]"):
        metric(ref_key="text")(data, "test", Path())
    alone = metric()(data, "test", Path())
    set_parallel({"env": "local", "n_workers": 2})
    assert metric()(data, "test", Path()) == alone
    assert alone["utterances"] == 470
    assert alone[metric.name] == pytest.approx(getattr(jiwer, metric.name)(data["ref"], data["hyp"]))
