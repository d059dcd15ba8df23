"""Statistics of a dataset on each real scheduler, with a driver and detached: the bytes of one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import DetachedRun
from espnet3.systems.base.collect_stats import collect_stats
from tests.clusters.labs import LABS, Lab

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
