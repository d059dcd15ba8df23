"""Files that a model is made from: their content is part of what a run is known by."""

from pathlib import Path

import pytest

from espnet3.parallel import ChangedRunError
from espnet3.systems.base.inference import infer


class Speaker:
    def __init__(self, weights: str) -> None:
        self.word = Path(weights).read_text()

    def __call__(self, text: str) -> str:
        return f"{self.word} {text}"


def output_fn(*, data, model_output, idx):
    return {"utt_id": f"utt{idx}", "hyp": model_output, "ref": data["text"]}


class Texts(list):
    def __init__(self) -> None:
        super().__init__({"text": text} for text in ("one", "two", "three"))


def test_results_of_other_weights_are_not_taken_for_those_of_the_new_ones(tmp_path: Path) -> None:
    """A folder whose results came from weights of the same name and other content is refused, not resumed."""
    weights = tmp_path / "model.pth"
    weights.write_text("before")
    config = {
        "dataset": {"_target_": "tests.systems.test_model_files.Texts"},
        "model": {"_target_": "tests.systems.test_model_files.Speaker", "weights": str(weights)},
        "inference_dir": str(tmp_path / "out"),
        "input_key": "text",
        "output_fn": "tests.systems.test_model_files.output_fn",
        "runner": {"progress": False},
    }
    first = infer(config)["test"]
    assert (first.folder / "hyp.scp").read_text().startswith("utt0 before one\n")
    infer(config)  # nothing changed: it is resumed
    weights.write_text("after")
    with pytest.raises(ChangedRunError, match="model_files"):
        infer(config)
