"""The recipe's stage `infer` as detached jobs whose submitter is killed; somebody else waits and merges."""

import json
import subprocess
import sys
from pathlib import Path

from tests.parallel.detached.work import ROOT, espnet3, program

RECIPE = ROOT / "egs3" / "asterisk" / "asr"
TEST_SET = "exp/inference/prompts"

# run.py as a user starts it, but for the end: it stays until it is killed
_SUBMIT = """
import runpy, sys

recipe, *arguments = sys.argv[1:]
main = runpy.run_path(recipe)["main"]
assert main(arguments) == 0
print("submitted", flush=True)
sys.stdin.readline()
"""


def recognised(folder: Path, *arguments: str) -> bytes:
    command = [sys.executable, str(RECIPE / "run.py"), "--stages", "infer", *arguments, "exp_dir=exp"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / TEST_SET / "text").read_bytes()


def submit_and_die(folder: Path, block: dict[str, object], *arguments: str) -> Path:
    """Submit the stage in a process that gets SIGKILL once its jobs are handed over; return the run's folder."""
    (folder / "submit.py").write_text(_SUBMIT)
    (folder / "parallel.yaml").write_text(json.dumps({"parallel": block}))  # JSON is YAML
    words = ["--stages", "infer", "--parallel_config", "parallel.yaml"]
    words += ["runner.async_mode=true", "exp_dir=exp"]
    with program("submit.py", str(RECIPE / "run.py"), *words, *arguments, cwd=folder) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if line == "submitted\n":
                break
        process.kill()
    assert said[-1:] == ["submitted\n"] and process.returncode == -9, said
    return folder / TEST_SET


def merged_elsewhere(run: Path, folder: Path) -> bytes:
    """Wait for a run and merge it in processes that are somewhere else; return the bytes of `text`."""
    assert not (run / "text").exists()
    espnet3("status", run, cwd=folder, ok=False)
    espnet3("wait", run, "--timeout", 500, cwd=folder, seconds=600)  # ends with 0 where every shard is done
    espnet3("merge", run, cwd=folder)
    return (run / "text").read_bytes()
