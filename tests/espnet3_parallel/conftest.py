"""The wheels of this repository, a stand-in for ESPnet's, and environments to install them into."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.habits import rows

ROOT = Path(__file__).resolve().parents[2]

# As ESPnet's distribution has them: packages of a docstring each, and modules under the names of ours.
ESPNET = {
    "espnet3/__init__.py": '"""ESPnet."""\n',
    "espnet3/parallel/__init__.py": '"""ESPnet."""\n',
    **{
        f"espnet3/parallel/{name}.py": f"OWNER = {name!r}\n"
        for name in ("base_runner", "env_provider", "inference_provider", "parallel")
    },
    "espnet3/systems/__init__.py": '"""ESPnet."""\n',
    "espnet3/systems/only_theirs.py": "OWNER = 'espnet'\n",
}


@dataclass(frozen=True)
class Place:
    """An environment to install into, whose Python also sees the packages that our code needs."""

    folder: Path

    def pip(self, *words: str | Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def install(self, *wheels: Path) -> None:
        self.pip("install", "--quiet", "--no-deps", "--no-index", *wheels)

    def copy(self, folder: Path) -> Place:
        """Return a copy to change."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Place(folder)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def run(self, *words: str | Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run Python, or a command of the environment; `path` comes first on its path."""
        # a folder of PYTHONPATH is taken as it is: the development install of this checkout stays out
        names = [*([path] if path else []), sysconfig.get_path("purelib")]
        return subprocess.run(
            [self.folder / "bin" / words[0], *words[1:]],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, names))},
            capture_output=True,
            text=True,
            check=False,
        )

    def python_says(self, code: str, path: Path | None = None) -> str:
        done = self.run("python", "-c", code, path=path)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@dataclass(frozen=True)
class Wheels:
    """The layer, the systems, and what stands for ESPnet's."""

    layer: Path
    systems: Path
    espnet: Path


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    pytest.importorskip("build", reason="needs build, of the extra [dev]")
    if int(version("setuptools").split(".")[0]) < 77:
        pytest.skip("needs the setuptools of the extra [dev]")
    folder = tmp_path_factory.mktemp("wheels")
    source = folder / "source"  # setuptools leaves its traces in the folder that it builds
    source.mkdir()
    for name in ("espnet3", "espnet3_parallel", "systems"):
        shutil.copytree(
            ROOT / name,
            source / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source / name)
    return Wheels(_build(source, folder / "1"), _build(source / "systems", folder / "2"), _espnet(folder))


def make_place(folder: Path) -> Place:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return Place(folder)


@pytest.fixture(scope="session", params=rows(["espnet last", "espnet first"], ["espnet last"]))
def both(
    request: pytest.FixtureRequest, wheels: Wheels, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Place, str]:
    """An environment with both, and the order of their installation."""
    place = make_place(tmp_path_factory.mktemp("both") / "place")
    order = [wheels.espnet, wheels.layer]
    for wheel in order if request.param == "espnet first" else reversed(order):
        place.install(wheel)
    return place, request.param


@pytest.fixture(scope="session")
def alone(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An environment with the layer and the systems, without ESPnet."""
    place = make_place(tmp_path_factory.mktemp("alone") / "place")
    place.install(wheels.layer, wheels.systems)
    return place


def _build(source: Path, out: Path) -> Path:
    made = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


def _espnet(folder: Path) -> Path:
    info = "espnet-202611.dist-info"
    files = {
        **ESPNET,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: espnet\nVersion: 202611\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{name},sha256={_digest(text)},{len(text)}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    wheel = folder / "espnet-202611-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
