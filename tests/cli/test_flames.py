"""The flame graph of `espnet3-parallel replay --profile`, by a real py-spy."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from espnet3_parallel.flames import FlameGraph, sampler

SPINS = """
import time
from espnet3.parallel import BaseRunner, EnvironmentProvider
class Nothing(EnvironmentProvider):
    def build_env_local(self):
        return {}
class Spins(BaseRunner):
    @staticmethod
    def forward(idx):
        end = time.process_time() + 0.2
        while time.process_time() < end:
            sum(range(1000))
if __name__ == "__main__":
    Spins(Nothing(), output_dir="run", progress=False)(range(1))
"""
SEEN = 0.5  # seconds of work, of which a sample is taken five hundred times a second


def spin_visibly(seconds: float) -> None:
    """Use the processor for so long."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))


@pytest.fixture
def command() -> str:
    found = sampler()
    if found is None:
        pytest.skip("needs the py-spy of the extra [dev]")
    return found


def test_the_graph_names_the_function_that_took_the_time(command: str, tmp_path: Path) -> None:
    """What runs in the block is sampled, and the file is a picture."""
    with FlameGraph(command, tmp_path / "flames.svg") as graph:
        spin_visibly(SEEN)
    assert not graph.problem
    text = (tmp_path / "flames.svg").read_text()
    assert "<svg" in text and "spin_visibly" in text


def test_what_was_too_quick_is_said_and_leaves_no_file(command: str, tmp_path: Path) -> None:
    """py-spy writes a picture that only says that it has seen nothing: it is taken away again."""
    with FlameGraph(command, tmp_path / "flames.svg") as graph:
        pass
    # on a machine that stops this process meanwhile something may have been seen
    assert bool(graph.problem) != (tmp_path / "flames.svg").exists()
    assert graph.problem in ("", "it was over before anything was seen of it")


def test_a_sampler_that_fails_costs_the_graph_alone(tmp_path: Path) -> None:
    """The block runs, and the problem is said."""
    ran = []
    with FlameGraph("/bin/false", tmp_path / "flames.svg") as graph:
        ran.append(1)
    assert ran and graph.problem == "it ended with exit status 1" and not (tmp_path / "flames.svg").exists()


def test_replay_draws_the_item_where_it_is_called(command: str, tmp_path: Path) -> None:
    """The picture lies in the caller's folder and not in the run's, to which replay goes over for the item."""
    (tmp_path / "spins.py").write_text(SPINS)
    there = tmp_path / "elsewhere"
    there.mkdir()
    program = Path(sys.executable)
    subprocess.run([program, "spins.py"], cwd=tmp_path, check=True, timeout=600)
    words = [program.with_name("espnet3-parallel"), "replay", tmp_path / "run", "0", "--profile"]
    done = subprocess.run(words, cwd=there, capture_output=True, text=True, check=True, timeout=600)
    assert f"a flame graph is in {there / 'replay-0.svg'}" in done.stdout
    assert "forward (spins.py" in (there / "replay-0.svg").read_text()
