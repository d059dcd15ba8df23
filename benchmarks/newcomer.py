"""`python -m benchmarks.newcomer`: what a newcomer waits for, from the clone to the replay of a failed item.

Each step is what somebody types who has read README and nothing else, in a clone of this repository and an environment
without what this shell has set. A step that does not show what it must ends the path.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import OUT, ROOT, machine
from benchmarks.tables import grid

TYPED = 'forward(idx, texts, scal):  # "scale", misspelt'
MISTAKE = ("forward(idx, texts, scale):", "forward(idx, texts, scal):")
FOLDER = ('CountWords(Corpus({"scale": 10}))', 'CountWords(Corpus({"scale": 10}), output_dir="runs/words")')
BAD = ('"one two three"', "None")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is typed.

    Attributes:
        what: What somebody wants at that moment.
        typed: The command.
        seconds: Until it was over.
        seen: The line of what it printed that matters.
    """

    what: str
    typed: str
    seconds: float
    seen: str


class Trail:
    """The steps so far, in one folder.

    Args:
        home: Where everything goes.
        python: The interpreter that `make` is given.
    """

    def __init__(self, home: Path, python: str) -> None:
        self.steps: list[Step] = []
        self._home = home
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PYTHON": python,
            **pip,
        }

    def step(self, what: str, typed: str, must: str, code: int = 0) -> None:
        """Type something; a line of what it prints must match.

        Raises:
            RuntimeError: None does, or it ended otherwise.
        """
        begin = time.perf_counter()
        done = subprocess.run(
            ["bash", "-c", typed], cwd=self._home, env=self._env, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - begin
        said = f"{done.stdout}\n{done.stderr}"
        lines = [line for line in said.splitlines() if re.search(must, line)]
        if done.returncode != code or not lines:
            raise RuntimeError(
                f"{typed}: exit status {done.returncode}, and this is not there: {must}\n{said[-3000:]}"
            )
        self.steps.append(Step(what, typed, seconds, lines[-1].strip()))

    def write(self, name: str, text: str) -> None:
        """Write a script."""
        (self._home / name).write_text(text)


def example() -> str:
    """Return README's first example."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def changed(text: str, *changes: tuple[str, str]) -> str:
    """Return a text with parts of it changed; each is there."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def walk(home: Path, python: str, demo: bool) -> list[Step]:
    """Go the whole path."""
    trail, text = Trail(home, python), example()
    run = "clone/.venv/bin/python words.py"
    trail.step("a clone", f"git clone -q file://{ROOT} clone && echo cloned", "cloned")
    if demo:
        trail.step(
            "recognised speech", "cd clone && make demo PYTHON=$PYTHON", "real-time factor|WER|word error"
        )
    else:
        trail.step("an environment", "cd clone && make .venv/recipe.stamp PYTHON=$PYTHON", "installing")
    trail.write("words.py", text)
    trail.step("the example of README", run, r"\[20, 30, 10\]")
    trail.write("words.py", changed(text, MISTAKE))
    trail.step(f"a mistake: `{TYPED}`", run, "SignatureError.*scal", code=1)
    trail.write("words.py", text)
    trail.step("the fix", run, r"\[20, 30, 10\]")
    trail.write("words.py", changed(text, BAD, FOLDER))
    trail.step("an item that fails, in a run with a folder", run, "ItemError|AttributeError", code=1)
    trail.step(
        "its replay",
        "clone/.venv/bin/espnet3-parallel replay runs/words 1",
        "item 1 now: raised.*same as then",
        code=1,
    )
    trail.write("words.py", changed(text, FOLDER))
    trail.step("the fix, and the same folder", run, r"ChangedRunError|\[20, 30, 10\]", code=1)
    trail.write("words.py", changed(text, FOLDER, ('"runs/words")', '"runs/words", resume="force")')))
    trail.step("what it advised", run, "resuming: 1 done")
    return trail.steps


def table(steps: Sequence[Step]) -> str:
    """Return the path as a table."""
    head = ["what", "seconds", "what is seen"]
    return grid(head, [[s.what, f"{s.seconds:.1f}", s.seen[:100]] for s in steps])


def main(argv: Sequence[str] | None = None) -> int:
    """Go the path, print it, write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.newcomer", description=__doc__)
    parser.add_argument(
        "--python", default=os.path.realpath(sys.executable), help="for make; default: this one"
    )
    parser.add_argument("--no-demo", action="store_true", help="leave out the recognition of speech")
    parser.add_argument("--out", type=Path, default=OUT / "newcomer.json", help="default %(default)s")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="espnet3-newcomer-") as home:
        steps = walk(Path(home), args.python, demo=not args.no_demo)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"schema": 1, "machine": machine.describe(["numpy"]), "steps": [asdict(s) for s in steps]}
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(steps))
    print(f"written: {args.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
