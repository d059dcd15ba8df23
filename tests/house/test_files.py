"""What the repository's files may hold."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Lines of Python that a room may have. A number may be lowered; a room gets lines only from another one, so that those
# of `espnet3/parallel` together are never more. A room is what begins with one of its paths, and with none of another
# room's that says more.
BUDGET: list[tuple[int, list[str]]] = [
    (1_928, ["espnet3/parallel/"]),
    (
        2_395,
        [
            "espnet3/parallel/config.py",
            "espnet3/parallel/checks.py",
            "espnet3/parallel/backends/",
            "espnet3/parallel/runner/arguments.py",
        ],
    ),
    (2_125, ["espnet3/parallel/provenance/"]),
    (2_605, ["espnet3/parallel/ledger/"]),
    (2_463, ["espnet3/parallel/engine/", "espnet3/parallel/env/", "espnet3/parallel/timing/"]),
    (2_204, ["espnet3/parallel/pilots/"]),
    (1_004, ["espnet3/parallel/local/"]),
    (
        3_535,
        [
            "espnet3/parallel/clusters/",
            "espnet3/parallel/dask_compat/",
            "espnet3/parallel/pilots/dask/",
            "espnet3/parallel/local/dask/",
            "espnet3/parallel/local/pages.py",
            "espnet3/parallel/local/worker_process.py",
            "espnet3/parallel/env/calls.py",
            "espnet3/parallel/kube/spec.py",
            "espnet3/parallel/kube/guard.py",
            "espnet3/parallel/runner/calls/background.py",
        ],
    ),
    (4_746, ["espnet3/parallel/jobs/", "espnet3/parallel/detached/", "espnet3/parallel/kube/"]),
    (1_680, ["espnet3/parallel/runner/"]),
    (1_617, ["espnet3/parallel/views/"]),
    (698, ["espnet3/parallel/testing/", "espnet3/parallel/functions/"]),
    (2_553, ["espnet3_parallel/"]),
    (4_948, ["espnet3/components/", "espnet3/systems/"]),
    (41_490, ["tests/"]),
]

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


def test_no_room_outgrows_its_budget() -> None:
    """The Python files of a room have at most as many lines together as its budget allows."""
    room_of = {start: room for room, (_, starts) in enumerate(BUDGET) for start in starts}
    lines = [0] * len(BUDGET)
    for folder in ("espnet3", "espnet3_parallel", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            starts = [start for start in room_of if name.startswith(start)]
            if starts:
                lines[room_of[max(starts, key=len)]] += len(path.read_bytes().splitlines())
    most = [most for most, _ in BUDGET]
    over = [f"{starts}: {n} lines" for n, (most, starts) in zip(lines, BUDGET, strict=True) if n > most]
    assert over == [], most


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
