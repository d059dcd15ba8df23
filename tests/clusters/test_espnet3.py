"""ESPnet's recipe `mini_an4` with our layer over its tree, on a real SLURM: the files of its own layer."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusters.labs import LABS, Lab
from tests.dropin.compare import differences
from tests.dropin.environment import ROOT, Scratch
from tests.dropin.recipe import INFERENCE, RECIPE, Check, Recipe

pytestmark = pytest.mark.clusters

# `make test-espnet3` makes it, outside these namespaces: they have no network
SCRATCH = Scratch(Path(os.environ.get("ESPNET3_SCRATCH", ROOT / ".espnet3")))
REFERENCE = SCRATCH.theirs / RECIPE / INFERENCE.format("serial")


@pytest.fixture
def recipe(tmp_path: Path, started: Callable[[str], Lab]) -> Recipe:
    """Return the recipe in a tree of this test's own, with the model that the reference was made with."""
    started("slurm")  # first: the recipe's commands get the variables that lead to it
    if not (REFERENCE / "metrics.json").exists():
        pytest.skip("needs the trees that `make test-espnet3` leaves")
    tree = tmp_path / "tree"
    shutil.copytree(SCRATCH.ours, tree, symlinks=True)
    for name in ("data", "exp"):
        shutil.rmtree(tree / RECIPE / name, ignore_errors=True)  # of what else has run in that tree
        shutil.copytree(SCRATCH.folder / "prepared" / RECIPE / name, tree / RECIPE / name, symlinks=True)
    return Recipe(SCRATCH, tree)


@pytest.mark.parametrize("mode", ["with a driver", "detached"])
def test_mini_an4_on_slurm_writes_what_its_own_layer_writes(recipe: Recipe, mode: str) -> None:
    """Two SLURM jobs infer, and text, alignments and metrics are those of ESPnet's own layer with one worker."""
    text = (recipe.folder / "conf" / "inference_serial.yaml").read_text(encoding="utf-8")
    text += f"\nparallel: {json.dumps(LABS['slurm'].block(2, memory='1900MB'))}\n"  # JSON is YAML
    if mode == "detached":
        text += "runner: {async_mode: true}\n"
    (recipe.folder / "conf" / "inference_slurm.yaml").write_text(text, encoding="utf-8")
    check, folder = Check(mode), recipe.folder / INFERENCE.format("slurm")
    recipe.run(check, recipe.command(["infer"], inference="inference_slurm"))
    if mode == "detached":
        for run in sorted(path.parent for path in folder.glob("*/run.json")):
            for verb in ("wait", "merge"):
                recipe.run(check, [str(SCRATCH.python.parent / "espnet3-parallel"), verb, str(run)])
    recipe.run(check, recipe.command(["measure"], inference="inference_slurm"))
    assert check.wrong == []
    assert differences(REFERENCE, folder) == []
