"""What the wheels hold, both distributions in one environment, and our layer over a checkout of ESPnet."""

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
from zipfile import ZipFile

import pytest

import espnet3.parallel
from tests.habits import rows

ROOT = Path(__file__).resolve().parents[2]

# As ESPnet's distribution has them: packages of a docstring each, and modules under the names of ours.
ESPNET = {
    "espnet3/cli/__init__.py": "",
    "espnet3/cli/main.py": "import sys\ndef main():\n    print('of ESPnet:', *sys.argv[1:])\n    return 3\n",
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
        f"{info}/entry_points.txt": "[console_scripts]\nespnet3 = espnet3.cli.main:main\n",
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


IMPORTS = """
from espnet3.parallel import BaseRunner, ItemError, set_parallel
from espnet3.parallel.base_runner import BaseRunner as Runner
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.inference_provider import InferenceProvider
from espnet3.parallel.parallel import get_client, parallel_map, set_parallel as set_it
class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {'offset': 1}
class Adding(BaseRunner):
    @staticmethod
    def forward(idx, offset):
        return idx + offset
print(Runner is BaseRunner, set_it is set_parallel, ItemError.__name__, Adding(Provider({}), progress=False)(range(3)))
"""


Both = tuple[Place, str]


def test_ours_is_used_in_both_orders(both: Both) -> None:
    """Every documented import is ours, and ESPnet's own modules are there, whichever was installed last."""
    place, _ = both
    assert place.python_says(IMPORTS) == "True True ItemError [1, 2, 3]"
    assert place.python_says("from espnet3.systems.only_theirs import OWNER; print(OWNER)") == "espnet"


def test_the_package_alone_brings_the_names_when_it_was_installed_last(both: Both) -> None:
    """`import espnet3.parallel` has our names if ours was installed last, and doctor says so if it was not."""
    place, order = both
    has = place.python_says("import espnet3.parallel; print(hasattr(espnet3.parallel, 'set_parallel'))")
    said = place.run("espnet3-parallel", "doctor")
    assert said.returncode == 0, said.stderr
    assert "espnet 202611 has modules of the same names there" in said.stdout
    assert "0 wrong" in said.stdout
    if order == "espnet first":
        assert has == "True"
        assert "\n2 checks, 0 wrong" in said.stdout
    else:
        assert has == "False"
        assert "is that of espnet 202611: `from espnet3.parallel import NAME` works" in said.stdout


def test_the_words_of_espnets_command_reach_it(both: Both) -> None:
    """`espnet3 clone` is ESPnet's, whichever was installed last; doctor says so, and our name is our own."""
    place, order = both
    for words in (["clone", "mini_an4"], ["--help"], []):
        said = place.run("espnet3", *words)
        assert (said.returncode, said.stdout.split()) == (3, ["of", "ESPnet:", *words]), said.stderr
    for ours in (["espnet3-parallel"], ["python", "-m", "espnet3_parallel"]):
        assert place.run(*ours, "--version").stdout.startswith("espnet3-parallel 0.1.0"), ours
        assert "no such command 'clone'" in place.run(*ours, "clone").stderr
    doctor = place.run("espnet3-parallel", "doctor").stdout
    script = "is its own" if order == "espnet last" else "is ours, and hands it all words but our verbs"
    if order == "espnet first":
        assert place.run("espnet3", "doctor").stdout == doctor
    assert f"espnet3 belongs to espnet 202611, and the script {place.folder}/bin/espnet3 {script}" in doctor


def test_without_ours_espnets_own_layer_is_back(both: Both, tmp_path: Path) -> None:
    """After our removal the four modules are those of ESPnet, untouched."""
    place = both[0].copy(tmp_path / "place")
    place.pip("uninstall", "--quiet", "--yes", "espnet3-parallel")
    names = ["base_runner", "env_provider", "inference_provider", "parallel"]
    code = f"from importlib import import_module as get; print([get('espnet3.parallel.' + n).OWNER for n in {names}])"
    assert place.python_says(code) == str(names)


def test_without_espnet_ours_goes_on(both: Both, tmp_path: Path) -> None:
    """After ESPnet's removal every documented import still works."""
    place = both[0].copy(tmp_path / "place")
    place.pip("uninstall", "--quiet", "--yes", "espnet")
    assert place.python_says(IMPORTS) == "True True ItemError [1, 2, 3]"


def test_alone_everything_documented_is_there(alone: Place) -> None:
    """Without ESPnet the two wheels have the layer, its names, the systems and the command."""
    assert alone.python_says(IMPORTS) == "True True ItemError [1, 2, 3]"
    code = (
        "import espnet3.parallel as p; from espnet3.systems.base.inference_provider import InferenceProvider"
    )
    assert alone.python_says(f"{code}; print(p.parallel_map.__name__)") == "parallel_map"
    said = alone.run("espnet3", "doctor").stdout
    assert "there is no other" in said and "bin/espnet3 is a second name of it" in said


def test_a_detached_job_starts_by_the_module_of_the_runner(alone: Place) -> None:
    """`python -m espnet3.parallel.base_runner` is the job's process in the wheel too."""
    done = alone.run("python", "-m", "espnet3.parallel.base_runner")
    assert done.returncode == 2
    assert "run what is left of the shard" in done.stderr


def test_doctor_finds_two_distributions_of_the_same_systems(
    alone: Place, wheels: Wheels, tmp_path: Path
) -> None:
    """ESPnet beside our systems is wrong: they own the same files, and doctor says which to remove."""
    place = alone.copy(tmp_path / "place")
    place.install(wheels.espnet)
    said = place.run(
        "python", "-c", "from espnet3_parallel.layer import *; print(*findings(in_use()), sep='\\n')"
    )
    assert "WRONG  espnet3-parallel-systems 0.1.0 and espnet 202611 are both installed" in said.stdout
    assert "pip uninstall espnet3-parallel-systems" in said.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in ESPNET.items():
        file = tmp_path / "checkout" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "checkout"


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*.py")
        if not path.is_symlink()
    }


