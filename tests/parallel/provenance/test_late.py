"""Modules that a function imports: not loaded in one start or in both, they count by their source."""

import sys
from itertools import product

import pytest

from espnet3.parallel.provenance.parts import changed_files, changed_parts, packed
from tests.parallel.provenance.package import ROOT, Package

PROGRAM = ROOT.format(imports="def late():\n    import helper\n    return helper.f()\n", calls="late()")
OPTIONAL = PROGRAM.replace(
    "    import helper\n", "    try:\n        import helper\n    except ImportError:\n        return 0\n"
)
# whether the module is loaded in the first start, and in the second
LOADED = pytest.mark.parametrize("loaded", [*product([False, True], repeat=2)], ids=str)

# By what is edited: the module, with VALUE for what differs
EDITED = {
    "a method that hides one": "class B:\n    def go1(self): return 1\nclass N(B):\n    def goVALUE(self): return 2\n"
    "def f(): return N().go1()\n",
    "an attribute that hides one": "class B:\n    w1 = 1\nclass N(B):\n    wVALUE = 2\ndef f(): return N.w1\n",
    "a member of an enum": "from enum import Enum\nclass C(Enum):\n    A = 1\n    BVALUE = 2\ndef f(): return [*C]\n",
    "a default of a dataclass": "from dataclasses import dataclass\n@dataclass\nclass C:\n    k: int = VALUE\n"
    "def f(): return C().k\n",
    "a default of a method of a decorated class": "def same(c): return c\n@same\nclass C:\n"
    "    def go(self, k=VALUE): return k\ndef f(): return C().go()\n",
    "an attribute of a generic class": "from typing import Generic, TypeVar\nT = TypeVar('T')\n"
    "class C(Generic[T]):\n    k = VALUE\ndef f(): return C.k\n",
    "an attribute of a class within one, of two of a name": "try:\n    import nowhere\n    class C: pass\n"
    "except ImportError:\n    class C:\n        class D:\n            k = VALUE\ndef f(): return C.D.k\n",
    "a member of a decorated class": "def same(c): return c\n@same\nclass N:\n    def goVALUE(self): return 1\n"
    "def f(): return hasattr(N, 'go1')\n",
    "one of three lambdas": "T = {'a': lambda: 1, 'b': lambda: VALUE, 'c': lambda: 2}\ndef f(): return T['b']()\n",
    "a registered function without a name": "R = {}\ndef put(k): return lambda one: R.setdefault(k, one)\n"
    "@put(1)\ndef _(): return 1\n@put(2)\ndef _(): return VALUE\n@put(3)\ndef _(): return 2\ndef f(): return R[2]()\n",
    "a registered function": "R = {}\ndef put(one): return R.setdefault(one.__name__, one)\n"
    "@put\ndef one(): return VALUE\ndef f(): return R['one']()\n",
    "a hint that is asked for": "def keep(one): return one\n@keep\ndef g(i: 'VALUE'): return 0\n"
    "def f(): return vars(g)\n",
    "a hint that code reads": "def g(i: 'VALUE'): return 0\ndef f(): return g.__annotations__\n",
    "what makes a value": "def make(): return {'a': VALUE}\nS = make()\ndef f(): return S['a']\n",
    "a function": "def f(): return VALUE\n",
    "a constant": "C = VALUE\ndef f(): return C\n",
}  # fmt: skip
INNER = "def g():\n    def h(i: int) -> list[int]:\n        return i\n    return h(1)\n\n\n"
PLAIN = (
    INNER
    + "C = 1\n\n\nclass N:\n    def go(self, i):\n        return i\n\n\ndef f(i=1):\n    return N().go(i), g()\n"
)
# By what does not count: the module, edited
SAME = {
    "hints": PLAIN.replace("i=1)", "i: int = 1) -> 'list[int]'").replace("self, i)", "self, i: float)"),
    "a variable's hint": PLAIN.replace("C =", "C: int ="),
    "comments": "# one\n" + PLAIN.replace("return i\n", "return i  # the same\n"),
    "docstrings": '"""One."""\n' + PLAIN.replace("class N:\n", 'class N:\n    """Two."""\n\n'),
    "lines": PLAIN.replace("N().go(i), g()", "(\n        N()\n        .go(i),\n        g(),\n    )"),
    "line ends": PLAIN.replace("\n", "\r\n"),
    "a class of the program's own lines": PLAIN + "if __name__ == '__main__':\n    class T:\n        n = 1\n",
    "another function": PLAIN + "\n\ndef k():\n    return 2\n",
    "an order": PLAIN.replace("C = 1\n\n\n", "") + "\n\nC = 1\n",
}  # fmt: skip


