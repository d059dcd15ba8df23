"""A short cut of `make chaos-slurm`: a seeded round on a real SLURM."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters.chaos_slurm.kinds import KINDS
from tests.clusters.chaos_slurm.program import Items, workers
from tests.clusters.chaos_slurm.rounds import play, reference
from tests.parallel.detached.work import ROOT, calls
from tests.waiting import wait_until

pytestmark = [pytest.mark.clusters, pytest.mark.timeout(1200), pytest.mark.usefixtures("slurm")]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the merged file of an undisturbed run."""
    return reference(tmp_path_factory.mktemp("reference") / "run")


def test_a_disturbed_run_computes_every_item_once(expected: bytes, tmp_path: Path) -> None:
    """After a disturbance of each kind every outcome is there once, no item ran twice at a time, the queue is empty."""
    played = play(0, tmp_path / "home", len(KINDS), expected)
    assert not played.wrong, "\n".join([*played.story, played.wrong])
    assert played.done


@pytest.mark.parametrize("alive", [True, False], ids=["at work", "killed"])
def test_an_item_in_two_processes_is_found(alive: bool, tmp_path: Path) -> None:
    """An item that a living process has leaves a file when another begins it; one of a killed process leaves none."""
    code = f"from tests.clusters.chaos_slurm.program import *; Items.forward(0, Path({str(tmp_path)!r}), 600)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as first:
        try:
            wait_until(lambda: workers(tmp_path) == {first.pid: 0})
            if not alive:
                first.kill()
                first.wait()
            assert Items.forward(0, tmp_path, 0) == {"square": 0}
        finally:
            first.kill()
    assert (tmp_path / "twice.0").exists() is alive
    assert calls(tmp_path) == {0: 2}
