"""Each stage of the recipe gets SIGKILL at a drawn moment, and the same command again: the final files are the same.

ESPNET3_TEST_KILLS=20 draws twenty moments for each stage instead of one.
"""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.components.needed import needed
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "egs3" / "asterisk" / "asr"
SEEDS = range(int(os.environ.get("ESPNET3_TEST_KILLS", "1")))

# what says how a folder's work was done, and not what came of it: times, processes, and how often it was begun
ACCOUNT = ("events.jsonl", "run.json", "receipt.json", "manifest.json", "lease.", "session.", "split.")


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage, and how far it has come."""

    words: tuple[str, ...]  # of the command line, beside `--stages` and the stage's name
    outputs: tuple[str, ...]  # its files and folders in the recipe's folder
    steps: int  # that it can be seen to take: the kill comes after one of them, but not the last
    # those that it has taken, from the recipe's folder and its process
    taken: Callable[[Path, psutil.Process], int]
    goes_on: str = ""  # what it says when it does not begin anew
    before: tuple[str, ...] = ()  # stages whose outputs it needs


def files(pattern: str) -> Callable[[Path, psutil.Process], int]:
    return lambda recipe, _: len(list(recipe.glob(pattern)))


def lines(pattern: str) -> Callable[[Path, psutil.Process], int]:
    return lambda recipe, _: sum(path.read_bytes().count(b"\n") for path in recipe.glob(pattern))


def processes(recipe: Path, process: psutil.Process) -> int:
    """Count what leaves no trace on the disk by the workers that are started for it."""
    return len(process.children(recursive=True))


def epochs(recipe: Path, process: psutil.Process) -> int:
    """Count an epoch once its line is written, and once more when its checkpoint is."""
    seen = 0
    for path in recipe.glob("exp/training/epochs.jsonl"):
        seen = 2 * path.read_bytes().count(b"\n")
        last = path.parent / "checkpoints" / "last.ckpt"
        seen -= not last.exists() or last.stat().st_mtime_ns < path.stat().st_mtime_ns
    return seen


PROMPTS = "exp/pocketsphinx/inference"
STAGES = {
    "create_dataset": Stage(
        ("+create_dataset.cache_dir={packages}",), ("data",), 551, files("data/wav/*.wav"), "resuming: "
    ),
    "collect_stats": Stage(
        (), ("exp/stats",), 30, files("exp/stats/*/split.*/done"), "resuming: ", before=("create_dataset",)
    ),
    "infer": Stage(
        ("--limit", "5"),
        (PROMPTS,),
        5,
        lines(f"{PROMPTS}/prompts/split.*/results.jsonl"),
        "resuming: ",
        before=("create_dataset",),
    ),
    "measure": Stage((), (f"{PROMPTS}/metrics.json",), 4, processes, before=("create_dataset", "infer")),
}
LEARNED = {
    "train": Stage(
        ("trainer.max_epochs=4", "+trainer.limit_train_batches=8"),
        ("exp/training",),
        8,
        epochs,
        "training goes on from ",
        before=("create_dataset", "collect_stats"),
    ),
    "compare": Stage(
        ("test_set.at_most=8",),
        ("exp/comparison", f"{PROMPTS}/held_out", "exp/training/inference"),
        16,
        lines("exp/*/inference/held_out/split.*/results.jsonl"),
        "resuming: ",
        before=("create_dataset", "collect_stats", "train"),
    ),
}


ALL = {**STAGES, **LEARNED}
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


@dataclass(frozen=True, slots=True)
class Home:
    """A copy of the recipe, which gets data and outputs, and the two Debian packages."""

    recipe: Path
    packages: Path

    def command(self, name: str) -> list[str]:
        words = [word.format(packages=self.packages) for word in ALL[name].words]
        workers = ["--parallel_config", "parallel_local"]
        return [sys.executable, str(self.recipe / "run.py"), "--stages", name, *workers, *words]

    def run(self, name: str) -> str:
        done = subprocess.run(
            self.command(name),
            cwd=self.recipe,
            env=ENV,
            text=True,
            capture_output=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def run_and_kill(self, name: str, after: int) -> None:
        """Start a stage, and kill it and all of its process group once it has taken so many steps."""
        with subprocess.Popen(
            self.command(name),
            cwd=self.recipe,
            env=ENV,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                looked_at = psutil.Process(process.pid)
                wait_until(lambda: ALL[name].taken(self.recipe, looked_at) >= after, 200, every=0.001)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL

    def clear(self, name: str) -> None:
        for path in self._outputs(name):
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)

    def outcome(self, name: str) -> dict[str, bytes]:
        found = [
            path
            for output in self._outputs(name)
            for path in (output, *output.rglob("*"))
            if path.is_file()
            and path.suffix != ".log"
            and not any(part.startswith(ACCOUNT) for part in path.relative_to(self.recipe).parts)
        ]
        return {str(path.relative_to(self.recipe)): content(path) for path in found}

    def _outputs(self, name: str) -> list[Path]:
        return [self.recipe / output for output in ALL[name].outputs]


def content(path: Path) -> bytes:
    """Return a file's bytes; of a checkpoint what it holds, since pickle also writes which objects are the same one."""
    if path.suffix != ".ckpt":
        return path.read_bytes()
    import torch

    return repr(_without_tensors(torch.load(path, map_location="cpu", weights_only=False))).encode()


def _without_tensors(value: Any) -> Any:
    """Return what a checkpoint holds, with a hash in the place of each tensor."""
    if hasattr(value, "numpy"):
        return hashlib.sha256(value.numpy().tobytes()).hexdigest()
    if isinstance(value, dict):
        return {key: _without_tensors(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_tensors(each) for each in value]
    return value


@pytest.fixture(scope="module")
def home(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    recipe = tmp_path_factory.mktemp("killed") / "asr"
    shutil.copytree(RECIPE, recipe, ignore=shutil.ignore_patterns("data", "exp", "__pycache__"))
    return Home(recipe, packages)


def kill_and_go_on(home: Home, name: str) -> None:
    """Kill a stage at drawn moments, go on, and compare with a run that was not disturbed."""
    for each in ALL[name].before:
        if not home.outcome(each):
            home.run(each)
    home.clear(name)
    home.run(name)
    whole = home.outcome(name)
    assert whole
    for seed in SEEDS:
        after = random.Random(f"{name} {seed}").randrange(1, ALL[name].steps)
        home.clear(name)
        home.run_and_kill(name, after)
        said = home.run(name)
        found = home.outcome(name)
        assert sorted(found) == sorted(whole), (seed, after)
        assert [path for path in whole if found[path] != whole[path]] == [], (seed, after)
        assert ALL[name].goes_on in said, (seed, after, said)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_that_was_killed_goes_on_to_the_same_files(home: Home, name: str) -> None:
    """Every final file is the same to the byte, and what was done before is not done again."""
    kill_and_go_on(home, name)


@pytest.mark.parametrize("name", LEARNED)
def test_a_training_and_its_comparison_go_on_to_the_same_files(home: Home, name: str) -> None:
    """Weights, figures of the epochs, table and plot are the same to the byte, and checkpoints hold the same."""
    for package in ("lightning", "matplotlib"):
        needed(package)
    kill_and_go_on(home, name)
