"""A module that is edited after it was imported: this process computes with what it has imported."""

from __future__ import annotations

import importlib
import os
import sys
import time

import pytest

from espnet3.parallel.provenance.loaded import edited_since_import
from tests.parallel.provenance.package import Package

HELPER = """
    SCALE = 2

    def f(x):
        return x * SCALE

    class Table:
        def rows(self):
            return [1]
"""


def edited(package: Package, text: str) -> list[str]:
    """Write another text into the helper; return what is said, without the file."""
    package.write("helper", text)
    # as after a moment: a text of the same second could have been written before it was imported
    os.utime(package.folder / "helper.py", (time.time() + 5,) * 2)
    files = [str(package.folder / f"{name}.py") for name in ("helper", "program")]
    return [line.partition(".py: ")[2] for line in edited_since_import(files)]


@pytest.fixture
def loaded(package: Package) -> Package:
    """A program that has imported its helper, and a function from it by name."""
    package.write("helper", HELPER)
    package.write("program", "import helper\nfrom helper import f\n")
    package.load()
    return package


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("x * SCALE", "x + SCALE", ["f"]),
        ("[1]", "[2]", ["Table.rows"]),
        ("SCALE = 2", "SCALE = 3", ["SCALE"]),
        ("def f(x):\n", "def f(x):\n        # a comment\n", []),
        ("def f(x):\n", 'def f(x):\n        """A docstring."""\n', []),
        ("class Table", "def new():\n        return 1\n\n    class Table", []),
    ],
)
def test_an_edit_after_the_import_is_named(loaded: Package, old: str, new: str, said: list[str]) -> None:
    """A function, method or constant that is not what the file says now is named; a comment is not."""
    assert edited(loaded, HELPER) == []
    assert edited(loaded, HELPER.replace(old, new)) == said


def test_a_reload_reaches_those_who_import_the_module_alone(loaded: Package) -> None:
    """After a reload the module is as its file; who took a function from it has the old one until it is loaded too."""
    assert edited(loaded, HELPER.replace("x * SCALE", "x + SCALE")) == ["f"]
    importlib.reload(sys.modules["helper"])
    assert edited(loaded, HELPER.replace("x * SCALE", "x + SCALE")) == ["f"]
    loaded.load()
    assert edited(loaded, HELPER.replace("x * SCALE", "x + SCALE")) == []


def test_old_files_are_not_read_again(loaded: Package) -> None:
    """A file that was written long before the program started is what was imported."""
    assert edited(loaded, HELPER.replace("x * SCALE", "x + SCALE")) == ["f"]
    helper = loaded.folder / "helper.py"
    os.utime(helper, (time.time() - 7200,) * 2)
    assert edited_since_import([str(helper)]) == []
