"""Which edits of the user's code are noticed: those of what a result depends on, and no others."""

import gc
import importlib.util

import pytest

from espnet3.parallel import ConfigError
from espnet3.parallel.provenance.code import Body
from espnet3.parallel.provenance.parts import INSTALLED, LoadedCode, changed_files, changed_parts
from espnet3.parallel.provenance.reach import code_of
from tests.parallel.provenance.package import ROOT, Package

FIRST = """
    import sys
    from espnet3.parallel import BaseRunner, EnvironmentProvider
    from other import shift

    SCALE = 2
    TABLE = {}
    TABLE["a"] = 1
    CACHE = {}
    N = 10

    def near(x):
        CACHE[x] = SCALE * x
        return CACHE[x] + TABLE["a"]

    class Base:
        offset = 1

        @classmethod
        def moved(cls, x):
            return near(x) + cls.offset

    class Provider(EnvironmentProvider):
        def build_env_local(self):
            return {}

    class Runner(BaseRunner, Base):
        @staticmethod
        def forward(idx):
            return Runner.moved(idx) + shift(idx)

    def unrelated():
        return N

    if __name__ == "__main__":
        print(Runner(Provider())(range(N)))
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("SCALE = 2", "SCALE = 3", ["the value of SCALE has changed"]),
        ('TABLE["a"] = 1', 'TABLE["a"] = 4', ["the value of TABLE has changed"]),
        ("+ TABLE", "- TABLE", ["near has changed"]),
        ("offset = 1", "offset = 5", ["the value of Base.offset has changed"]),
        ("near(x) + cls", "near(x) - cls", ["Base.moved has changed"]),
        ("Runner.moved(idx) +", "Runner.moved(idx) -", ["Runner.forward has changed"]),
        ("return {}", 'return {"a": 1}', ["Provider.build_env_local has changed"]),
        ("Runner(BaseRunner, Base)", "Runner(Base, BaseRunner)", ["Runner has changed"]),
        ("N = 10", "N = 11", []),
        ("return N", "return N + 1", []),
        ("print(Runner", "repr(Runner", []),
        ("import sys\n", "import sys  # for nothing\n", []),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_the_runner_reaches_counts(package: Package, old: str, new: str, said: list[str]) -> None:
    """In the runner's own file an edit counts where the runner reaches it; the lines that start the run do not."""
    package.write("other", "def shift(x):\n    return x\n")
    package.write("program", FIRST)
    before = package.code()
    assert old in FIRST
    package.write("program", FIRST.replace(old, new))
    assert [line.partition(": ")[2] for line in changed_parts(before, package.code())] == said


def test_installed_packages_are_no_code_of_the_users(package: Package) -> None:
    """Modules of the standard library and of installed packages are not looked at; their names are returned."""
    package.write(
        "program", ROOT.format(imports="import json\nimport numpy as np", calls="np.sum(json.loads(idx))")
    )
    module = package.load()
    code, installed = code_of([module.Runner, module.Provider])
    assert set(code) == {"program", INSTALLED}
    assert {"json", "numpy"} <= installed


def test_what_else_is_loaded_is_no_difference_by_itself(package: Package) -> None:
    """A module that code may mean by a name made at run time is no difference for being loaded, or not."""
    package.write("only_by_name", "def work():\n    return 1\n")
    package.write(
        "program", ROOT.format(imports="import importlib", calls="importlib.import_module(idx).work()")
    )
    program = package.load()
    alone = code_of([program.Runner, program.Provider])[0]
    name = "only_by_name"  # not in the call: this module is the user's too, and is loaded
    importlib.import_module(name)
    beside = code_of([program.Runner, program.Provider])[0]
    assert name in beside and name not in alone
    assert changed_parts(beside, alone) == changed_parts(alone, beside) == []


