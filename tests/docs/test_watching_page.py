"""The page about watching: each of its commands, run on the folder that its script leaves, prints what it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.docs.test_docs import ROOT, blocks, script

PAGE = ROOT / "docs" / "watching.md"


def like(line: str) -> str:
    """Return a line without its numbers, which differ from run to run; 240 µs may be 2 ms on a busy machine."""
    return re.sub(r"\b0 (µs|ms|s)\b", "0 s", re.sub(r"\d+(?:[.,]\d+)*", "0", " ".join(line.split())))


def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    """Every `$ espnet3-parallel` line runs, and each line shown below it is printed, but for its numbers."""
    (tmp_path / "letters.py").write_text(script(PAGE).partition("from espnet3.parallel.ledger import")[0])
    (conf,) = blocks(PAGE, "yaml")
    (tmp_path / "conf.yaml").write_text("\n".join(conf.lines))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "letters.py"], cwd=tmp_path, env=environment, check=True, timeout=600)
    printed: list[str] = []
    found = 0
    for line in (line for block in blocks(PAGE, "console") for line in block.lines):
        if line.startswith("$ espnet3-parallel "):
            found += 1
            words = shlex.split(line.removeprefix("$ espnet3-parallel "))
            command = [sys.executable, "-m", "espnet3_parallel", *words]
            done = subprocess.run(
                command,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=600,
            )
            printed = [like(each) for each in done.stdout.splitlines()]
        elif line != "...":
            assert like(line) in printed, f"{line!r} is not in {printed}"
    assert found == 6
