"""`espnet3-parallel size` without an earlier run: a few items are run here first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.parallel.views.sizing import walltime

MINE = """
import time

from espnet3.parallel import BaseRunner, EnvironmentProvider
class Provider(EnvironmentProvider):
    def build_env_local(self):
        time.sleep(0.2)
        return {"seconds": self.config.seconds, "big": bytearray(200_000_000)}

class Sleeps(BaseRunner):
    @staticmethod
    def forward(idx, seconds):
        if idx == 11:
            raise ValueError("no such file")
        time.sleep(seconds)
        return idx
"""


def ask(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder that has the classes and a configuration."""
    (folder / "mine.py").write_text(MINE)
    (folder / "conf.yaml").write_text(
        "seconds: 0.2\nparallel: {env: slurm, n_workers: 2, options: {queue: cpu, cores: 1, memory: 2GB}}\n"
    )
    return subprocess.run(
        [Path(sys.executable).with_name("espnet3-parallel"), "size", "conf.yaml", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_few_items_are_run_in_a_process_of_their_own_and_measured(tmp_path: Path) -> None:
    """The time of an item, the start, and memory are those of the classes; nothing stays in the folder."""
    classes = ("--runner", "mine:Sleeps", "--provider", "mine:Provider")
    done = ask(tmp_path, "--items", "50000", *classes, "--within", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # 10,000 s of work and a start of a second at most, in an hour
    assert 3 <= found["size"]["workers"] <= 12
    options = found["parallel"]["options"]
    assert options["memory"].endswith("MB") and int(options["memory"][:-2]) >= 500
    assert options["walltime"] == walltime(found["size"]["wall"])
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "conf.yaml", "__pycache__"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Give --runner MODULE:CLASS and --provider MODULE:CLASS; or an earlier run of it: --run FOLDER"),
        (("--run", ".", "--runner", "mine:Sleeps"), "leave out --runner and --provider"),
        (
            ("--runner", "mine:Sleeps", "--provider", "mine:Provider", "--sample", "12"),
            "ItemError: item 11 failed on worker 0: ValueError: no such file",
        ),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    """No classes, both ways at once, an item that fails."""
    done = ask(tmp_path, "--items", "100", *arguments)
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 2)
