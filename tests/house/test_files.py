"""What the repository's files may hold."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 500

# A folder of somebody's machine, at the start of an absolute path.
MACHINE_PATH = re.compile(r"(?<![\w./$}-])/(?:root|work|tmp|home/\w+)\b")
# Where packages are fetched from is the business of whoever installs, not of a file here.
REGISTRY = re.compile(
    r"\b(?:pypi\.org|pythonhosted\.org|anaconda\.org|debian\.org|docker\.io|ghcr\.io|quay\.io|huggingface\.co)\b"
    r"|index[-_]url|find[-_]links"
)


def repository_files() -> list[Path]:
    """Return the files git tracks or would track."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def matches(pattern: re.Pattern[str]) -> list[str]:
    """Return "file:line: text" of every match in the repository's text files."""
    found = []
    for path in repository_files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:  # a picture or the like
            continue
        at = path.relative_to(ROOT)
        found += [
            f"{at}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if pattern.search(line)
        ]
    return found


def test_no_file_names_a_path_of_a_machine() -> None:
    """No file holds an absolute path into a home or scratch folder."""
    assert matches(MACHINE_PATH) == []


def test_no_file_names_a_package_registry() -> None:
    """No file says from which host packages are to be fetched."""
    assert matches(REGISTRY) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (MACHINE_PATH, f'path = "{"/ro"}ot/data"'),
        (MACHINE_PATH, f"see {'/ho'}me/someone/x"),
        (REGISTRY, f"https://{'py'}pi.org/simple"),
        (REGISTRY, f"pip install --extra-{'index'}-url x"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], line: str) -> None:
    """Each pattern matches an example of what it forbids."""
    assert pattern.search(line)


def test_files_of_the_package_are_short() -> None:
    """No file of the package has more than 400 lines: one subject each."""
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in sorted((ROOT / "espnet3").rglob("*.py"))
    }
    assert lengths
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_every_test_states_its_claim() -> None:
    """Every test function has a docstring, which says in a sentence what is claimed."""
    silent = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
                claim = ast.get_docstring(node) or ""
                if not claim.rstrip().endswith("."):
                    silent.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert silent == []
