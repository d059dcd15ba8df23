"""Statistics of a dataset on each real scheduler, with a driver and detached: the bytes of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import DetachedRun
from espnet3.systems.base.collect_stats import collect_stats
from tests.clusters.labs import LABS, Lab
from tests.egs3.submitted import RECIPE
from tests.parallel.detached.work import espnet3

# a busy machine takes minutes for what takes seconds on an idle one
pytestmark = [pytest.mark.clusters, pytest.mark.timeout(1200)]

FILES = ("feats_stats.npz", "feats_shape", "speech_shape", "stats_keys", "batch_keys")


def config(folder: Path, block: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Return a training config; the block is all that a cluster adds to it."""
    entry = {"_target_": "tests.components.waves.Noise", "data_src_args": {"n": 24}}
    return {
        "dataset": {"train": [entry]},
        "features": {"_target_": "tests.components.waves.Frames"},
        "stats_dir": str(folder),
        "collect_stats": {"progress": False, "async_specs_dir": str(folder / "specs"), **options},
        **({} if block is None else {"parallel": block}),
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files that one process writes."""
    folder = tmp_path_factory.mktemp("reference")
    collect_stats(config(folder))
    return {name: (folder / "train" / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("name", LABS)
def test_the_statistics_are_the_same_to_the_byte(
    name: str, reference: dict[str, bytes], tmp_path: Path, started: Callable[[str], Lab]
) -> None:
    """Two workers there, and jobs without a driver, leave byte for byte what one process leaves."""
    block = started(name).block(2)
    collect_stats(config(tmp_path / "sync", block))
    run = collect_stats(config(tmp_path / "detached", {**block, "detached": {"shards": 2}}, async_mode=True))[
        "train"
    ]
    assert isinstance(run, DetachedRun)
    try:
        assert run.wait(1500).done, dict(run.logs())
    finally:
        run.cancel()
    run.merge()
    for way in ("sync", "detached"):
        found = {each: (tmp_path / way / "train" / each).read_bytes() for each in FILES}
        assert found == reference, way


def recipes_stage(folder: Path, *words: str) -> None:
    """Run the recipe's stage on a few prompts, with its statistics in a folder."""
    few = [f"dataset.{split}.0.data_src_args.at_most=24" for split in ("train", "valid")]
    places = [f"data_dir={os.environ['ESPNET3_CORPUS']}", f"stats_dir={folder}"]
    command = [sys.executable, str(RECIPE / "run.py"), "--stages", "collect_stats", *words, *few, *places]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_recipes_stage_on_slurm_by_one_more_file(tmp_path: Path, started: Callable[[str], Lab]) -> None:
    """With `--parallel_config`, by a driver and as jobs, the recipe has the statistics of one process to the byte."""
    (tmp_path / "parallel_slurm.yaml").write_text(json.dumps({"parallel": started("slurm").block(2)}))
    here, driven, detached = (tmp_path / name for name in ("here", "driven", "detached"))
    recipes_stage(here)
    on_slurm = ["--parallel_config", str(tmp_path / "parallel_slurm.yaml")]
    recipes_stage(driven, *on_slurm)
    as_jobs = [
        *on_slurm,
        "+collect_stats.async_mode=true",
        f"+collect_stats.async_specs_dir={tmp_path}/specs",
    ]
    recipes_stage(detached, *as_jobs)
    for split in ("train", "valid"):
        assert not (detached / split / FILES[0]).exists()  # jobs have it to do
        espnet3("wait", detached / split, "--timeout", 500, cwd=tmp_path, seconds=600)
    recipes_stage(detached, *on_slurm)  # without the switch it writes the files of what the jobs have done
    for split in ("train", "valid"):
        expected = {each: (here / split / each).read_bytes() for each in FILES}
        for folder in (driven, detached):
            assert {each: (folder / split / each).read_bytes() for each in FILES} == expected, folder
