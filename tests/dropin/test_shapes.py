"""Runners in the shapes of public recipes give the answers of the page about them, beside ESPnet, without a warning."""

import importlib.util
import warnings
from pathlib import Path

import pytest

from tests.dropin.promises import shapes_table
from tests.dropin.shapes import SHAPES, outcome
from tests.parallel.contract.helpers import TWO, beside_espnet

OURS = {name: answers["ours"] for name, answers in shapes_table().items()}
RUN_HERE = [name for name in SHAPES if "minimal" not in name or importlib.util.find_spec("torch")]


def test_the_page_has_every_shape() -> None:
    """The table names the shapes that there are, in their order."""
    assert list(OURS) == list(SHAPES)


@pytest.mark.parametrize("block", [None, TWO], ids=["in-process", "two-workers"])
@pytest.mark.parametrize("name", RUN_HERE)
def test_a_shape_gives_the_answer_of_the_page(
    name: str, block: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results, files and paths are those of the table, in process and on two workers, and no warning is given."""
    beside_espnet(monkeypatch, tmp_path)
    said = {**OURS, "VoxCeleb download": "in threads" if block is None else "by a runner"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert outcome(name, tmp_path, block) == said[name]