def test_a_checkout_hides_the_installed_layer_and_the_command_says_so(alone: Place, checkout: Path) -> None:
    """With a checkout on PYTHONPATH every verb ends with 1 and says whose layer is in use, why, and what to do."""
    for verb in ("doctor", "status"):
        said = alone.run("espnet3-parallel", verb, path=checkout)
        assert said.returncode == 1
        assert "is not ours: base_runner, env_provider, inference_provider, parallel" in said.stderr
        assert f"PYTHONPATH names {checkout}" in said.stderr
        assert f"espnet3-parallel overlay {checkout}" in said.stderr
    assert alone.run("espnet3", "clone", path=checkout).stdout == "of ESPnet: clone\n"  # of the checkout


def test_overlay_puts_ours_in_front_and_changes_no_file(alone: Place, checkout: Path) -> None:
    """Over a checkout every documented import is ours, its files are as before, and again after --remove."""
    said = alone.run("espnet3-parallel", "overlay", checkout, path=checkout)
    assert said.returncode == 0, said.stderr
    assert alone.python_says(IMPORTS, path=checkout) == "True True ItemError [1, 2, 3]"
    assert alone.run("espnet3-parallel", "doctor", path=checkout).returncode == 0
    # again: the same
    assert alone.run("espnet3-parallel", "overlay", checkout, path=checkout).returncode == 0
    assert alone.run("espnet3-parallel", "overlay", "--remove", checkout, path=checkout).returncode == 0
    assert contents(checkout) == ESPNET
    assert not [path for path in checkout.rglob("*") if path.is_symlink()]


def test_overlay_refuses_what_is_no_checkout_and_what_would_be_hidden(
    alone: Place, checkout: Path, tmp_path: Path
) -> None:
    """A folder without ESPnet, and a checkout that has a file under one of our names, are left as they are."""
    said = alone.run("espnet3-parallel", "overlay", tmp_path)
    assert said.returncode == 1
    assert "is not a checkout of ESPnet: it has no espnet3/__init__.py" in said.stderr
    (checkout / "espnet3" / "parallel" / "config.py").write_text("")
    said = alone.run("espnet3-parallel", "overlay", checkout)
    assert said.returncode == 1
    assert "espnet3/parallel/config.py" in said.stderr
    assert not [path for path in checkout.rglob("*") if path.is_symlink()]


SHARED = ["base_runner", "env_provider", "inference_provider", "parallel"]


def inside(wheel: Path) -> set[str]:
    return {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}


def modules(*folders: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for each in folders for path in (ROOT / each).rglob("*.py")}


def test_the_layer_has_all_of_its_modules_and_nothing_else(wheels: Wheels) -> None:
    """The layer's wheel holds its modules, four of them as packages, a module for each public name, and the licence."""
    expected = modules("espnet3/parallel", "espnet3_parallel") | {"espnet3/parallel/py.typed"}
    expected -= {f"espnet3/parallel/{name}.py" for name in SHARED}
    expected |= {f"espnet3/parallel/{name}/__init__.py" for name in SHARED}
    expected |= {f"espnet3/parallel/{name}.py" for name in espnet3.parallel.__all__}
    assert inside(wheels.layer) == expected | {"espnet3/parallel/base_runner/__main__.py"}
    assert any(name.endswith("licenses/LICENSE") for name in ZipFile(wheels.layer).namelist())


def test_the_systems_have_the_rest(wheels: Wheels) -> None:
    """What of espnet3 is not in the layer's wheel is in that of the systems, but for espnet3 itself."""
    expected = modules("espnet3/systems", "espnet3/components")
    assert inside(wheels.systems) == expected | {"espnet3/systems/py.typed", "espnet3/components/py.typed"}
    both = modules("espnet3/systems", "espnet3/components", "espnet3/parallel")
    assert modules("espnet3") - both == {"espnet3/__init__.py"}
    assert any(name.endswith("licenses/LICENSE") for name in ZipFile(wheels.systems).namelist())


def test_one_file_alone_is_in_espnets_distribution_too(wheels: Wheels) -> None:
    """The only file that ESPnet's distribution has as well is the docstring of espnet3.parallel."""
    assert inside(wheels.layer) & set(ESPNET) == {"espnet3/parallel/__init__.py"}
