"""Resolves every extra as pip would install it, alone and all together: `python -m tests.extras [PYTHON...]`.

Nothing is installed. An extra that pip cannot resolve, or only by walking back below a lower bound of `pyproject.toml`,
is an error; so is one that has no solution with each of its bounds as the version, alone. Each PYTHON is an interpreter
that has pip; without one, this one is asked. `PART=1/3`: all together, and a part of the others.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 900  # seconds for one resolution; the package lists of an index are downloaded


def extras() -> list[str]:
    """Return the names of all extras, and all but `dev` together."""
    names = metadata("espnet3-parallel").get_all("Provides-Extra") or []
    return [*names, ",".join(name for name in names if name != "dev")]


def lowest(extra: str) -> list[str]:
    """Return the lower bounds of an extra as versions: what pip takes where each package is the oldest allowed."""
    found, names = [], extra.split(",")
    needs = list(map(Requirement, metadata("espnet3-parallel").get_all("Requires-Dist") or []))
    # extras that bring extras first
    for each in sorted(needs, key=lambda one: one.name != "espnet3-parallel"):
        marker = str(each.marker or "")
        if "extra" not in marker or any(f'extra == "{name}"' in marker for name in names):
            names += each.extras
            of_python = [part for part in marker.split(" and ") if part.startswith("python_version")]
            bounds = [bound.version for bound in each.specifier if bound.operator == ">="]
            found += ["; ".join([f"{each.name}=={bound}", *of_python]) for bound in bounds]
    return found


def resolve(python: str, extra: str, constraints: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions that a Python's pip would install; a RuntimeError has pip's words where none fit."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run"]
        limits = Path(folder, "constraints.txt")
        limits.write_text("\n".join(constraints))
        command += ["--ignore-installed", "--report", str(report), "-c", str(limits), f"{ROOT}[{extra}]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
            raise RuntimeError("\n".join(errors[-15:]))
        installs = json.loads(report.read_text())["install"]
        found = [each["metadata"] for each in installs]
        ours = next(each for each in found if each["name"] == "espnet3-parallel")
        versions = {canonical(each["name"]): each["version"] for each in found}
    version = subprocess.check_output(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], text=True
    ).strip()
    for problem in below(versions, ours["requires_dist"], extra.split(","), version):
        raise RuntimeError(problem)
    return versions


def below(versions: dict[str, str], wanted: list[str], names: list[str], python: str) -> Iterator[str]:
    """Yield what is wrong with resolved versions: one that is missing, or outside what the extras ask for."""
    for text in wanted:
        each = Requirement(text)
        asked = any(
            each.marker is None or each.marker.evaluate({"extra": name, "python_version": python})
            for name in names
        )
        there = versions.get(canonical(each.name))
        if asked and there is None:
            yield f"{each}: not among what pip would install"
        elif asked and there is not None and not each.specifier.contains(there, prereleases=True):
            yield f"{each}: pip would install {there}"


def canonical(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return name.lower().replace("_", "-").replace(".", "-")


def main() -> int:
    """Resolve all, and say what was found; return 1 if one of them failed."""
    failed = 0
    part, parts = map(int, os.environ.get("PART", "0/1").split("/"))
    for python in sys.argv[1:] or [sys.executable]:
        # a tool may be of any age, and nobody has all extras at their lowest: their packages pin one another's
        *names, together = extras()
        alone = [(name, []) for name in names] + [(name, lowest(name)) for name in names if name != "dev"]
        for extra, constraints in [(together, []), *alone[part::parts]]:
            what = f"{python} [{extra}]{' at its lowest' if constraints else ''}"
            try:
                versions = resolve(python, extra, constraints)
            except RuntimeError as error:
                failed += 1
                print(f"FAILED  {what}: {error}", flush=True)
            else:
                shown = {name: versions[name] for name in SHOWN if name in versions}
                print(f"ok  {what}: {len(versions)} packages; {shown}", flush=True)
    return int(failed > 0)


SHOWN = ("dask", "dask-cuda", "dask-kubernetes", "dask-jobqueue", "torch", "lightning")

if __name__ == "__main__":
    sys.exit(main())
