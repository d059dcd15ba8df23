"""A short cut of `make chaos-slurm`: a few seeded rounds on a real SLURM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusters.chaos_slurm.rounds import play, reference
from tests.clusters.labs import Lab

pytestmark = [pytest.mark.clusters, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def slurm(started: Callable[[str], Lab]) -> Lab:
    """Start SLURM once."""
    return started("slurm")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the merged file of an undisturbed run."""
    return reference(tmp_path_factory.mktemp("reference") / "run")


@pytest.mark.parametrize("seed", range(2))
def test_a_disturbed_run_computes_every_item_once(seed: int, expected: bytes, tmp_path: Path) -> None:
    """After six disturbances every outcome is there once, no item ran twice at a time, and the queue is empty."""
    played = play(seed, tmp_path / "home", 6, expected)
    assert not played.wrong, "\n".join([*played.story, played.wrong])
    assert played.done
