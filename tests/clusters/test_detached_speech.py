"""Prompts of the recipe as detached jobs of each backend: the same file as in one process, whoever dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from espnet3.parallel.testing import standin
from tests.clusters.labs import COMMON, LABS, Lab
from tests.egs3.submitted import merged_elsewhere, recognised, submit_and_die

pytestmark = pytest.mark.clusters

PROMPTS = 12
# spread evenly over the corpus: its first prompts are its longest ones
CUT = (f"test_sets.prompts.at_most={PROMPTS}", f"data_dir={os.environ.get('ESPNET3_CORPUS')}")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the file as one process writes it."""
    text = recognised(tmp_path_factory.mktemp("reference"), *CUT)
    assert len(text.splitlines()) == PROMPTS
    return text


@pytest.mark.parametrize("name", ["slurm", "sge", "oar", "htcondor", "ssh", "local", "pbs", "lsf", "moab"])
def test_the_text_is_the_same_after_the_submitter_was_killed(
    name: str, reference: bytes, tmp_path: Path, started: Callable[[str], Lab]
) -> None:
    """The submitter gets SIGKILL; `status`, `wait` and `merge` elsewhere leave the `text` of one process."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with ExitStack() as stack:
        if name in LABS:
            block = LABS[name].block(2)
            started(name)
        elif name == "local":
            block = {"env": name, "n_workers": 2}
        else:
            stack.enter_context(standin(name))
            block = {"env": name, "n_workers": 2, "options": {**COMMON, "walltime": "10m"}}
        run = submit_and_die(tmp_path, {**block, "detached": {"shards": 3}}, *CUT)
        assert merged_elsewhere(run, elsewhere) == reference
