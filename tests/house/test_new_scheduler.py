"""A scheduler that is new is one record: everything else follows from it."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.parallel.backends import BACKENDS
from tests.habits import rows

ROOT = Path(__file__).resolve().parents[2]
TOPS = [ROOT / "espnet3", ROOT / "espnet3_parallel"]
EXAMPLE = Path("tests/house/example")
CLAIMS = [
    node.name
    for node in ast.parse((ROOT / EXAMPLE / "claims.py").read_text(encoding="utf-8")).body
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name.lower().startswith("test")
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of this checkout, with the record of one more scheduler."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("espnet3", "espnet3_parallel", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    record = (folder / EXAMPLE / "record.py").read_text(encoding="utf-8")
    with (folder / "espnet3/parallel/backends/schedulers.py").open("a", encoding="utf-8") as file:
        file.write(f"{record}\nSCHEDULERS = (*SCHEDULERS, EXAMPLE)\n")
    return folder


@pytest.mark.parametrize("claim", rows(CLAIMS, [name for name in CLAIMS if name != "TestContract"]))
def test_a_new_scheduler_is_one_record(claim: str, tree: Path) -> None:
    """With its record a scheduler has all that is claimed in `example/claims.py`."""
    paths = [str(tree), str(tree / EXAMPLE), *filter(None, [os.environ.get("PYTHONPATH")])]
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "", f"{EXAMPLE}/claims.py::{claim}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_code_asks_the_record_and_not_for_a_name() -> None:
    """Outside the records and the words of Kaldi's scripts no code names a scheduler."""
    names = {name for name, each in BACKENDS.items() if not each.is_local} | {"local_gpu"}
    records = ("parallel/backends/__init__.py", "parallel/backends/schedulers.py")
    records += ("migrate/",)  # translates scripts that are each made for one scheduler
    found = []
    files = [(path, path.relative_to(top)) for top in TOPS for path in sorted(top.rglob("*.py"))]
    for path, inside in files:
        place = inside.as_posix()
        if place.startswith(records):
            continue
        found += [
            f"{place}:{node.lineno}: {node.value!r}"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and node.value in names
        ]
    assert not found, "\n".join(found)
