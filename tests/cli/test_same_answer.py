"""`espnet3-parallel doctor --same-answer`: runners from the command line or a file, compared by `same_answer`."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNNERS = """
import itertools

from espnet3.parallel import BaseRunner, EnvironmentProvider


class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {"counter": itertools.count(), "factor": (self.config or {}).get("factor", 2)}


class Honest(BaseRunner):
    @staticmethod
    def forward(idx, factor):
        return idx // (factor - 2)


class Writes(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx

    @staticmethod
    def open_writers(shard_dir):
        return open(shard_dir / "text", "w")


class Counts(BaseRunner):
    @staticmethod
    def forward(idx, counter):
        return next(counter)
"""
CONF = "runner: {_target_: mine.Honest}\nprovider: {_target_: mine.Provider}\nfactor: 3\n"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (
            ["conf.yaml"],
            0,
            "3 items: the same answer in this process, twice and backwards, on 2 and 3 workers, as",
        ),
        (["mine:Writes"], 0, "the results of forward are compared, before files are made of them"),
        (
            ["mine:Counts"],
            1,
            "WRONG not the same answer everywhere: item 0 differs: 0 with 1 worker, batch_size=None",
        ),
        (
            ["mine:Honest"],
            1,
            "3 items of 3 failed, everywhere in the same way; the first is item 0: ZeroDivisionErr",
        ),
        ([], 1, "which classes are meant? Give --runner MODULE:CLASS and --provider MODULE:CLASS"),
        (["mine:Honset"], 1, "the runner mine:Honset: mine has no Honset. Did you mean 'Honest'?"),
    ],
)
def test_a_runner_is_compared_and_a_difference_named(words, status, said, tmp_path: Path) -> None:
    """Classes and the provider's config come from a file, which needs no parallel block, or from options."""
    (tmp_path / "mine.py").write_text(RUNNERS)
    (tmp_path / "conf.yaml").write_text(CONF)
    if words and ":" in words[0]:
        words = ["--runner", words[0], "--provider", "mine:Provider"]
    command = [Path(sys.executable).with_name("espnet3-parallel"), "doctor", "--same-answer", "--items", "3"]
    done = subprocess.run(
        [*command, *words], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    printed = " ".join((done.stdout + done.stderr).split())
    assert said in printed and "Warning" not in printed and "Traceback" not in printed
    assert done.returncode == status
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "conf.yaml", "__pycache__"}
