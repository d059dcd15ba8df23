"""Which `espnet3.parallel` Python imports here, and why: ours, or the one that ESPnet brings; and whose `espnet3` runs.

ESPnet's distribution and its checkout have an `espnet3` of their own. Installed into one environment both live in one
folder, and our modules are found first (setup.py says how); a checkout on the path hides the installed one, until
`espnet3-parallel overlay TREE` links the installed modules into it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from importlib import metadata

COMMAND = DISTRIBUTION = "espnet3-parallel"
SYSTEMS = "espnet3-parallel-systems"
ESPNET = "espnet"
SECOND = "espnet3"  # ESPnet's, where its distribution has a command
# The modules that users import from and that ESPnet has too.
MODULES = ("base_runner", "env_provider", "inference_provider", "parallel")
# The folder that holds this package holds our espnet3 as well: an installation's site-packages, or a checkout.
ROOT = Path(__file__).resolve().parents[1]
_OURS = ROOT / "espnet3" / "parallel"
# A checkout has these; the second is what our package of the same name hides.
_EXPECTED = ("espnet3/__init__.py", "espnet3/parallel/base_runner.py")


@dataclass(frozen=True, slots=True)
class Layer:
    """The `espnet3.parallel` in use: its folder, and which of its documented modules are not ours."""

    folder: Path
    foreign: tuple[str, ...]  # the package's own file may be ESPnet's without being one
    names: bool  # `import espnet3.parallel` brings our public names


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `good` is None where nothing could be checked."""

    good: bool | None
    text: str

    def __str__(self) -> str:
        mark = {True: "ok", False: "WRONG", None: "not checked"}[self.good]
        return f"{mark:>11}  {self.text}"


def in_use() -> Layer:
    """Look where Python finds `espnet3.parallel` and its documented modules; a ModuleNotFoundError says nowhere."""
    package = import_module("espnet3.parallel")
    foreign = []
    for module in MODULES:
        spec, file = find_spec(f"espnet3.parallel.{module}"), _OURS / module / "__init__.py"
        if not file.exists():
            file = _OURS / f"{module}.py"
        if spec is None or spec.origin is None or Path(spec.origin).resolve() != file.resolve():
            foreign.append(module)
    names = "BaseRunner" in getattr(package, "__all__", ())
    return Layer(Path(next(iter(package.__path__))), tuple(foreign), names)


def findings(layer: Layer) -> list[Finding]:
    """Say which layer is in use, why, and what to do where that is not ours or only half of it."""
    found = [Finding(not layer.foreign, _which(layer))]
    if not layer.foreign and not layer.names:
        text = (
            f"{layer.folder}/__init__.py is that of {_espnet(layer)}: `from espnet3.parallel import NAME` works, "
            "`import espnet3.parallel` alone does not bring the names. In an environment, pip install "
            f"--force-reinstall --no-deps {DISTRIBUTION} changes that until {ESPNET} is installed again"
        )
        found.append(Finding(True, text))
    found.append(_command())
    systems, espnet = _version(SYSTEMS), _version(ESPNET)
    if systems is not None and espnet is not None:
        text = (
            f"{SYSTEMS} {systems} and {ESPNET} {espnet} are both installed, and own the same files of "
            f"espnet3.systems and espnet3.components: pip uninstall {SYSTEMS}, then pip install "
            f"--force-reinstall --no-deps {ESPNET}=={espnet}"
        )
        found.append(Finding(False, text))
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
    text = f"the command is {COMMAND}; {SECOND} belongs to {owner}, and the script {script} {how}"
    return Finding(script.is_file(), text)


def _which(layer: Layer) -> str:
    number = _version(DISTRIBUTION)
    ours = f"{DISTRIBUTION} {number}" if number else f"the checkout in {ROOT}"
    entry = layer.folder.parents[1]
    what, why = f"espnet3.parallel in {layer.folder}", _why_there(entry)
    if layer.foreign:
        return (
            f"{what} is not ours: {', '.join(layer.foreign)} are those of {_espnet(layer)}, since {why}. "
            f"To lay {ours} over that tree: espnet3-parallel overlay {entry}"
        )
    laid = "" if entry.resolve() == ROOT else f", laid over the tree in {entry}"
    return f"{what} is that of {ours}{laid}: {why}"


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


def _installed(distribution: str) -> metadata.Distribution | None:
    from importlib import metadata  # 30 ms, which `--help` should not wait for

    # of the folder that holds this package: another one of the path may describe another version
    return next(iter(metadata.distributions(name=distribution, path=[str(ROOT)])), None)


def _version(distribution: str) -> str | None:
    found = _installed(distribution)
    return None if found is None else found.version


@click.command()
@click.argument("tree", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--remove", "away", is_flag=True, help="Take the links away again.")
def overlay(tree: Path, away: bool) -> None:
    """Use the installed layer in TREE, a checkout of ESPnet: links beside its files, none of which changes."""
    try:
        links = _remove(tree) if away else _lay(tree)
    except (click.ClickException, OSError) as error:
        # click's own words are not escaped for a terminal of ASCII
        print(error, file=sys.stderr)
        sys.exit(1)
    if away:
        print(f"{len(links)} links removed; {tree} uses its own espnet3.parallel again")
        return
    print(f"{len(links)} links in {tree / 'espnet3'} point into {ROOT}; no file there has changed")
    print(f"to undo: {COMMAND} overlay --remove {tree}")


def _lay(tree: Path) -> list[Path]:
    for name in _EXPECTED:
        if not (tree / name).is_file():
            raise click.ClickException(f"{tree} is not a checkout of ESPnet: it has no {name}")
    if not (_OURS / "base_runner").is_dir():
        raise click.ClickException(
            f"{ROOT} holds the layer as a checkout does; only its wheel has the packages that are found before "
            "modules of the same name: pip install . in that checkout, without --editable"
        )
    files = getattr(_installed(DISTRIBUTION), "files", None) or []
    inside = {PurePosixPath(*file.parts[:3]) for file in files if file.parts[0] == "espnet3"}
    parts = sorted(part for part in inside if part.name not in ("__init__.py", "__pycache__"))
    taken = [part for part in parts if not (tree / part).is_symlink() and (tree / part).exists()]
    if taken:
        raise click.ClickException(
            f"{tree} has files of its own where a link would go, and nothing was changed: {', '.join(map(str, taken))}"
        )
    _remove(tree)  # those of an older version may have other names
    links = [tree / part for part in parts]
    # into this environment: with it gone, the checkout's own layer is back
    for link, part in zip(links, parts, strict=True):
        link.unlink(missing_ok=True)  # one into another environment
        link.symlink_to(ROOT / part)
    return links


def _remove(tree: Path) -> list[Path]:
    inside = sorted((tree / "espnet3" / "parallel").iterdir())
    links = [path for path in inside if path.is_symlink() and ROOT in Path(os.readlink(path)).parents]
    for link in links:
        link.unlink()
    return links
