"""`espnet3-parallel replay`: one item of a run once more, and what is said where it is another one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.parallel import ConfigError, run
from espnet3.parallel.views.replaying import _reference
from tests.parallel.detached.work import ROOT, espnet3, python, run_of, shut

# without a main guard: a replay that ran it whole would start the run again
SCRIPT = """
import random
from pathlib import Path
from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel

class Words(EnvironmentProvider):
    def build_env_local(self):
        return {"words": self.config["words"], "scale": self.config.scale if WHOLE else 1}

class Count(BaseRunner):
    @staticmethod
    def forward(idx, words, scale):
        if words[idx] == "bad":
            raise ValueError(f"no letters in {idx}")
        return {"letters": len(words[idx]) * scale, "drawn": random.random()}

WHOLE = False
with Path("calls").open("a") as file:
    file.write("x")
config = {
    "words": ["a", "bb", "bad", "dddd"], "scale": 2, "api_token": "hunter2",
    "none": {}, "model": {"layers": {"n": [1]}},
}
Count(Words(config), output_dir="run", on_error="record", seed=5, progress=False)(range(4))
with Path("ends").open("a") as file:
    file.write("x")
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the script; return its folder."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "words.py").write_text(SCRIPT)
    python("words.py", cwd=folder, ok=True)
    return folder


def test_an_item_gives_the_same_result_again(ran: Path, tmp_path: Path) -> None:
    """A seeded item returns what it returned, without running the script's own run again; a profile is the item's."""
    ends = (ran / "ends").read_text()
    done = espnet3("replay", ran / "run", "3", "--profile", cwd=tmp_path)
    assert "item 3 now: returned" in done.stdout and "the same as then" in done.stdout
    lines = done.stdout.splitlines()
    assert sum(line.startswith("not as it was") for line in lines) == 1 and "masked" in lines[0]
    assert "(forward)" in done.stdout and "flame graph" in done.stdout
    assert (ran / "ends").read_text() == ends == "x" and len((ran / "calls").read_text()) >= 2


def test_a_run_beside_a_checkout_is_replayed(tmp_path: Path) -> None:
    """A script in a checkout runs that copy of this package; the installed one replays an item that spawns a pool."""
    shutil.copytree(ROOT / "espnet3", tmp_path / "espnet3", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "script.py").write_text(
        "from multiprocessing import get_context\nfrom espnet3.parallel import run\ndef same(x): return x\n"
        "def one(x):\n    with get_context('spawn').Pool(1) as pool: return pool.apply(same, [x])\n"
        "if __name__ == '__main__': run(one, [3], output_dir='run')"
    )
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True, timeout=600)
    assert "the same as then" in espnet3("replay", tmp_path / "run", "3", cwd=ROOT).stdout


def test_failed_items_are_listed_with_their_errors(ran: Path, tmp_path: Path) -> None:
    """A line an item for people, all facts for programs, and a word where none has failed."""
    assert espnet3("failures", ran / "run", cwd=tmp_path).stdout == "2\tValueError\tno letters in 2\n"
    (one,) = json.loads(espnet3("failures", ran / "run", "--json", cwd=tmp_path).stdout)
    assert (one["index"], one["attempts"], one["traceback"].count("ValueError")) == (2, 1, 2)
    run(abs, [1], output_dir=tmp_path / "whole", progress=False)
    assert espnet3("failures", tmp_path / "whole", cwd=tmp_path).stdout == "no item of this run has failed\n"


def test_the_debugger_opens_where_a_failed_item_fails_again(ran: Path) -> None:
    """A failure is printed with its traceback, `--pdb` stops in that frame, and the exit status is 1."""
    done = python("-m", "espnet3_parallel", "replay", "run", "2", "--pdb", cwd=ran, typed="p idx + 40\nq\n")
    assert "42" in done.stdout and done.returncode == 1
    assert "item 2 then: failed, ValueError: no letters in 2" in done.stdout
    assert "the same as then" in done.stdout and "words.py" in done.stderr


def test_code_that_has_changed_is_named(ran: Path) -> None:
    """After an edit the failed items run with the new code, and the output names file and function."""
    (ran / "words.py").write_text(SCRIPT.replace('if words[idx] == "bad"', 'if words[idx] == "worse"'))
    try:
        done = espnet3("replay", "run", "--all-failed", cwd=ran)
    finally:
        (ran / "words.py").write_text(SCRIPT)
    said = " ".join(done.stdout.split())
    assert "not as it was: code:" in said and "words.py: Count.forward has changed" in said
    assert "item 2 now: returned" in said and "not the same as then" in said


def test_an_item_of_a_detached_run(tmp_path: Path) -> None:
    """A detached run knows its indices and how its provider is made; an index that is not one of them is refused."""
    run = run_of(tmp_path, n=4, workers=1, shards=1, on_error="record", config={"bad": [2, "raise"]})
    try:
        assert run.wait(600).done
    finally:
        shut(run)
    said = espnet3("replay", run.path, "3", cwd=tmp_path).stdout
    assert "not as it was" not in said and "the same as then" in said and "'square': 9" in said
    refused = espnet3("replay", run.path, "17", cwd=tmp_path, ok=False).stderr
    assert "17 is not among the run's 4 indices (0 to 3)" in refused


def test_a_run_from_a_notebook_cannot_be_made_again() -> None:
    """Classes without a file are refused, with what to do."""
    with pytest.raises(ConfigError, match=r"put it into a \.py file"):
        _reference("runner", {"path": "__main__:Count", "file": None}, "")
