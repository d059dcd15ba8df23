"""`espnet3-parallel doctor --same-answer`: runners from the command line or a file, compared by `same_answer`."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNNERS = """
from espnet3.parallel import BaseRunner, EnvironmentProvider
class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {"seen": [], "factor": (self.config or {}).get("factor", 0)}
class Honest(BaseRunner):
    @staticmethod
    def forward(idx, factor):
        return idx // factor
class Writes(Honest):
    @staticmethod
    def open_writers(shard_dir):
        return open(shard_dir / "text", "w")
class Counts(BaseRunner):
    @staticmethod
    def forward(idx, seen):
        return seen.append(idx) or len(seen)
"""
CONF = "runner: {_target_: mine.Honest}\nprovider: {_target_: mine.Provider}\nfactor: 3\n"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("conf.yaml", 0, "3 items: the same answer in this process, twice and backwards, on 2 and 3"),
        ("conf.yaml --runner mine:Writes", 0, "the results of forward are compared, before files are made"),
        (
            "--runner mine:Counts --provider mine:Provider",
            1,
            "not the same answer everywhere: item 0 differs",
        ),
        ("--runner mine:Honest --provider mine:Provider", 1, "3 items of 3 failed, everywhere in the same"),
        ("", 1, "which classes are meant? Give --runner MODULE:CLASS and --provider MODULE:CLASS"),
        ("conf.yaml --runner mine:Honset", 1, "mine:Honset: mine has no Honset. Did you mean 'Honest'?"),
    ],
)
def test_a_runner_is_compared_and_a_difference_named(words, status, said, tmp_path: Path) -> None:
    """Classes and the provider's config come from a file, which needs no parallel block, or from options."""
    (tmp_path / "mine.py").write_text(RUNNERS)
    (tmp_path / "conf.yaml").write_text(CONF)
    command = [Path(sys.executable).with_name("espnet3-parallel"), "doctor", "--same-answer", "--items=3"]
    done = subprocess.run(
        [*command, *words.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    printed = " ".join((done.stdout + done.stderr).split())
    assert said in printed and "Warning" not in printed and "Traceback" not in printed
    assert done.returncode == status
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "conf.yaml", "__pycache__"}
