"""Which module may import which, what must not be imported before it is needed, and the page that says so."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "espnet3"
PAGE = ROOT / "docs" / "architecture.md"

# The rooms of espnet3, from the ground up: a room imports only rooms that stand above it here, function-level imports
# and those for type checkers included. A room is a module or a package; inside one, modules import each other as they
# need, without a circle (below).
LAYERS = [
    (
        "facts and sentences, and what Dask does not document: everybody uses them, they need nobody",
        ["messages", "records", "errors", "checks", "surroundings", "dask_compat"],
    ),
    (
        "what each env is, and the block that names one: checked before anything is started",
        ["backends", "config"],
    ),
    ("what a batch scheduler is asked for, with a driver and without one, and its answers", ["jobs"]),
    ("what Kubernetes is asked for, with a driver and without one, and its answers", ["kube"]),
    ("what a run was made from: for people, and to notice a change", ["provenance"]),
    ("the run folder: what an outcome is on disk, and nothing of who computed it", ["ledger"]),
    ("how long items took, beside their outcomes", ["timing"]),
    (
        "from an item to its outcome: the same in every process, so it cannot know in which one it is",
        ["engine"],
    ),
    ("what items get: providers, the envs of a process, and calls with their env", ["env_provider", "env"]),
    ("chunks pulled by workers, wherever those run: both ends of the channel", ["pilots"]),
    (
        "worker processes of this machine, which come from one server and stand under one supervisor",
        ["local"],
    ),
    ("such a process beside each worker of a Dask client", ["pilots.dask"]),
    ("workers of a Dask cluster from the same server", ["local.dask"]),
    ("worker processes of other machines, and the client of any cluster", ["clusters"]),
    ("the choice of where a call runs: the one place that knows all launchers", ["runner"]),
    ("runs without a driver: what submitter, job and onlooker all read", ["detached"]),
    ("the job's process, which knows no runner but the one it is told to load", ["detached.job"]),
    ("how a backend starts, asks and cancels jobs", ["detached.launch"]),
    ("a run seen from outside, then a new one", ["detached.looking", "detached.submission"]),
    (
        "what users call",
        ["worker", "parallel", "inference_provider", "base_runner", "functions", "testing", "__init__"],
    ),
    ("what a run was or is, from its folder: for a terminal, a page, and a next step", ["views"]),
]
AROUND = [
    ("parts for systems: data, metrics", ["components"]),
    ("the stages of a recipe", ["systems"]),
    ("the command line", ["espnet3_parallel"]),
]
ROOMS = [f"parallel.{name}" if name != "__init__" else "parallel" for _, names in LAYERS for name in names]
ROOMS += [name for _, names in AROUND for name in names]

# Modules that import Dask when they are loaded, and are loaded when a Dask cluster is needed.
DASK_SIDE = {
    *(f"parallel.clusters.{name}" for name in ("client", "job_cluster", "keeper", "options", "pod_cluster")),
    *(f"parallel.clusters.{name}" for name in ("preload", "security", "ssh_cluster")),
    "parallel.dask_compat.clusters",
    "parallel.local.dask.cluster",
    "parallel.local.pages",
    "parallel.pilots.dask.pools",
    "parallel.pilots.dask.tasks",
}
DASK = {"dask", "distributed", "dask_cuda", "dask_jobqueue", "dask_kubernetes"}
HEAVY = {"torch", "hydra", "lightning", "omegaconf", "numpy", "asyncssh"}

# Imported inside functions, where it is there anyway (arrays among results are numpy's) or is asked for by name
# (`Results.to_pandas`).
OPTIONAL = {"numpy", "pandas"}

# Our packages: both distributions of this repository, and what finds them beside ESPnet's.
OWN = {"espnet3", "espnet3_parallel"}

# Import names that differ from the name of the distribution.
DISTRIBUTION = {
    "hydra": "hydra-core",
    "pynvml": "nvidia-ml-py",
    "dask_kubernetes": "dask-kubernetes",
    "yaml": "pyyaml",
}


@dataclass(frozen=True)
class Import:
    """One imported module: its full name, the line, and whether it is loaded together with the importer."""

    name: str
    line: int
    at_once: bool


def module_name(path: Path) -> str:
    """Return a file's module name without the leading `espnet3.`."""
    parts = path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for name in sorted(OWN) for path in sorted((ROOT / name).rglob("*.py"))}


def imports(path: Path) -> list[Import]:
    """Return all imports of a file, `from package import module` resolved to the module."""
    found: list[Import] = []
    for node, at_once in _walk(ast.parse(path.read_text(encoding="utf-8")), at_once=True):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, at_once) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for alias in node.names:
                full = f"{module}.{alias.name}"
                inner = full.removeprefix("espnet3.") in FILES
                found.append(Import(full if inner else module, node.lineno, at_once))
    return found


