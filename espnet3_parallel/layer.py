"""Which `espnet3.parallel` Python imports here, and why: ours, or the one that ESPnet brings; and whose `espnet3` runs.

ESPnet's distribution and its checkout have an `espnet3` of their own. Installed into one environment both live in one
folder, and our modules are found first (setup.py says how); a checkout on the path hides the installed one.
"""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib import metadata

DISTRIBUTION = "espnet3-parallel"
SYSTEMS = "espnet3-parallel-systems"
ESPNET = "espnet"
COMMAND = "espnet3-parallel"
SECOND = "espnet3"  # ESPnet's, where its distribution has a command
# The modules that users import from and that ESPnet has too.
MODULES = ("base_runner", "env_provider", "inference_provider", "parallel")
# The folder that holds this package holds our espnet3 as well: an installation's site-packages, or a checkout.
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Layer:
    """The `espnet3.parallel` in use: its folder, and which of its documented modules are not ours."""

    folder: Path
    foreign: tuple[str, ...]
    names: bool  # `import espnet3.parallel` brings our public names

    @property
    def ours(self) -> bool:
        """Whether all modules are ours; the package's own file may be ESPnet's."""
        return not self.foreign


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `good` is None where nothing could be checked."""

    good: bool | None
    text: str

    def __str__(self) -> str:
        mark = {True: "ok", False: "WRONG", None: "not checked"}[self.good]
        return f"{mark:>11}  {self.text}"


def in_use() -> Layer:
    """Look where Python finds `espnet3.parallel` and its documented modules, which loads nothing heavy.

    Raises:
        ModuleNotFoundError: There is no `espnet3.parallel` at all.
    """
    package = import_module("espnet3.parallel")
    foreign = []
    for module in MODULES:
        spec = find_spec(f"espnet3.parallel.{module}")
        if spec is None or spec.origin is None or Path(spec.origin).resolve() != _our_file(module):
            foreign.append(module)
    return Layer(
        folder=Path(next(iter(package.__path__))),
        foreign=tuple(foreign),
        names="BaseRunner" in getattr(package, "__all__", ()),
    )


def _our_file(module: str) -> Path:
    folder = ROOT / "espnet3" / "parallel"
    package = folder / module / "__init__.py"
    return (package if package.exists() else folder / f"{module}.py").resolve()


def findings(layer: Layer) -> list[Finding]:
    """Say which layer is in use, why, and what to do where that is not ours or only half of it."""
    found = [Finding(layer.ours, _which(layer))]
    if layer.ours and not layer.names:
        found.append(
            Finding(
                True,
                f"{layer.folder}/__init__.py is that of {_espnet(layer)}: `from espnet3.parallel import NAME` works, "
                "`import espnet3.parallel` alone does not bring the names. In an environment, pip install "
                f"--force-reinstall --no-deps {DISTRIBUTION} changes that until {ESPNET} is installed again",
            )
        )
    found.append(_command())
    systems, espnet = _version(SYSTEMS), _version(ESPNET)
    if systems is not None and espnet is not None:
        found.append(
            Finding(
                False,
                f"{SYSTEMS} {systems} and {ESPNET} {espnet} are both installed, and own the same files of "
                f"espnet3.systems and espnet3.components: pip uninstall {SYSTEMS}, then pip install "
                f"--force-reinstall --no-deps {ESPNET}=={espnet}",
            )
        )
    return found


def espnets_command() -> metadata.EntryPoint | None:
    """Return the command `espnet3` of another distribution, or of a checkout of ESPnet on the path."""
    from importlib import metadata

    for entry in metadata.entry_points(group="console_scripts", name=SECOND):
        if entry.dist is None or entry.dist.name != DISTRIBUTION:
            return entry
    try:
        there = find_spec("espnet3.cli.main")
    except ModuleNotFoundError:  # of its package
        there = None
    return None if there is None else metadata.EntryPoint(SECOND, "espnet3.cli.main:main", "console_scripts")


def _command() -> Finding:
    script = Path(sysconfig.get_path("scripts"), SECOND)
    ours = script.is_file() and "espnet3_parallel" in script.read_text(encoding="utf-8", errors="replace")
    entry = espnets_command()
    if entry is None:
        second = f"; {script} is a second name of it" if ours else ""
        return Finding(True, f"the command is {COMMAND}{second}")
    owner, again = f"the checkout that has {entry.module}", ""
    if entry.dist is not None:
        owner = f"{entry.dist.name} {entry.dist.version}"
        again = f": pip install --force-reinstall --no-deps {entry.dist.name} writes its own"
    how = f"is not there{again}"
    if script.is_file():
        how = f"is ours, and hands it all words but our verbs{again}" if ours else "is its own"
    return Finding(
        script.is_file(),
        f"the command is {COMMAND}; {SECOND} belongs to {owner}, and the script {script} {how}",
    )


def _which(layer: Layer) -> str:
    number = _version(DISTRIBUTION)
    ours = f"{DISTRIBUTION} {number}" if number else f"the checkout in {ROOT}"
    entry = layer.folder.parents[1]
    what, why = f"espnet3.parallel in {layer.folder}", _why_there(entry)
    if not layer.ours:
        return (
            f"{what} is not ours: {', '.join(layer.foreign)} are those of {_espnet(layer)}, since {why}. "
            f"To lay {ours} over that tree: espnet3-parallel overlay {entry}"
        )
    if entry.resolve() != ROOT:
        return f"{what} is that of {ours}, laid over the tree in {entry}: {why}"
    return f"{what} is that of {ours}: {why}"


def _why_there(entry: Path) -> str:
    named = [Path(part).resolve() for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if entry.resolve() in named:
        return f"PYTHONPATH names {entry}, which comes before what is installed"
    package = entry / "espnet3" / "parallel" / "base_runner"
    if entry.resolve() != ROOT or not package.is_dir():  # a checkout, of ours or of ESPnet
        return f"{entry} comes first on the path"
    if package.with_suffix(".py").exists():
        return (
            f"{ESPNET} {_version(ESPNET)} has modules of the same names there, and Python finds a package before "
            "a module, whichever was installed last"
        )
    return "there is no other"


def _espnet(layer: Layer) -> str:
    number = _version(ESPNET)
    here = layer.folder.parents[1].resolve() == ROOT
    return f"{ESPNET} {number}" if number and here else "the checkout there"


def installed(distribution: str) -> metadata.Distribution | None:
    """Return what is installed in the folder that holds this package, and None if it is not there."""
    from importlib import metadata  # 30 ms, which `--help` should not wait for

    # another folder of the path may hold another version's description
    return next(iter(metadata.distributions(name=distribution, path=[str(ROOT)])), None)


def _version(distribution: str) -> str | None:
    found = installed(distribution)
    return None if found is None else found.version
