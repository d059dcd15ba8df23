"""The create_dataset stage: which builders it asks, in which order, and with what."""

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from espnet3.components.data.dataset_builder import DatasetBuilder
from espnet3.parallel import get_parallel_config
from espnet3.systems.base.create_dataset import create_dataset
from espnet3.systems.base.system import BaseSystem

HERE = __name__
ROOT = Path(__file__).resolve().parents[2]


class Steps(DatasetBuilder):
    """Notes what it is asked, and by how many workers it might be built."""

    asked: ClassVar[list[str]] = []

    def __init__(self, built: bool = False, prepared: bool = False) -> None:
        super().__init__()
        self.built, self.prepared = built, prepared

    def is_source_prepared(self, **kwargs: Any) -> bool:
        self.asked.append("is_source_prepared")
        return self.prepared

    def prepare_source(self, **kwargs: Any) -> None:
        self.asked.append("prepare_source")

    def is_built(self, **kwargs: Any) -> bool:
        self.asked.append("is_built")
        return self.built

    def build(self, **kwargs: Any) -> None:
        self.asked.append(f"build with {get_parallel_config().n_workers}")


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    Steps.asked.clear()


@pytest.mark.parametrize(
    ("built", "prepared", "asked", "done"),
    [
        (True, False, ["is_built"], False),
        (False, True, ["is_built", "is_source_prepared", "build with 3"], True),
        (False, False, ["is_built", "is_source_prepared", "prepare_source", "build with 3"], True),
    ],
)
def test_only_what_is_missing_is_done(built: bool, prepared: bool, asked: list[str], done: bool) -> None:
    """A complete dataset needs no source; a source that is there is not fetched; the block's workers are registered."""
    block = {"_target_": f"{HERE}.Steps", "built": built, "prepared": prepared}
    config = {"create_dataset": block, "parallel": {"env": "local", "n_workers": 3}}
    assert create_dataset(config) is done
    assert Steps.asked == asked
    assert get_parallel_config() is None


def test_training_comes_before_inference() -> None:
    """The stage reads the training config; where that says nothing about data, the inference config."""
    block = {"create_dataset": {"_target_": f"{HERE}.Steps", "built": True}}
    with pytest.raises(ValueError, match="needs training_config or inference_config"):
        BaseSystem().run(["create_dataset"])
    for training, inference in (({"seed": 1}, block), (block, {})):
        system = BaseSystem(training_config=training, inference_config=inference)
        assert system.run(["create_dataset"]) == {"create_dataset": False}
    with pytest.raises(ValueError, match="no block 'create_dataset'"):
        BaseSystem(inference_config={"model": {}}).run(["create_dataset"])


_MODULE = """
from pathlib import Path
from espnet3.components.data.dataset_builder import DatasetBuilder as Base

class Dataset:
    pass

class DatasetBuilder(Base):
    def is_source_prepared(self, recipe_dir, **kwargs):
        return (Path(recipe_dir) / "source").exists()

    def prepare_source(self, recipe_dir, **kwargs):
        (Path(recipe_dir) / "source").write_text("s")

    def is_built(self, recipe_dir, **kwargs):
        return (Path(recipe_dir) / "built").exists()

    def build(self, recipe_dir, size, **kwargs):
        (Path(recipe_dir) / "built").write_text(str(size))
"""

_RUN = """
import sys
from espnet3.systems.base.create_dataset import create_dataset

recipe = sys.argv[1]
entry = {"data_src_args": {"split": "train"}}
elsewhere = {"_target_": "somebody.elses.Dataset"}
config = {
    "recipe_dir": recipe,
    "dataset": {"train": [entry, elsewhere], "valid": [entry], "test": [{"name": "a", **entry}]},
    "create_dataset": {"recipe_dir": recipe, "size": 7},
}
print(create_dataset(config), create_dataset(config))
"""


def test_entries_lead_to_the_builder_of_their_module(tmp_path: Path) -> None:
    """`DatasetBuilder` beside the entries' `Dataset` is made without arguments and given those of the block, once."""
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/__init__.py").write_text(_MODULE)
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True False\n", done.stderr
    assert ((tmp_path / "source").read_text(), (tmp_path / "built").read_text()) == ("s", "7")
