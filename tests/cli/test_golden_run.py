"""One run's merged files, and what `status` and `report` say of it as JSON, against golden files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from espnet3_parallel.main import main

GOLDEN = Path(__file__).parent / "golden" / "run"
PROGRAM = """
from espnet3.parallel import BaseRunner, EnvironmentProvider

class Words(EnvironmentProvider):
    def build_env_local(self):
        return {"texts": [f"text number {i}" for i in range(12)]}

class Measure(BaseRunner):
    @staticmethod
    def forward(idx, texts):
        if idx == 7:
            raise ValueError("a bad recording")
        return {"text": texts[idx], "at": (idx, idx / 8), "r": float("nan") if idx == 3 else idx / 3, "raw": b"\\xff"}

Measure(Words(), output_dir="run", on_error="record", seed=4)(range(12))
"""
OF_THE_MACHINE = {"origin", "packages", "pid", "host", "memory", "driver", "errors_sha256"}
OF_THE_SPEED = {"times", "slowest", "stretches", "conclusions", "figures"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("golden")
    (place / "prog.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "prog.py"], cwd=place, check=True, capture_output=True)
    return place / "run"


def steady(value, place):
    """Leave out of a JSON value what no two runs have alike."""
    if isinstance(value, dict):
        hidden = OF_THE_MACHINE | OF_THE_SPEED
        return {key: steady(each, place) for key, each in value.items() if key not in hidden}
    if isinstance(value, list):
        return [steady(each, place) for each in value]
    if isinstance(value, float):
        return "a float"
    return value.replace(str(place), "HERE") if isinstance(value, str) else value


def same(name, text):
    """Compare with a golden file; ESPNET3_GOLDEN=write makes it anew."""
    file = GOLDEN / name
    if os.environ.get("ESPNET3_GOLDEN") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def test_the_merged_results_are_the_golden_bytes(folder):
    """`results.jsonl` is equal byte for byte."""
    same("results.jsonl", (folder / "results.jsonl").read_text())


@pytest.mark.parametrize("name", ["errors.jsonl", "receipt.json"])
def test_failures_and_the_receipt_are_the_golden_ones(folder, name):
    """But for times, the folder's path and the checksum over both."""
    value = steady(json.loads((folder / name).read_text()), folder.parent)
    same(name, json.dumps(value, indent=1) + "\n")


@pytest.mark.parametrize(("verb", "option"), [("status", ["--json"]), ("report", ["--format", "json"])])
def test_the_verbs_say_it_as_the_golden_files_do(folder, verb, option):
    """But for times, processes and the machine."""
    done = CliRunner().invoke(main, [verb, str(folder), *option])
    assert done.exit_code == 0, done.output
    same(f"{verb}.json", json.dumps(steady(json.loads(done.output), folder.parent), indent=1) + "\n")