def _walk(node: ast.AST, *, at_once: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        later = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        now = at_once and not later and not typing_only
        yield child, now
        yield from _walk(child, at_once=now)


IMPORTS = {name: imports(path) for name, path in FILES.items()}


def ours(module: str, *, at_once_only: bool = False) -> Iterator[Import]:
    """Yield a module's imports of this package, without the leading `espnet3.`."""
    for one in IMPORTS[module]:
        if one.name.split(".")[0] in OWN and (one.at_once or not at_once_only):
            yield Import(
                one.name.removeprefix("espnet3.") if one.name != "espnet3" else "", one.line, one.at_once
            )


def room(module: str) -> str:
    parts = module.split(".")
    for size in range(len(parts), 0, -1):
        name = ".".join(parts[:size])
        # "parallel" is the surface, not the place of what has none
        if name in ROOMS and (name == module or name != "parallel"):
            return name
    raise AssertionError(f"espnet3.{module} has no place in LAYERS (tests/house/test_layers.py): give it one")


def reaches_dask(module: str) -> bool:
    """Tell whether loading a module loads Dask."""
    seen, todo = set(), [module]
    while todo:
        one = todo.pop()
        if any(each.at_once and each.name.split(".")[0] in DASK for each in IMPORTS[one]):
            return True
        seen.add(one)
        todo += [each.name for each in ours(one, at_once_only=True) if each.name not in seen]
    return False


def test_imports_point_down() -> None:
    """No room imports one that stands after it in LAYERS, not even inside a function."""
    order = {name: at for at, name in enumerate(ROOMS)}
    upward = []
    for module, path in FILES.items():
        for one in ours(module):
            importer, imported = room(module), room(one.name)
            if importer != imported and order[imported] > order[importer]:
                upward.append(f"{path.relative_to(ROOT)}:{one.line} imports espnet3.{one.name}")
    assert not upward, "\n".join(upward)


def test_no_imports_in_a_circle() -> None:
    """No modules import each other in a circle, neither at once nor inside functions."""
    graph = {module: {one.name for one in ours(module)} for module in FILES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_every_entry_of_layers_exists() -> None:
    """LAYERS names no room that is gone."""
    assert [name for name in ROOMS if name not in FILES] == []


def test_nothing_heavy_is_loaded_before_it_is_needed() -> None:
    """A module of espnet3.parallel loads nothing heavy at once, and Dask only on the side that needs it."""
    modules = [name for name in FILES if name.split(".")[0] == "parallel"]
    at_once = {name: {one.name.split(".")[0] for one in IMPORTS[name] if one.at_once} for name in modules}
    assert {name: heavy for name, loaded in at_once.items() if (heavy := loaded & HEAVY)} == {}
    assert {name for name in FILES if reaches_dask(name)} == DASK_SIDE


def test_what_is_imported_is_declared() -> None:
    """What espnet3.parallel imports is a dependency, or a backend's package; the rest has extras of its own."""
    if sys.version_info < (3, 11):
        pytest.skip("reads pyproject.toml with tomllib, new in Python 3.11")
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    core = {_name(line) for line in project["dependencies"]}
    rest = core | {
        _name(line) for extra in ("recipe", "train", "data", "demo", "report") for line in extras[extra]
    }
    dask = {_name(line) for line in extras["dask"]}
    backends = dask | {_name(line) for extra in ("jobqueue", "ssh", "kube", "gpu") for line in extras[extra]}
    used: set[str] = set()
    for module, found in IMPORTS.items():
        for one in found:
            name = one.name.split(".")[0]
            if name in sys.stdlib_module_names or name in OWN or (name in OPTIONAL and not one.at_once):
                continue
            used.add(name)
            at_home = core | ((dask if module in DASK_SIDE else set()) if one.at_once else backends)
            declared = at_home if module.split(".")[0] == "parallel" else rest
            assert DISTRIBUTION.get(name, name) in declared, f"espnet3.{module}:{one.line} imports {name}"
    assert core | dask <= {DISTRIBUTION.get(name, name) for name in used}, "a dependency is imported nowhere"


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None, requirement
    return match[0]


def test_every_room_has_its_row_in_the_order_of_the_layers() -> None:
    """The table of rooms lists every room of LAYERS, in that order, and those around it are named below it."""
    text = PAGE.read_text(encoding="utf-8")
    table = text.split("| Room | Comes in | Goes out |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    rows = [
        {name.rstrip("/").replace("/", ".") for name in re.findall(r"`([\w/]+?)(?:\.py|/)`", cell)}
        for cell in cells
    ]
    said = [name for names in rows for name in names]
    named = [name for _, names in LAYERS for name in names if name != "__init__"]
    assert sorted(said) == sorted(named)
    layer = {name: at for at, (_, names) in enumerate(LAYERS) for name in names}
    order = [[layer[name] for name in names] for names in rows]
    assert all(max(before) <= min(after) for before, after in pairwise(order))
    for _, names in AROUND:
        assert all(f"`{name}/`" in text for name in names)


def test_every_module_that_the_page_names_exists() -> None:
    """Each file that the page names is one of the package's, or of the repository's."""
    files = {
        path.relative_to(PACKAGE / "parallel").as_posix()
        for path in FILES.values()
        if "parallel" in path.parts
    }
    named = set(re.findall(r"`((?:[\w-]+/)*\w+\.py)`", PAGE.read_text(encoding="utf-8")))
    missing = {
        name
        for name in named
        if name not in files
        and not (ROOT / name).exists()
        and not any(file.endswith("/" + name) for file in files if "/" not in name)
    }
    assert named and missing == set()