@pytest.mark.parametrize(
    ("taken", "calls"),
    [
        ("from a import util as one\nfrom b import util as other", "one.work() - other.work()"),
        ("from b.util import K", "K"),
        ("from b.util import N, K as held", "held"),
        ("from b.util import *", "K"),
        ("from deep import K", "K"),
    ],
)
def test_a_constant_is_named_where_it_is_written(package: Package, taken: str, calls: str) -> None:
    """On disk, at a new start and in a process that has loaded another text: not in a file of that name elsewhere."""
    text = "K = {}\nN = {}\n\ndef work():\n    return K\n"
    package.write("a/util", text.format(1, 2))  # neither folder has an __init__
    package.write("b/util", text.format(2, 2))
    package.write("deep/__init__", "from b.util import *")
    package.write("program", ROOT.format(imports=taken, calls=calls))
    before, said = package.code(), f"{package.folder}/b/util.py: the value of K has changed"
    package.write("b/util", text.format(2, 3))
    assert changed_files(before) == changed_parts(before, package.code()) == []
    LoadedCode(before).check("this process")
    package.write("b/util", text.format(1, 2))
    assert changed_files(before) == [said]
    assert said in changed_parts(before, package.code())
    with pytest.raises(ConfigError, match=said):
        LoadedCode(before).check("this process")


@pytest.mark.parametrize("given", ["2 if os.sep else 1", "os.sep and 2 or 1", "2"])
def test_a_file_that_nobody_has_edited_has_not_changed(package: Package, given: str) -> None:
    """A variable that gets one of two constants is what it is here, and not what a file may say last."""
    package.write("helper", f"import os\n\nK = {given}\n\ndef work():\n    return K\n")
    package.write("program", ROOT.format(imports="import helper", calls="helper.work()"))
    assert changed_files(package.code()) == []


@pytest.mark.parametrize(
    "text",
    [
        "IS_PROGRAM = __name__ == '__main__'\ndef work():\n    return IS_PROGRAM",
        "T = []\nT += [T, {'a': T, 'b': T}, T]\ndef work():\n    return T",
        "class L(dict):\n    def values(self):\n        raise RuntimeError\nT = L(a=1)\ndef work():\n    return T['a']",
        "class K:\n    __hash__ = lambda self: 1 // K.n\n    n = 1\nT = {K(): 1}\nK.n = 0\ndef work():\n    return T",
        "N = 10**5000\ndef work():\n    return N",
        "try:\n    from inspect import stack\nexcept ImportError:\n    def stack(): 0\ndef work():\n    stack()",
        "try:\n    from other import f\nexcept ImportError:\n    def f(): pass\ndef work():\n    f()",
    ],
    ids=["program", "itself", "values", "hash", "number", "installed", "other"],
)
def test_odd_modules_are_looked_at(package: Package, text: str) -> None:
    """Neither a crash nor an endless search, and no edit is reported."""
    package.write("other", "def f():\n    return 1\n")
    package.write("helper", text)
    package.write("program", ROOT.format(imports="import helper", calls="helper.work()"))
    code = package.code()
    assert changed_files(code) == changed_parts(code, package.code()) == []
    LoadedCode(code).check("this process")


LOOP = "for n in z:\n    0\nif __name__ == '__main__':\n    T = 1"


@pytest.mark.parametrize(
    "before", ["X = y if __name__ else z\nR()", "__doc__ = str.__doc__", "T = {TABLE}", LOOP]
)
def test_a_constant_is_known_after_any_statement(before: str) -> None:
    """In a module of many names, whose instructions are long, too."""
    table = ", ".join(f"'k{number}': {number}" for number in range(20))
    names = "".join(f"n{number} = {number}\n" for number in range(300))
    text = f"{names}{before.format(TABLE='{' + table + '}') if 'TABLE' in before else before}\nLAST = 3\n"
    body = Body(compile(text, "helper.py", "exec"))
    assert "LAST" in body.constants and ("T" in body.definitions) == ("TABLE" in before)


def test_a_class_that_another_one_replaces_is_no_subclass(package: Package) -> None:
    """It may be collected at any time, as that which `dataclass(slots=True)` was given."""
    text = (
        "import dataclasses\nclass B:\n    pass\n@dataclasses.dataclass(slots=True)\nclass S(B):\n    x: int = 0\n"
        "def work():\n    return B.__subclasses__()\n"
    )
    package.write("helper", text)
    package.write("program", ROOT.format(imports="import helper", calls="helper.work()"))
    module = package.load()
    before = code_of([module.Runner])[0]
    gc.collect()
    assert changed_parts(before, code_of([module.Runner])[0]) == []
