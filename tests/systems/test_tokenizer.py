"""The stage train_tokenizer."""

from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel.errors import ConfigError
from espnet3.systems.base.system import BaseSystem
from tests.components.needed import needed


def texts(n: int, end: str = "") -> list[str]:
    return [f"good morning number {at}{end}" for at in range(n)]


def given(folder: Path, **more: Any) -> dict[str, Any]:
    builder = {"func": f"{__name__}.texts", "n": 40}
    return {"tokenizer": {"vocab_size": 30, "save_path": str(folder), "text_builder": builder, **more}}


def test_a_tokenizer_is_trained_once_for_its_texts(tmp_path: Path) -> None:
    """Model, vocabulary and tokens are written; the same texts and settings write nothing again, others do."""
    spm = needed("sentencepiece")
    stage = ["train_tokenizer"]
    made = BaseSystem(training_config=given(tmp_path)).run(stage)["train_tokenizer"]
    assert made == tmp_path / "bpe.model"
    pieces = spm.SentencePieceProcessor(model_file=str(made))
    assert pieces.decode(pieces.encode("good morning")) == "good morning"
    tokens = (tmp_path / "tokens.txt").read_text().splitlines()
    assert (tokens[:2], tokens[-1], len(tokens)) == (["<blank>", "<unk>"], "<sos/eos>", 30)
    assert len((tmp_path / "bpe.vocab").read_text().splitlines()) == 30
    before = made.stat().st_ino
    BaseSystem(training_config=given(tmp_path)).run(stage)
    assert made.stat().st_ino == before
    other = {"func": f"{__name__}.texts", "n": 40, "end": "!"}
    BaseSystem(training_config=given(tmp_path, text_builder=other)).run(stage)
    assert "!" in "".join((tmp_path / "tokens.txt").read_text().splitlines())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"vocab_size": 3000},
            r"tokenizer\.vocab_size = 3000: SentencePiece refuses: Vocabulary size too high",
        ),
        ({"vocab_size": 0}, r"tokenizer\.vocab_size = 0: must be a positive integer"),
        ({"vocabsize": 30}, r"tokenizer\.vocabsize is not known; tokenizer has"),
        ({"text_builder": None}, r"the block 'tokenizer' of the training config has no 'text_builder'"),
        ({"text_builder": {"func": f"{__name__}.texts", "n": 0}}, "gives no text: is the dataset there?"),
    ],
)
def test_a_wrong_block_is_named_with_its_key(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    """What is missing, unknown or more than the texts give is a ConfigError, and nothing is written."""
    needed("sentencepiece")
    with pytest.raises(ConfigError, match=said):
        BaseSystem(training_config=given(tmp_path / "made", **more)).run(["train_tokenizer"])
    assert not list(tmp_path.glob("made/*.model"))


def test_a_recipe_without_a_tokenizer_trains_none(tmp_path: Path) -> None:
    """The stage passes where the config has no such block, or one for an object of the recipe's own."""
    for config in ({}, {"tokenizer": {"_target_": "src.characters.Characters"}}):
        assert BaseSystem(training_config=config).run(["train_tokenizer"]) == {"train_tokenizer": None}
