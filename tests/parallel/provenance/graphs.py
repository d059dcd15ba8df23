"""Drawn packages: modules m0 to m9 that import each other, each in one of many ways."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.parallel.provenance.package import ROOT

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


@dataclass(frozen=True)
class Graph:
    """A drawn set of modules: what each imports, and in which way."""

    imports: dict[str, list[tuple[str, str]]]  # by module: "pkg/m3"
    target: str = ""  # a module that the config names under `_target_`

    @staticmethod
    def draw(seed: int) -> Graph:
        """Draw modules, each of which may import later ones, and some of which are in a package."""
        draw = random.Random(seed)
        names = [f"m{n}" if draw.random() < 0.5 else f"pkg/m{n}" for n in range(10)]
        graph: dict[str, list[tuple[str, str]]] = {"program": []}
        for at, name in enumerate(["program", *names]):
            later = names[at:]
            chosen = draw.sample(later, min(len(later), draw.randint(0 if at else 1, 3)))
            graph[name] = [(one, draw.choice(_ways(name, one, draw.random() < 0.5))) for one in chosen]
        inner = [name for name in names if "/" in name]
        graph["pkg/__init__"] = [(inner[-1], "relative")] if inner and draw.random() < 0.5 else []
        return Graph(graph, draw.choice(["", *names]))

    @property
    def config(self) -> dict[str, object]:
        dotted = self.target.replace("/", ".")
        return {"config": {"net": {"_target_": f"{dotted}.Base"}} if dotted else {}}

    def reached(self, packages: bool = False) -> set[str]:
        """Return the modules that the program reaches; with those that are loaded for the packages they are in."""
        seen: set[str] = set()
        todo = ["program", *([self.target] if self.target else [])]
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += [other for other, _ in self.imports.get(name, ())]
                todo += ["pkg/__init__"] if packages and name.startswith("pkg/") else []
        return seen

    def source(self, name: str, value: int) -> str:
        last = name.rpartition("/")[2]
        top, inside, calls = [], [], [str(value)]
        for other, way in self.imports[name]:
            words = {"m": other.replace("/", "."), "t": other.rpartition("/")[2]}
            words["w"] = f"work_{words['t']}"
            first, second, call = (text.format(**words) for text in {**WAYS, **RELATIVE}[way])
            top.append(first)
            inside += [f"    {second}\n"] if second else []
            calls.append(call)
        body = f"def work():\n{''.join(inside)}    return {' + '.join(calls)}\n"
        if name == "program":
            return ROOT.format(imports="\n".join(top) + "\n" + body, calls="work()")
        also = (
            f"work_of_{last} = work\n\nclass Base:\n    def value(self):\n        return work()\n\n"
            "def adds(function):\n    return lambda: function() + work()\n\n"
            "import tables\ntables.TABLE[__name__] = work\n"
        )
        return "\n".join(top) + "\n\n" + body + "\n" + also


def _ways(name: str, other: str, near: bool) -> list[str]:
    return sorted(RELATIVE if near and "/" in name and "/" in other else WAYS)
