"""Names that one file defines more than once, and functions that are put in a method's place: what runs counts."""

import pytest

from espnet3.parallel.provenance.parts import changed_parts
from tests.parallel.provenance.package import Package

HEAD = """
import functools, os
from dataclasses import dataclass
from espnet3.parallel import BaseRunner, EnvironmentProvider
from espnet3.parallel.provenance.reach import code_of

SEEN = []

class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {}

def plain(function):
    def called(*args):
        return function(*args) + 1
    return called

def wraps(function):
    @functools.wraps(function)
    def called(*args):
        return function(*args) + 1
    return called

def one(idx):
    return 1

def two(idx):
    return 2
"""
RUNNER = """
class Runner(BaseRunner):
    @staticmethod
    def forward(idx):
        return VALUE
"""
LOOK = "\nSEEN.append(code_of([Runner, Provider])[0])\n"


def runner(value: str) -> str:
    return RUNNER.replace("VALUE", value)


def setting(statement: str) -> tuple[str, str]:
    """Return a runner, and a statement that follows its first run."""
    return runner("0"), statement


# By what is done: what stands before the first run, and between it and the second, which computes something else.
DONE = {
    "the class is defined again": (runner("1"), runner("2")),
    "the provider is defined again": (
        runner("1"),
        "class Provider(EnvironmentProvider):\n    def build_env_local(self):\n        return {'x': 1}\n"),
    "a base is defined again": (
        f"class Base(BaseRunner):{runner('1').partition(':')[2]}\nclass Runner(Base):\n    pass\n",
        f"class Base(BaseRunner):{runner('2').partition(':')[2]}\nclass Runner(Base):\n    pass\n"),
    "a helper is defined again": (
        f"def f(idx):\n    return 1\n{runner('f(idx)')}", "def f(idx):\n    return 2\n"),
    "a helper under a decorator that says nothing": (
        f"@plain\ndef f(idx):\n    return 1\n{runner('f(idx)')}", "@plain\ndef f(idx):\n    return 2\n"),
    "a lambda is bound again": (f"f = lambda idx: 1\n{runner('f(idx)')}", "f = lambda idx: 2\n"),
    "a helper's name gets another": (f"f = one\n{runner('f(idx) + two(0)')}", "f = two\n"),
    "a helper is wrapped": (f"def f(idx):\n    return 1\n{runner('f(idx)')}", "f = wraps(f)\n"),
    "a record is defined again": (
        f"@dataclass\nclass A:\n    x: int = 1\n{runner('A().x')}", "@dataclass\nclass A:\n    x: int = 2\n"),
    "another function is the method": setting("Runner.forward = staticmethod(one)"),
    "the function of a method is defined again": (
        runner("0") + "Runner.forward = staticmethod(one)",
        "def one(idx):\n    return 3\n\nRunner.forward = staticmethod(one)"),
    "the method is wrapped": setting("Runner.forward = staticmethod(wraps(Runner.forward))"),
    "the method is put there by name": setting("setattr(Runner, 'forward', staticmethod(one))"),
    "a partial function is the method": (
        runner("0") + "Runner.forward = staticmethod(functools.partial(pow, 2))",
        "Runner.forward = staticmethod(functools.partial(pow, 3))"),
    "compiled text is the method": setting(
        "made = {}\nexec('def forward(idx): return 1', made)\nRunner.forward = staticmethod(made['forward'])"),
}  # fmt: skip


def seen(package: Package) -> list[dict]:
    """Return the code that a program has noted, from the first run to the last."""
    return list(package.load().SEEN)


@pytest.mark.parametrize(("first", "then"), DONE.values(), ids=DONE)
def test_what_runs_now_is_told_from_what_ran_before(package: Package, first: str, then: str) -> None:
    """A second run in the same program with other code is another run; the same program started again is not."""
    text = f"{HEAD}\n{first}\n{LOOK}\n{then}\n{LOOK}"
    package.write("program", text)
    old, new = seen(package)
    assert changed_parts(old, new) != []
    assert seen(package) == [old, new]
    moved = text.replace("class Runner", "\n\n# moved\nclass Runner").replace(
        "        return", '        """Said."""\n\n        return'
    )
    package.write("program", moved)
    again = seen(package)
    assert [changed_parts(*both) for both in zip([old, new], again, strict=True)] == [[], []]


def test_an_edit_of_the_other_definition_is_no_difference(package: Package) -> None:
    """What a definition says that is not the one in use does not count; what the one in use says does."""
    text = f"{HEAD}{runner('1')}{runner('2')}{LOOK}"
    package.write("program", text)
    (before,) = seen(package)
    package.write("program", text.replace("return 1\n\nclass", "return 11\n\nclass"))
    assert changed_parts(before, seen(package)[0]) == []
    package.write("program", f"{HEAD}{runner('2')}{LOOK}")
    assert changed_parts(before, seen(package)[0]) == []
    package.write("program", f"{HEAD}{runner('1')}{runner('3')}{LOOK}")
    (line,) = changed_parts(before, seen(package)[0])
    assert line.endswith(": Runner.forward has changed")


def test_an_object_that_answers_to_any_name_is_not_asked(package: Package) -> None:
    """A variable's value that fails where it does not know an attribute stops no run."""
    odd = "class Odd:\n    def __getattr__(self, name):\n        raise RuntimeError(name)\n\nodd = Odd()\n"
    package.write("program", f"{HEAD}{odd}{runner('str(odd)')}{LOOK}")
    assert "the value of odd" in seen(package)[0]["program"]["values"]
