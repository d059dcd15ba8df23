"""`espnet3 migrate` on fifty sets of files as they stand in recipes, against golden texts.

A file of `golden/` holds the command, the files that it reads (after `==== NAME`), and what is printed (after
`==== prints`). ESPNET3_GOLDEN=write writes the last part anew.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from omegaconf import OmegaConf

from espnet3.cli.configs import plan
from espnet3.cli.migrate.verb import migrate
from espnet3.parallel.config import ParallelConfig

GOLDEN = Path(__file__).parent / "golden"
FLAVOURS = ("run", "queue", "slurm", "pbs", "espnet2")
CASES = sorted(GOLDEN.glob("*/*.txt"))
_MARK = re.compile(r"^==== (.+)\n", re.MULTILINE)
_VALUE = re.compile(r"^ +(?:- |\w+: )(?!$)\S")  # a line that holds a value, rather than only a name


@dataclass(frozen=True)
class Case:
    """A golden file, taken apart."""

    arguments: list[str]
    files: dict[str, str]
    prints: str

    @classmethod
    def read(cls, path: Path) -> Case:
        command, *parts = _MARK.split(path.read_text(encoding="utf-8"))
        files = dict(zip(parts[::2], parts[1::2], strict=True))
        prints = files.pop("prints")
        return cls(shlex.split(command.removeprefix("$ espnet3 migrate ")), files, prints)


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.fixture(params=CASES, ids=name)
def printed(request, tmp_path, monkeypatch):
    """Run a case in a folder of its own; return its golden file and what was printed."""
    case = Case.read(request.param)
    for file, text in case.files.items():
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(migrate, case.arguments)
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return request.param, done.stdout


def test_there_are_ten_of_each_flavour() -> None:
    """Each of Kaldi's scripts, and ESPnet2's own cmd.sh, has ten cases."""
    counts = {flavour: sum(path.parent.name == flavour for path in CASES) for flavour in FLAVOURS}
    assert counts == dict.fromkeys(FLAVOURS, 10)


def test_the_block_is_the_golden_one_and_works(printed, tmp_path) -> None:
    """What is printed is the golden text, `espnet3 plan` accepts it, and each value says where it came from."""
    path, text = printed
    if os.environ.get("ESPNET3_GOLDEN") == "write":
        before = path.read_text(encoding="utf-8").partition("==== prints\n")[0]
        path.write_text(f"{before}==== prints\n{text}", encoding="utf-8")
    assert text == Case.read(path).prints
    (tmp_path / "parallel.yaml").write_text(text, encoding="utf-8")
    done = CliRunner().invoke(plan, ["parallel.yaml"])
    assert done.exit_code == 0, done.output
    config = ParallelConfig.parse(OmegaConf.create(text).parallel)
    said = (
        f"{config.n_workers} jobs of 1 worker"
        if "resource" in text or "walltime" in text
        else f"{config.n_workers} "
    )
    assert said in done.stdout
    block = text[text.index("parallel:") :].partition("\n\n")[0].splitlines()
    values = [line for line in block if _VALUE.match(line)]
    assert len(values) >= 2
    assert [line for line in values if "  # " not in line] == []
