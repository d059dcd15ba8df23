"""Every way by which a module takes a function from another one: which edits are noticed, and which are none."""

import ast

import pytest

from espnet3.parallel.provenance.parts import changed_parts
from tests.parallel.provenance.package import ROOT, Package

# How a module takes `work` from another one: what stands at its top level, inside its function, and what it adds up.
# {m} is the other module's dotted name, {w} a name for what is taken; {t} is the module's last name.
WAYS = {
    "from": ("from {m} import work as {w}", "", "{w}()"),
    "import": ("import {m}", "", "{m}.work()"),
    "alias": ("import {m} as {w}_module\n{w} = {w}_module.work", "", "{w}()"),
    "inside": ("", "from {m} import work as {w}", "{w}()"),
    "star": ("from {m} import *", "", "work_of_{t}()"),
    "by name": ("import importlib", '{w} = importlib.import_module("{m}").work', "{w}()"),
    "by another name": ("from importlib import import_module as load_{t}", '{w} = load_{t}("{m}").work', "{w}()"),
    "by built-in": ("", '{w} = __import__("{m}", fromlist=["work"]).work', "{w}()"),
    "if": ("if True:\n    from {m} import work as {w}", "", "{w}()"),
    "try": ("try:\n    import nowhere_{t}\nexcept ImportError:\n    from {m} import work as {w}", "", "{w}()"),
    "not for checkers": (
        "from typing import TYPE_CHECKING\nif not TYPE_CHECKING:\n    from {m} import work as {w}", "", "{w}()"),
    "attribute": ("from {m} import work as {w}_taken\nclass {w}_class:\n    work = staticmethod({w}_taken)", "",
                  "{w}_class.work()"),
    "base": ("import {m} as {w}_base\nclass {w}_class({w}_base.Base):\n    pass", "", "{w}_class().value()"),
    "decorator": ("from {m} import adds as {w}_adds\n@{w}_adds\ndef {w}():\n    return 0", "", "{w}()"),
    "field": (
        ("import dataclasses\nimport {m} as {w}_from\n@dataclasses.dataclass\nclass {w}_data:\n"
        "    value: int = dataclasses.field(default_factory={w}_from.work)"), "", "{w}_data().value"),
    "closure": (("from {m} import work as {w}_taken\ndef {w}_make(taken):\n    return lambda: taken()\n"
                "{w} = {w}_make({w}_taken)"), "", "{w}()"),
    "partial": ("import functools\nfrom {m} import work as {w}_taken\n{w} = functools.partial({w}_taken)", "", "{w}()"),
    "cached": ("from functools import cache\nfrom {m} import work as {w}_taken\n{w} = cache({w}_taken)", "", "{w}()"),
    "table": ("import {m} as {w}_from\nTABLE_{t} = {{}}\nTABLE_{t}['work'] = {w}_from.work", "", "TABLE_{t}['work']()"),
    "side effect": ("import {m}", "", "__import__('tables').TABLE['{m}']()"),
    "default": ("from {m} import work as {w}_taken\ndef {w}(taken={w}_taken):\n    return taken()", "", "{w}()"),
}  # fmt: skip
RELATIVE = {
    "relative": ("from .{t} import work as {w}", "", "{w}()"),
    "relative module": ("from . import {t}", "", "{t}.work()"),
    "relative inside": ("", "from .{t} import work as {w}", "{w}()"),
    "relative by name": ("import importlib", '{w} = importlib.import_module(".{t}", "pkg").work', "{w}()"),
}

FILES = ("program", "pkg/__init__", "pkg/m0", "pkg/m1", "pkg/apart")  # the last one is imported by none


def source(name: str, way: str, value: int) -> str:
    """Return a file's text: the program takes `work` from m0, and m0 from m1."""
    other = {"program": "pkg/m0", "pkg/m0": "pkg/m1"}.get(name, "")
    if name == "program" and way in RELATIVE:
        way = "from"
    words = {"m": other.replace("/", "."), "t": other.rpartition("/")[2]}
    words["w"] = f"work_{words['t']}"
    top, inside, call = (
        (text.format(**words) for text in {**WAYS, **RELATIVE}[way]) if other else ("", "", "0")
    )
    body = f"def work():\n{f'    {inside}' if inside else ''}\n    return {value} + {call}\n"
    if name == "program":
        return ROOT.format(imports=f"{top}\n{body}", calls="work()")
    also = (
        f"work_of_{name.rpartition('/')[2]} = work\n\nclass Base:\n    def value(self):\n        return work()\n\n"
        "def adds(function):\n    return lambda: function() + work()\n\n"
        "import tables\ntables.TABLE[__name__] = work\n"
    )
    return f"{top}\n\n{body}\n{also}" if name != "pkg/__init__" else ""


def write(package: Package, way: str) -> None:
    package.write("tables", "TABLE = {}\n")
    for name in FILES:
        package.write(name, source(name, way, 1))


@pytest.mark.parametrize("way", [*WAYS, *RELATIVE])
def test_an_edit_of_any_module_that_is_reached_is_noticed(package: Package, way: str) -> None:
    """An edit is noticed exactly where the program reaches the module, and named; comments and layout are no edits."""
    write(package, way)
    before = package.code()
    assert changed_parts(before, package.code(run=True)) == []
    for name in ("program", "pkg/m0", "pkg/m1", "pkg/apart"):
        package.write(name, source(name, way, 2))
        lines = changed_parts(before, package.code())
        if name == "pkg/apart":
            assert lines == []
        else:
            assert f"{package.folder / name}.py: work has changed" in lines, (name, lines)
            assert {line.partition(":")[0] for line in lines} == {f"{package.folder / name}.py"}
        package.write(name, source(name, way, 1))
    for name in ("program", "pkg/m0", "pkg/m1"):
        text = ast.unparse(ast.parse(source(name, way, 1))).replace(
            "def work():\n", 'def work(\n):  # a comment\n    """A docstring.\n\n    Of two lines."""\n\n'
        )
        package.write(name, f'"""Of the module."""\n\n# a comment\n{text}\n\n')
    assert changed_parts(before, package.code()) == []
