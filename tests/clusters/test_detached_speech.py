"""Prompts of the recipe as detached jobs of each scheduler: the same file as in one process, whoever dies.

Local jobs do the same in the default suite (tests/egs3/test_asterisk_decode.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clusters.labs import COMMON, LABS, STAND_INS, Lab
from tests.egs3.submitted import merged_elsewhere, recognised, submit_and_die
from tests.standins import standin

# a busy machine takes minutes for what takes seconds on an idle one
pytestmark = [pytest.mark.clusters, pytest.mark.timeout(1200)]

PROMPTS = 12
# spread evenly over the corpus: its first prompts are its longest ones
CUT = (f"test_sets.prompts.at_most={PROMPTS}", f"data_dir={os.environ.get('ESPNET3_CORPUS')}")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the file as one process writes it."""
    text = recognised(tmp_path_factory.mktemp("reference"), *CUT)
    assert len(text.splitlines()) == PROMPTS
    return text


@pytest.mark.parametrize("name", [*LABS, *STAND_INS])
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
        else:
            stack.enter_context(standin(name))
            walltime = "00:10" if name == "lsf" else "00:10:00"
            block = {"env": name, "n_workers": 2, "options": {**COMMON, "walltime": walltime}}
        run = submit_and_die(tmp_path, {**block, "detached": {"shards": 2}}, *CUT)
        assert merged_elsewhere(run, elsewhere) == reference
