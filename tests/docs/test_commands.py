"""The pages' commands: those of two pages print what is shown, all others are understood."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from espnet3_parallel.main import main
from tests.docs.test_docs import PAGES, ROOT, blocks, commands, name, script

NAME = "espnet3-parallel"
# The page, the name under which its script is saved, and how many of its commands print something
SHOWN = [("watching", "letters.py", 6), ("quickstart", "first.py", 3)]


def like(line: str) -> str:
    """Return a line without its numbers, which differ from run to run; 240 µs may be 2 ms on a busy machine."""
    line = re.sub(r"\d+(?:[.,]\d+)*", "0", " ".join(line.split()))
    return re.sub(r"\b0 (µs|ms|s)\b", "0 s", line)


@pytest.mark.parametrize(("page", "saved", "most"), SHOWN, ids=[page for page, _, _ in SHOWN])
def test_the_commands_of_the_page_print_what_it_shows(
    page: str, saved: str, most: int, tmp_path: Path
) -> None:
    """Every `$ espnet3-parallel` line runs, and each line shown below it is printed, but for its numbers."""
    path = ROOT / f"docs/{page}.md"
    (tmp_path / saved).write_text(script(path).partition("from espnet3.parallel.ledger.merge import")[0])
    for block in blocks(path, "yaml"):
        (tmp_path / "conf.yaml").write_text("\n".join(block.lines))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, saved], cwd=tmp_path, env=environment, check=True, timeout=600)
    printed: list[str] | None = None  # None: the command above is of another program
    found = 0
    for line in (line for block in blocks(path, "console") for line in block.lines):
        if line.startswith(f"$ {NAME} "):
            found += 1
            words = shlex.split(line.removeprefix(f"$ {NAME} "))
            done = subprocess.run(
                [sys.executable, "-m", "espnet3_parallel", *words],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=600,
            )
            printed = [like(each) for each in done.stdout.splitlines()]
        elif line.startswith("$ "):
            printed = None
        elif line != "..." and printed is not None:
            assert like(line) in printed, f"{line!r} is not in {printed}"
    assert found == most


def test_the_commands_of_all_pages_are_understood() -> None:
    """Every verb that a page types is there, with each of its options."""
    found = 0
    for page in PAGES:
        for verb, *words in commands(page, NAME):
            found += 1
            command = main.get_command(click.Context(main), verb)
            assert command is not None or verb == "--version", f"{name(page)}: {verb}"
            known = {option for each in getattr(command, "params", ()) for option in each.opts}
            said = {word.split("=")[0] for word in words if word.startswith("-")}
            assert said <= known, f"{name(page)}: {verb} {said - known}"
    assert found > 20
