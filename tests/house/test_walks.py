"""`docs/architecture.md` is right about the code: its rooms, the modules it names, and the three walks."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from espnet3.parallel import BaseRunner, EnvironmentProvider, get_client
from tests.house.test_layers import AROUND, FILES, LAYERS, PACKAGE, ROOMS, ROOT, module_name, room

PAGE = ROOT / "docs" / "architecture.md"
MOST_FILES = 8  # on the driver's side of a walk
_HEAD = "| Row | By | Function | File | What it does |"
_ROW = re.compile(
    r"^\| (?P<row>[dw]\d+) \| (?P<by>[dw]\d+)? ?\| `(?P<function>[^`]+)` \| `(?P<file>[^`]+)` \|"
)
_MODULE = re.compile(r"`((?:[\w-]+/)*\w+\.py)`")
_ROOM = re.compile(r"`([\w/]+?)(?:\.py|/)`")


@dataclass(frozen=True)
class Row:
    """One row of a walk; `by` is the row that calls it, empty for an entry."""

    name: str
    by: str
    function: str
    file: str

    @property
    def of_driver(self) -> bool:
        return self.name.startswith("d")

    @property
    def room(self) -> int:
        """Its room's place in LAYERS: a larger one stands further up."""
        return ROOMS.index(room(module_name(PACKAGE / "parallel" / self.file)))


def walks() -> dict[str, list[Row]]:
    """Return the page's walks by their headings."""
    found: dict[str, list[Row]] = {}
    heading = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line == _HEAD:
            found[heading] = []
        elif match := _ROW.match(line):
            found[heading].append(Row(match["row"], match["by"] or "", match["function"], match["file"]))
    return found


WALKS = walks()
every_walk = pytest.mark.parametrize("rows", WALKS.values(), ids=list(WALKS))


def functions(path: Path) -> set[str]:
    """Return the names of a file's functions, a method's with its class."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)))
            names |= {f"{node.name}.{each.name}" for each in inner}
    return names


def test_the_page_has_the_three_walks() -> None:
    """The page has three tables of walks, none of them a stub, and each has both sides."""
    assert len(WALKS) == 3
    for rows in WALKS.values():
        assert len(rows) >= 8
        assert {row.of_driver for row in rows} == {True, False}


@every_walk
def test_every_function_of_a_walk_exists(rows: list[Row]) -> None:
    """Each row names a function that its file defines."""
    wrong = [row for row in rows if row.function not in functions(PACKAGE / "parallel" / row.file)]
    assert wrong == []


@every_walk
def test_a_walk_enters_few_files(rows: list[Row]) -> None:
    """On the driver's side a walk enters at most eight files."""
    files = {row.file for row in rows if row.of_driver}
    assert len(files) <= MOST_FILES, sorted(files)


@every_walk
def test_a_walk_has_no_step_back_up(rows: list[Row]) -> None:
    """Each row is called by an earlier one of its side, whose room is the same or stands further up."""
    seen: dict[str, Row] = {}
    for row in rows:
        if row.by:
            assert row.by[0] == row.name[0], f"{row.name} is on the other side of {row.by}"
            assert seen[row.by].room >= row.room, f"{row.name} {row.file} is further up than {row.by}"
        seen[row.name] = row
    driver = [row for row in rows if row.of_driver]
    assert [row.name for row in driver if not row.by] == ["d1"]


class Provider(EnvironmentProvider):
    """An empty env."""

    def build_env_local(self) -> dict[str, Any]:
        return {}


class Inverts(BaseRunner):
    """Fails at 0."""

    @staticmethod
    def forward(idx: int) -> float:
        return 1 / idx


Place = tuple[str, str]  # a function: its file and its name


class Trace:
    """Who called whom in this process, among some functions.

    Args:
        wanted: The functions.

    Attributes:
        calls: Pairs of a function and one that was entered while it ran, directly or not.
        threads: The threads that entered each function.
    """

    def __init__(self, wanted: set[Place]) -> None:
        self.wanted = wanted
        self.calls: set[tuple[Place, Place]] = set()
        self.threads: dict[Place, set[int]] = {}

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Be called by the interpreter at each call."""
        if event != "call" or (callee := _place(frame)) not in self.wanted:
            return
        self.threads.setdefault(callee, set()).add(threading.get_ident())
        outer = frame.f_back
        while outer is not None:
            self.calls.add((_place(outer), callee))
            outer = outer.f_back

    def __enter__(self) -> Trace:
        threading.setprofile(self.note)  # of threads that begin from now on: the cluster's event loop
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # typed as if it could not be switched off


def _place(frame: FrameType) -> Place:
    return frame.f_code.co_filename, frame.f_code.co_name


def open_workers(trace: Trace, folder: Path) -> None:
    """Open a client with two workers."""
    with trace, get_client({"env": "local", "n_workers": 2}):
        pass


def run_to_list(trace: Trace, folder: Path) -> None:
    """Run a list of items on two workers."""
    with get_client({"env": "local", "n_workers": 2}), trace:
        Inverts(Provider(), progress=False, on_error="record")([3, 2, 1, 0])


def run_to_folder(trace: Trace, folder: Path) -> None:
    """Run them to a folder."""
    with get_client({"env": "local", "n_workers": 2}), trace:
        Inverts(Provider(), progress=False, on_error="record", output_dir=folder / "run")([3, 2, 1, 0])


@pytest.mark.parametrize(
    ("rows", "do"),
    list(zip(WALKS.values(), [run_to_list, open_workers, run_to_folder], strict=True)),
    ids=list(WALKS),
)
def test_a_run_goes_the_way_of_the_walk(
    rows: list[Row], do: Callable[[Trace, Path], None], tmp_path: Path
) -> None:
    """In a real run each function of the driver's side is entered from the one that the page names."""
    places = {
        row.name: (str(PACKAGE / "parallel" / row.file), row.function.rpartition(".")[2])
        for row in rows
        if row.of_driver
    }
    trace = Trace(set(places.values()))
    do(trace, tmp_path)
    assert set(places.values()) == set(trace.threads), "not all are entered"
    for row in rows:
        if row.of_driver and row.by:
            caller, callee = places[row.by], places[row.name]
            # in a thread of its own it is called on behalf of the other: by the cluster's event loop
            elsewhere = not trace.threads[caller] & trace.threads[callee]
            assert (caller, callee) in trace.calls or elsewhere, f"{row.name} is not called by {row.by}"


def test_every_room_has_its_row_in_the_order_of_the_layers() -> None:
    """The table of rooms lists every room of LAYERS, in that order, and those around it are named below it."""
    text = PAGE.read_text(encoding="utf-8")
    table = text.split("| Room | Comes in | Goes out |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    rows = [{name.rstrip("/").replace("/", ".") for name in _ROOM.findall(cell)} for cell in cells]
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
    named = set(_MODULE.findall(PAGE.read_text(encoding="utf-8")))
    missing = {
        name
        for name in named
        if name not in files
        and not (ROOT / name).exists()
        and not any(file.endswith("/" + name) for file in files if "/" not in name)
    }
    assert named and missing == set()
