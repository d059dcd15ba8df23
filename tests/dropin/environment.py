"""The scratch environment of `make test-espnet3`: packages, ESPnet's source distribution, two trees of it.

Everything lies in one folder: a stamp holds what a step was made from, and a step is done again when that changes.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
ESPNET = "202611"
TORCHAUDIO = "torchaudio==2.11.0"


@dataclass(frozen=True, slots=True)
class Scratch:
    """The folder, its Python, and ESPnet's tree twice: as it is, and with this checkout's layer over it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def pristine(self) -> Path:
        return self.folder / f"espnet-{ESPNET}"

    @property
    def theirs(self) -> Path:
        return self.folder / "theirs"

    @property
    def ours(self) -> Path:
        return self.folder / "ours"

    def env(self, tree: Path) -> dict[str, str]:
        """Return the environment of a command in one of the trees."""
        recipe = tree / "egs3" / "mini_an4" / "esp2_asr"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
        return kept | {
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, [tree, tree / "egs3" / "TEMPLATE" / "esp2_asr", recipe])),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",  # in each process: two workers are not to share two cores with themselves
        }


def prepare(folder: Path) -> Scratch:
    """Make what is not there yet; the layer and both trees are new each time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    scratch = Scratch(folder)
    packages = (HERE / "requirements.txt").read_text(encoding="utf-8")
    _once(folder / "venv.stamp", packages + TORCHAUDIO + sys.version, lambda: _make_venv(scratch))
    _once(folder / "sdist.stamp", ESPNET, lambda: _download(scratch))
    _install_layer(scratch)
    for tree in (scratch.theirs, scratch.ours):
        shutil.rmtree(tree, ignore_errors=True)
        # with new times, as a user's own checkout has them after each update
        shutil.copytree(scratch.pristine, tree, copy_function=shutil.copy)
    subprocess.run([scratch.python.parent / "espnet3-parallel", "overlay", scratch.ours], check=True)
    return scratch


def _once(stamp: Path, made_from: str, make: Callable[[], None]) -> None:
    digest = hashlib.sha256(made_from.encode()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return
    make()
    stamp.write_text(digest, encoding="utf-8")


def _pip(scratch: Scratch, *words: str | Path) -> None:
    subprocess.run(
        [scratch.python, "-m", "pip", "--disable-pip-version-check", "--quiet", *words], check=True
    )


def _make_venv(scratch: Scratch) -> None:
    shutil.rmtree(scratch.folder / "venv", ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", scratch.folder / "venv"], check=True)
    _pip(scratch, "install", "torch==2.13.0")
    _pip(scratch, "install", "-r", HERE / "requirements.txt")
    # Its wheel for Linux is made for CUDA. Without CUDA its compiled half cannot be loaded; without that half it can.
    _pip(scratch, "install", "--no-deps", TORCHAUDIO)
    if subprocess.run(
        [scratch.python, "-c", "import torchaudio"], capture_output=True, check=False
    ).returncode:
        (libraries,) = (scratch.folder / "venv").glob("lib/python*/site-packages/torchaudio/lib")
        for library in libraries.glob("*.so"):
            library.unlink()
    if shutil.which("sph2pipe") is None:
        command = scratch.python.parent / "sph2pipe"
        command.write_text(f"#!{scratch.python}\n" + (HERE / "sph2pipe.py").read_text(encoding="utf-8"))
        command.chmod(0o755)


def _download(scratch: Scratch) -> None:
    # its code runs on older Pythons than it declares, and a CPU build of torch may exist for those only
    _pip(
        scratch,
        *("download", "--no-deps", "--no-binary", "espnet", "--ignore-requires-python"),
        *("--dest", scratch.folder, f"espnet=={ESPNET}"),
    )
    with tarfile.open(scratch.folder / f"espnet-{ESPNET}.tar.gz") as packed:
        # eight files of ten are recipes of ESPnet2, and the tree is copied twice in every run
        needed = [member for member in packed if "/egs2/" not in member.name]
        packed.extractall(scratch.folder, members=needed, filter="data")


def wheels_of(scratch: Scratch) -> tuple[Path, Path]:
    """Return the wheels of this checkout's layer and of ESPnet; ESPnet's is built once."""
    folder = scratch.folder / "wheels"
    for old in folder.glob("espnet3_parallel-*.whl"):
        old.unlink()
    build = ("wheel", "--no-deps", "--ignore-requires-python", "--wheel-dir", folder)
    _pip(scratch, *build, scratch.folder / "layer")
    if not list(folder.glob(f"espnet-{ESPNET}-*.whl")):
        _pip(scratch, *build, scratch.folder / f"espnet-{ESPNET}.tar.gz")
    (ours,), (espnet,) = folder.glob("espnet3_parallel-*.whl"), folder.glob(f"espnet-{ESPNET}-*.whl")
    return ours, espnet


def _install_layer(scratch: Scratch) -> None:
    # built from a copy: setuptools leaves its traces in the folder that it builds
    source = scratch.folder / "layer"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    for name in ("espnet3", "espnet3_parallel"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source / name)
    _pip(scratch, "install", f"{source}[dask]")  # with what it needs, and what ESPnet's tests ask of it
    _pip(scratch, "install", "--force-reinstall", "--no-deps", source)  # the same version, other files
