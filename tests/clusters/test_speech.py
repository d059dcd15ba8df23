"""Sixty prompts of the recipe, recognised on each of the eight backends: the same file as in one process."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.clusters.labs import COMMON, LABS, STAND_INS
from tests.standins import standin

# a busy machine takes minutes for what takes seconds on an idle one
pytestmark = [pytest.mark.clusters, pytest.mark.timeout(1200)]

RECIPE = Path(__file__).resolve().parents[2] / "egs3" / "asterisk" / "asr"
PROMPTS = 60


def recognised(folder, block=None):
    """Run the stage `infer` in a process of its own, as a user does; return the bytes of `text`."""
    command = [sys.executable, str(RECIPE / "run.py"), "--stages", "infer"]
    # spread evenly over the corpus: its first prompts are its longest ones
    command += [f"test_sets.prompts.at_most={PROMPTS}"]
    if block is not None:
        OmegaConf.save({"parallel": block}, folder / "parallel.yaml")
        command += ["--parallel_config", str(folder / "parallel.yaml")]
    command += [f"data_dir={os.environ['ESPNET3_CORPUS']}", f"exp_dir={folder}/exp"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (text,) = (folder / "exp").rglob("text")
    return text.read_bytes()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Return the file as one process writes it."""
    text = recognised(tmp_path_factory.mktemp("reference"))
    assert len(text.splitlines()) == PROMPTS
    return text


@pytest.mark.parametrize("name", [*LABS, *STAND_INS])
def test_the_text_file_is_the_same_to_the_byte(name, reference, tmp_path, started):
    """`text` of two workers there is byte-identical to that of one process here."""
    with ExitStack() as stack:
        if name in LABS:
            block = started(name).block(2)
        else:
            stack.enter_context(standin(name))
            block = {"env": name, "n_workers": 2, "options": {**COMMON, "walltime": "10m"}}
        assert recognised(tmp_path, block) == reference
