"""The recipe's training over two nodes of a real SLURM, started by `srun` as the page of training says."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusters.labs import Lab
from tests.components.needed import needed
from tests.egs3.submitted import RECIPE
from tests.parallel.detached.work import ROOT

torch = needed("torch")
# a busy machine takes minutes for what takes seconds on an idle one
pytestmark = [pytest.mark.clusters, pytest.mark.timeout(1200)]

EPOCHS = 2
TRAIN = ["train", "infer", "--inference_config", "inference_ctc"]
SMALL = ["model.hidden=24", "model.layers=2", "model.kernel=5", "test_sets.test.at_most=6"]
TWO = ["+trainer.strategy=ddp", "+trainer.logger=false", f"trainer.max_epochs={EPOCHS}"]
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT / "tests/components/trainers"),
    "OMP_NUM_THREADS": "1",  # and sums are made in one order
    "GLOO_SOCKET_IFNAME": "lo",  # not where this machine's name points to: there is no network
}
JOB = """#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --mem=3000M --partition=debug
exec srun {}
"""


def command(folder: Path, *words: str) -> list[str]:
    """Return the words that run stages of the recipe on a few prompts, with an experiment in a folder."""
    few = [f"dataset.{split}.0.data_src_args.at_most=12" for split in ("train", "valid")]
    places = [f"data_dir={os.environ['ESPNET3_CORPUS']}", f"stats_dir={folder.parent / 'stats'}"]
    run = [sys.executable, str(RECIPE / "run.py"), "--stages", *words]
    return [*run, *few, *places, f"exp_dir={folder / 'exp'}"]


def trained(folder: Path, how: Callable[[list[str]], list[str]], *words: str) -> str:
    """Train and infer; return what was said."""
    folder.mkdir()
    told = f"+trainer.callbacks=[{{_target_: toy.Told, folder: {folder / 'told'}}}]"
    done = subprocess.run(
        how([*command(folder, *TRAIN), *SMALL, *TWO, told, *words]),
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1000,
        check=False,
    )
    log = folder / "log.txt"
    said = done.stdout + (log.read_text() if log.exists() else "")
    assert done.returncode == 0, said
    return said


def on_two_nodes(words: list[str]) -> list[str]:
    """Return the command that has a job of two nodes start these words on both, and waits for its end."""
    Path("job.sh").write_text(JOB.format(shlex.join(words)))
    return ["sbatch", "--wait", "--output=log.txt", os.path.abspath("job.sh")]


def weights(folder: Path) -> dict[str, list[float]]:
    """Return the numbers that a training has left."""
    found = torch.load(folder / "exp" / "model.pth", weights_only=True)
    return {name: value.tolist() for name, value in found.items()}


def test_two_nodes_train_what_two_processes_train_here(started: Callable[[str], Lab], tmp_path: Path) -> None:
    """`srun` on two nodes gives the weights of two processes here to the bit, and its first process alone infers."""
    started("slurm")
    here, there = tmp_path / "here", tmp_path / "there"
    subprocess.run(command(here, "collect_stats"), check=True, timeout=600)
    trained(here, lambda words: words, "trainer.devices=2")
    said = trained(there, on_two_nodes, "+trainer.num_nodes=2")
    assert weights(there) == weights(here)

    told = {file.name: file.read_text().split() for file in (there / "told").iterdir()}
    assert set(told) == {f"{rank}-of-2-epoch{epoch}" for rank in range(2) for epoch in range(EPOCHS)}
    nodes = {name[0]: node for name, (_, node) in told.items()}
    assert len(set(nodes.values())) == 2, told

    assert said.count("INFO stage infer: ") == 1, said
    texts = [(folder / "exp/inference/test/text").read_bytes() for folder in (here, there)]
    assert texts[0] == texts[1] and len(texts[0].splitlines()) == 6


def test_what_comes_before_the_training_is_refused_under_srun(
    started: Callable[[str], Lab], tmp_path: Path
) -> None:
    """Both processes end at once and say so, where one of them would wait for the other in vain."""
    started("slurm")
    words = on_two_nodes(command(tmp_path / "experiment", "collect_stats", "train"))
    done = subprocess.run(words, timeout=600, check=False)
    said = Path("log.txt").read_text()
    assert done.returncode == 2, said
    assert (
        said.count("srun has started several processes of this, and only the first one runs collect_stats")
        == 2
    )
    assert not (tmp_path / "stats").exists()