if sys.version_info >= (3, 12):
    EDITED["an attribute of a class with type parameters"] = (
        "class C[T]:\n    k = VALUE\ndef f(): return C.k\n"
    )


@LOADED
@pytest.mark.parametrize("text", EDITED.values(), ids=EDITED)
def test_an_edit_is_noticed(text: str, loaded: tuple[bool, bool], package: Package) -> None:
    """What decides a result counts, wherever in the module it is, and the same text is no edit."""
    package.write("program", PROGRAM)
    found = []
    for value, run in (("1", loaded[0]), ("1", loaded[1]), ("2", loaded[1])):
        package.write("helper", text.replace("VALUE", value))
        found.append(package.code(run=run))
    assert changed_parts(found[0], found[1]) == []
    assert changed_parts(found[0], found[2]) != []


@LOADED
@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_what_decides_nothing_does_not_count(text: str, loaded: tuple[bool, bool], package: Package) -> None:
    """Comments, docstrings, type hints, layout and further functions are no edit."""
    package.write("program", PROGRAM)
    found = []
    for each, run in zip((PLAIN, text), loaded, strict=True):
        package.write("helper", each)
        found.append(package.code(run=run))
    assert changed_parts(*found) == []


@pytest.mark.parametrize("before", [None, "an own one"])
def test_a_module_that_comes_or_goes_is_noticed(
    before: str | None, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that was not there counts once it is, and one that is gone, and one that hides an installed one."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    package.write("pkg/__init__", "")
    texts = {"helper": OPTIONAL, "colorsys": OPTIONAL.replace("helper", "colorsys")}
    texts["pkg/fast"] = OPTIONAL.replace("import helper", "from pkg import fast as helper")
    for name, text in texts.items():
        package.write("program", text)
        without = package.code()
        package.write(name, "def f(): return 1\n")
        there = package.code()
        pair = (without, there) if before is None else (there, without)
        said = "is new" if before is None else "is gone"
        assert changed_parts(*pair) == [f"{package.folder / name}.py: it {said}"]
        assert changed_parts(there, there) == changed_parts(without, without) == []


@LOADED
def test_a_function_that_hides_a_builtin_is_noticed(loaded: tuple[bool, bool], package: Package) -> None:
    """A further function is an edit where other code calls a builtin of its name."""
    package.write("program", PROGRAM)
    found = []
    for more, run in zip(("", "def len(i): return 7\n"), loaded, strict=True):
        package.write("helper", f"{more}def f(): return len('ab')\n")
        found.append(package.code(run=run))
    assert changed_parts(*found) != []


def test_a_source_is_taken_apart_whatever_is_in_it() -> None:
    """A long expression, a text that is too long or damaged, and what is no text at all are compared."""
    long = "x = 1\ny = " + " + ".join(["x"] * 3000)
    sources = [packed(f"{long} + {one}".encode()) for one in "ab"]
    for one, other in [
        sources,
        ["0abcd", "0"],
        [packed(b"a\n" * (1 << 20)), "0"],
        [packed(b"x=" + b"-" * 100_000), "x"],
    ]:
        old, new = (
            {"m": {"file": "m.py", "code": {}, "values": {}, "source": each}} for each in (one, other)
        )
        assert changed_parts(old, new) != []
        assert changed_parts(old, old) == []
    assert changed_files({"m": {**old["m"], "file": __file__, "source": [5]}}) == []


def test_a_module_that_cannot_be_compiled_any_more_is_noticed(package: Package) -> None:
    """A syntax error is an edit: a run from the start would end with it."""
    package.write("program", PROGRAM)
    package.write("helper", PLAIN)
    before = package.code()
    package.write("helper", f"{PLAIN}(")
    assert changed_parts(before, package.code()) == [f"{package.folder}/helper.py: its content has changed"]
