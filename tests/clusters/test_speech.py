"""Prompts of the recipe on each backend, with a driver and as detached jobs: the same file as in one process.

Local jobs do the same in the default suite (tests/egs3/test_asterisk_decode.py).
"""

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.labs import COMMON, LABS, STAND_INS, Lab
from tests.egs3.submitted import recognised
from tests.standins import standin

# a busy machine takes minutes for what takes seconds on an idle one
pytestmark = [pytest.mark.clusters, pytest.mark.timeout(1200)]


def cut(prompts: int) -> tuple[str, str]:
    """Return the words that choose prompts, spread evenly over the corpus: its first ones are its longest."""
    return f"test_sets.prompts.at_most={prompts}", f"data_dir={os.environ.get('ESPNET3_CORPUS')}"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], bytes]:
    """Return a function that gives the file of so many prompts as one process writes it."""

    @functools.cache
    def of(prompts: int) -> bytes:
        text = recognised(tmp_path_factory.mktemp("reference"), *cut(prompts))
        assert len(text.splitlines()) == prompts
        return text

    return of


@pytest.fixture(params=[*LABS, *STAND_INS])
def block(request: pytest.FixtureRequest, started: Callable[[str], Lab]) -> Iterator[dict[str, Any]]:
    """Return a `parallel` block of a backend that is up."""
    if request.param in LABS:
        yield started(request.param).block(2)
    else:
        with standin(request.param):
            yield {"env": request.param, "n_workers": 2, "options": {**COMMON, "walltime": "10m"}}


def test_the_text_file_is_the_same_to_the_byte(
    block: dict[str, Any], reference: Callable[[int], bytes], tmp_path: Path
) -> None:
    """`text` of two workers there is byte-identical to that of one process here."""
    (tmp_path / "parallel.yaml").write_text(json.dumps({"parallel": block}))  # JSON is YAML
    assert recognised(tmp_path, "--parallel_config", "parallel.yaml", *cut(60)) == reference(60)
