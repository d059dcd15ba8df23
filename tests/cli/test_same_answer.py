"""`espnet3-parallel doctor --same-answer`: the first item that differs, and why."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNNERS = """
import itertools
import os
import random
import time

import numpy as np

from espnet3.parallel import BaseRunner, EnvironmentProvider


class Provider(EnvironmentProvider):
    def build_env_local(self):
        factor = (self.config or {}).get("factor", 2)
        return {"counter": itertools.count(), "factor": factor}


class Honest(BaseRunner):
    @staticmethod
    def forward(idx, factor):
        return idx * factor


class Writes(Honest):
    @staticmethod
    def open_writers(shard_dir):
        return open(shard_dir / "text", "w")


class Counts(BaseRunner):
    @staticmethod
    def forward(idx, counter):
        return next(counter)


class Draws(BaseRunner):
    @staticmethod
    def forward(idx):
        return random.random()


class Clock(BaseRunner):
    @staticmethod
    def forward(idx):
        return time.time_ns()


class Pads(BaseRunner):
    @staticmethod
    def forward(idx):
        return float(idx)

    @staticmethod
    def batch_forward(indices):
        return [float(idx) + 0.1 * (max(indices) - idx) for idx in indices]


class Turns(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx

    @staticmethod
    def batch_forward(indices):
        return list(indices)[::-1]


class Sums(BaseRunner):
    @staticmethod
    def forward(idx):
        return {"text": "a", "scores": np.ones(3, "float32")}

    @staticmethod
    def batch_forward(indices):
        return [{"text": "a", "scores": np.ones(3, "float32") * np.float32(1 + 1e-6)} for _ in indices]


class Process(BaseRunner):
    @staticmethod
    def forward(idx):
        return os.getpid()


class Fails(BaseRunner):
    @staticmethod
    def forward(idx):
        raise ValueError("no such file")
"""


def ask(folder: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit status of the command and what it printed."""
    (folder / "mine.py").write_text(RUNNERS)
    done = subprocess.run(
        [Path(sys.executable).with_name("espnet3-parallel"), "doctor", "--same-answer", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


BY_DEFAULT = ("Counts", "Draws", "Pads", "Sums")


def reasons(*cases: tuple[str, str]) -> list[object]:
    return [
        pytest.param(*case, marks=() if case[0] in BY_DEFAULT else pytest.mark.matrix, id=case[0])
        for case in cases
    ]


@pytest.mark.parametrize(
    ("runner", "said"),
    reasons(
        (
            "Counts",
            "backwards; state is kept between items: item 0 gives 0 alone and 1 after itself",
        ),
        (
            "Draws",
            "it draws random numbers: two runs of item 0 alone, each in a fresh env, differ as well, and agree",
        ),
        ("Clock", "it depends on something that changes by itself: two runs of item 0 alone"),
        ("Pads", "the items of a batch change each other: alone in a batch it is the same."),
        ("Turns", "batch_forward returns results in another order: this is another item's"),
        ("Sums", "floating-point numbers were summed in another order (they differ by 1e-06 of the largest)"),
        ("Process", "it depends on the process: an environment variable"),
        (
            "Fails",
            "12 items of 12 failed, everywhere in the same way; the first is item 0: ValueError: no such file",
        ),
    ),
)
def test_what_differs_is_named_with_its_reason(runner: str, said: str, tmp_path: Path) -> None:
    """The index, both results, how each was run, and why."""
    status, printed = ask(tmp_path, "--runner", f"mine:{runner}", "--provider", "mine:Provider")
    assert said in printed and "Warning" not in printed
    assert status == 1


def test_an_honest_runner_is_said_to_be_so_with_all_that_was_tried(tmp_path: Path) -> None:
    """Classes and the provider's config come from the file, which needs no parallel block."""
    (tmp_path / "conf.yaml").write_text(
        "runner: {_target_: mine.Honest}\nprovider: {_target_: mine.Provider}\nfactor: 3\n"
    )
    status, printed = ask(tmp_path, "conf.yaml", "--items", "5")
    assert (
        "5 items: the same answer in this process, twice and backwards, on 2 and 3 workers, as detached jobs"
        in printed
    )
    assert status == 0


def test_of_a_runner_with_writer_hooks_the_results_of_forward_are_compared(tmp_path: Path) -> None:
    """It says so, and leaves no files."""
    status, printed = ask(tmp_path, "--runner", "mine:Writes", "--provider", "mine:Provider", "--items", "3")
    assert "the results of forward are compared, before files are made of them" in printed
    assert "3 items: the same answer in this process" in printed
    assert status == 0
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "__pycache__"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "which classes are meant? Give --runner MODULE:CLASS and --provider MODULE:CLASS"),
        (("--runner", "mine:Honest"), "which classes are meant? Give --provider MODULE:CLASS"),
        (
            ("--runner", "mine:Honset", "--provider", "mine:Provider"),
            "the runner mine:Honset: mine has no Honset. Did you mean 'Honest'?",
        ),
    ],
)
def test_a_mistake_is_told_before_anything_runs(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    """Missing and mistyped classes."""
    status, printed = ask(tmp_path, *arguments)
    assert said in printed and "Warning" not in printed
    assert status == 1
