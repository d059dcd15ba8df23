"""The stage infer with a torch module: in evaluation mode, without gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
import toy

from espnet3.systems.base.inference import infer


class Noisy(torch.nn.Module):
    """A module as a config makes it: in training mode, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1 << 16))
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.weight) * x.sum()


def score(*, data: Any, model_output: Any, idx: int) -> dict[str, Any]:
    """Return one place of a large output: a view of all of it."""
    return {"utt_id": f"u{idx}", "hyp": model_output[7], "grad": model_output.requires_grad}


def given(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "dataset": {"_target_": "toy.Points", "count": 40, "seed": 4},
        "model": {"_target_": f"{__name__}.Noisy"},
        "inference_dir": str(folder),
        "input_key": ["x", "y"],
        "output_fn": f"{__name__}.score",
        "output_keys": ["hyp", "grad"],
        **more,
    }


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(toy.__file__).parent))


def test_dropout_is_off_and_nothing_has_gradients(tmp_path: Path) -> None:
    """A module that a config makes gives the same outputs in one process and in two."""
    infer(given(tmp_path / "one"))
    infer(given(tmp_path / "two", parallel={"env": "local", "n_workers": 2}))
    files = [(tmp_path / name / "test/hyp.scp").read_text() for name in ("one", "two")]
    assert len(set(files)) == 1
    assert " 0.0" not in files[0]
    assert set((tmp_path / "one/test/grad.scp").read_text().split()[1::2]) == {"False"}


def test_evaluate_false_leaves_the_module_as_it_was_made(tmp_path: Path) -> None:
    """With `evaluate: false` dropout works and outputs have gradients."""
    infer(given(tmp_path, evaluate=False))
    scores = (tmp_path / "test/hyp.scp").read_text().split()[1::2]
    assert 0.0 in map(float, scores)
    assert set((tmp_path / "test/grad.scp").read_text().split()[1::2]) == {"True"}


def test_a_view_of_a_tensor_travels_alone(tmp_path: Path) -> None:
    """One number of a large output is what a worker sends, not the output."""
    result = infer(given(tmp_path, parallel={"env": "local", "n_workers": 2}))["test"]
    assert {type(each["hyp"]) for each in result.run} == {float}
