"""ESPnet's own tests, with its own layer and with ours: what passes with one and not with the other."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.dropin.environment import Scratch

_NAMES = ("parallel", "systems", "components", "contract", "utils", "publication")
FOLDERS = (*(f"test/espnet3/{name}" for name in _NAMES), "test/ci")
_TEST_LIMIT = "600"  # seconds for one test that states none, on a busy machine
_LIMIT = 3600  # seconds for all tests of one folder on a busy machine


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one test ended: "passed", "failed" or "skipped", and the first line of why."""

    result: str
    why: str = ""


def run(scratch: Scratch, tree: Path, folder: str) -> dict[str, Outcome]:
    """Run the tests of one folder and return the outcome of each, by its name."""
    file = scratch.folder / f"{tree.name}-{folder.replace('/', '-')}.xml"
    file.unlink(missing_ok=True)
    done = subprocess.run(
        [
            *(str(scratch.python), "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"),
            *("--execution-timeout", _TEST_LIMIT, "--continue-on-collection-errors"),
            *("--junitxml", str(file), folder),
        ],
        cwd=tree,
        env=scratch.env(tree),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_LIMIT,
        check=False,
    )
    if not file.exists():
        raise RuntimeError(f"pytest {folder} in {tree} ended with {done.returncode}: {done.stdout[-2000:]}")
    return dict(_read(file))


def _read(file: Path) -> list[tuple[str, Outcome]]:
    found = []
    for case in ElementTree.parse(file).iter("testcase"):  # written a moment ago, by us
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        bad = next((child for child in case if child.tag in ("failure", "error")), None)
        if bad is not None:
            found.append((name, Outcome("failed", (bad.get("message") or "").partition("\n")[0])))
        elif case.find("skipped") is not None:
            found.append((name, Outcome("skipped")))
        else:
            found.append((name, Outcome("passed")))
    return found


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of one folder with both layers: counts, and those that pass with one of them alone."""

    where: str
    total: int
    theirs: int
    ours: int
    lost: dict[str, str]
    gained: tuple[str, ...]


def compare(scratch: Scratch, folder: str) -> Suite:
    """Run the tests of one folder with both layers, at the same time."""
    with ThreadPoolExecutor(2) as both:
        theirs, ours = both.map(lambda tree: run(scratch, tree, folder), (scratch.theirs, scratch.ours))

    def passed(outcomes: dict[str, Outcome]) -> set[str]:
        return {name for name, outcome in outcomes.items() if outcome.result == "passed"}

    missing = Outcome("failed", "was not collected")
    return Suite(
        folder,
        len(theirs),
        len(passed(theirs)),
        len(passed(ours)),
        {name: ours.get(name, missing).why for name in sorted(passed(theirs) - passed(ours))},
        tuple(sorted(passed(ours) - passed(theirs))),
    )
