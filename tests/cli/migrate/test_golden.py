"""`espnet3-parallel migrate` on sets of files as they stand in recipes, against golden texts.

A file of `golden/` holds the command, the files it reads, and what it prints; ESPNET3_GOLDEN=write writes that anew.
"""

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from omegaconf import OmegaConf

from espnet3.parallel.config import ParallelConfig
from espnet3_parallel.configs import plan
from espnet3_parallel.migrate.verb import migrate

CASES = sorted((Path(__file__).parent / "golden").glob("*/*.txt"))
_MARK = re.compile(r"^==== (.+)\n", re.MULTILINE)
_VALUE = re.compile(r"^ +(?:- |\w+: )(?!$)\S")  # a line that holds a value, rather than only a name


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_block_is_the_golden_one_and_works(path: Path, tmp_path: Path, monkeypatch) -> None:
    """The printed text is the golden one, `espnet3-parallel plan` accepts it, and each value says its source."""
    command, *parts = _MARK.split(path.read_text(encoding="utf-8"))
    files = dict(zip(parts[::2], parts[1::2], strict=True))
    golden = files.pop("prints")
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    done = CliRunner().invoke(migrate, shlex.split(command.removeprefix("$ espnet3-parallel migrate ")))
    assert (done.exit_code, done.stderr) == (0, "")
    printed = done.stdout
    if os.environ.get("ESPNET3_GOLDEN") == "write":
        before = path.read_text(encoding="utf-8").partition("==== prints\n")[0]
        path.write_text(f"{before}==== prints\n{printed}", encoding="utf-8")
        golden = printed
    assert printed == golden
    Path("parallel.yaml").write_text(printed, encoding="utf-8")
    planned = CliRunner().invoke(plan, ["parallel.yaml"])
    assert planned.exit_code == 0, planned.output
    n_workers = ParallelConfig.parse(OmegaConf.create(printed).parallel).n_workers
    assert f"{n_workers} jobs of 1 worker" in planned.stdout or planned.stdout.startswith(f"{n_workers} ")
    block = printed[printed.index("parallel:") :].partition("\n\n")[0].splitlines()
    values = [line for line in block if _VALUE.match(line)]
    assert len(values) >= 2
    assert [line for line in values if "  # " not in line] == []
