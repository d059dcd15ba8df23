"""A program that is started again with an edit, another argument or another config: the same run, or another one."""

import builtins
import importlib
import json
import math
import string
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from espnet3.parallel.ledger.errors import ChangedRunError
from espnet3.parallel.ledger.identity import changes
from espnet3.parallel.runner.run import Run
from tests.parallel.provenance import cases
from tests.parallel.provenance.package import Package

HELPER = (
    "K = 0\n\ndef f(x):\n    return x * K + VALUE\n\nclass H:\n    def f(self, x):\n        return x + 1\n"
)


def identity(package: Package, text: str, helper: str = "1") -> Any:
    """Return what makes a program's run the same, as a fresh process would find it."""
    package.write("helper", HELPER.replace("VALUE", helper))
    package.write("program", text)
    return Run.of(package.load().main(), range(3)).identity()


def differences(old: Any, new: Any) -> list[str]:
    """Return what differs between two starts, by way of the run folder."""
    return changes(json.loads(json.dumps(asdict(old))), new)


@pytest.mark.parametrize("text", cases.GIVEN.values(), ids=cases.GIVEN)
def test_another_argument_is_a_new_run(package: Package, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A value from the command line counts wherever it is kept; the same one is the same run."""
    text = text.replace("GIVEN", "int(sys.argv[1])")
    found = []
    for value in ("1", "1", "2"):
        monkeypatch.setattr(sys, "argv", ["program.py", value])
        monkeypatch.delitem(sys.modules, "m", raising=False)
        with monkeypatch.context() as patch:
            patch.setattr(math, "sqrt", math.sqrt)  # each is undone, also where the program sets it
            for installed in (Path, string.Formatter, builtins):
                patch.setattr(installed, "k", None, raising=False)
            found.append(identity(package, text))
    assert differences(found[0], found[1]) == []
    assert differences(found[1], found[2]) != []


@pytest.mark.parametrize(("text", "before", "after"), cases.EDITED.values(), ids=cases.EDITED)
def test_an_edit_that_decides_a_result_is_seen(package: Package, text: str, before: str, after: str) -> None:
    """An edit is noticed however what is edited is reached; the same text is the same run."""
    helper = {"1": "1", "2": "2"}.get(after, "1") if "helper" in text else "1"
    first, again = (identity(package, text.replace("VALUE", before)) for _ in range(2))
    assert differences(first, again) == []
    assert differences(again, identity(package, text.replace("VALUE", after), helper)) != []


@pytest.mark.parametrize(("text", "before", "after"), cases.ACCEPTED.values(), ids=cases.ACCEPTED)
def test_an_edit_that_decides_nothing_is_none(package: Package, text: str, before: str, after: str) -> None:
    """Comments, docstrings, layout and what the runner does not reach may be edited."""
    first, then = (identity(package, text.replace("VALUE", value)) for value in (before, after))
    assert differences(first, then) == []


@pytest.mark.parametrize("before", ["", "import helper"])
def test_a_module_that_forward_imports_may_grow(package: Package, before: str) -> None:
    """Further definitions in it are no edit; another value of one is."""
    text, grown = (
        cases.program(before, "__import__('helper').f(idx)"),
        "1\n\nimport csv\nZ = [1]\ndef g(x=Z): pass",
    )
    first, then = (identity(package, text, helper) for helper in ("1", f"{grown}\nclass X(dict): k = 1\n"))
    assert differences(first, then) == []
    assert differences(then, identity(package, text, f"{grown}\nclass X(list): k = 1\n")) != []


@pytest.mark.parametrize("value", cases.OF_KINDS)
def test_a_method_of_a_configs_value_counts(package: Package, value: str) -> None:
    """The class of a value counts, also where it is a kind of text, number, container or array."""
    made = value if value.startswith("np.") else f"own.{value}"
    text = cases.program("", "1").replace("forward(idx)", "forward(idx, c)")
    text += f"\ndef main():\n    import own\n    return made({{'x': {made}}})\n"
    found = []
    for number in ("1", "1", "2"):
        package.write("own", cases.KINDS.replace("VALUE", number))
        found.append(identity(package, text))
    assert differences(found[0], found[1]) == []
    assert any("own.py" in line for line in differences(found[1], found[2]))


@pytest.mark.parametrize(("text", "returned"), cases.CACHES.values(), ids=cases.CACHES)
def test_what_items_change_does_not_count(package: Package, tmp_path: Path, text: str, returned: str) -> None:
    """After two items the same process has the same run, and after more of them."""
    identity(package, cases.program(text, returned))
    for number in (2, 2, 3, 4):
        runner = sys.modules["program"].main()
        runner.output_dir = tmp_path / "out"
        assert len(runner(range(number))) == number


LEFT = (
    "class N: on = True\nNET = N()\nclass S(BaseRunner):\n    @staticmethod\n    def forward(idx): return NET.on\n"
    "def off():\n    NET.on = False\n    return 1"
)


def test_what_items_leave_counts_for_another_runner(package: Package, tmp_path: Path) -> None:
    """A mode that one runner's items have set decides the results of the next one, and is no cache of its own."""
    identity(package, cases.program(LEFT, "off()"))
    program = sys.modules["program"]
    before = Run.of(program.S(program.P(None)), range(3)).identity()
    program.R(program.P(None), output_dir=tmp_path / "out")(range(2))
    assert differences(before, Run.of(program.S(program.P(None)), range(3)).identity()) != []


def test_what_items_change_where_only_the_config_leads_does_not_count(
    package: Package, tmp_path: Path
) -> None:
    """A counter in a module that a config names is no other run for the items that it has counted."""
    package.write("nets", "class S: n = 0\nSTATE = S()\ndef net(i):\n    STATE.n += 1\n    return i\n")
    identity(package, cases.program("import importlib", "importlib.import_module('ne' + 'ts').net(idx)"))
    importlib.import_module("nets")
    for number in (2, 3):
        runner = sys.modules["program"].made({"x": {"_target_": "nets.net"}})
        runner.output_dir = tmp_path / "out"
        assert len(runner(range(number))) == number


COUNTING = """
class M:
    def __init__(self, k): self.k, self.calls = k, 0
def count(model):
    model.calls += 1
    return model.k
"""


def test_items_may_change_a_model_that_they_are_given(package: Package, tmp_path: Path) -> None:
    """The same object, as items have left it, is the same run; changed by hand, or another one like it, it is not."""
    text = cases.program(COUNTING, "count(c)").replace("forward(idx)", "forward(idx, c)")
    identity(package, text)
    program = sys.modules["program"]
    model, folder = program.M(1), tmp_path / "out"
    for number in (2, 2, 3):
        assert len(program.R(program.P({"x": model}), output_dir=folder)(range(number))) == number
    other = program.M(1)
    other.calls = model.calls
    for one in (other, model):
        with pytest.raises(ChangedRunError, match="config.x"):
            program.R(program.P({"x": one}), output_dir=folder)(range(4))
        model.k = 2


def test_settings_that_are_as_items_have_left_others_are_another_run(
    package: Package, tmp_path: Path
) -> None:
    """Plain data of a config counts by what it is, whatever items have made of the data before it."""
    text = cases.program("def f(c):\n    c.k = 5\n    return c.k", "f(c)")
    identity(package, text.replace("forward(idx)", "forward(idx, c)"))
    program = sys.modules["program"]
    first, then = (
        program.R(program.P({"x": SimpleNamespace(k=k)}), output_dir=tmp_path / "out") for k in (1, 5)
    )
    first(range(2))
    with pytest.raises(ChangedRunError, match="k=5"):
        then(range(2))


def test_a_value_in_ruins_costs_no_result(package: Package, tmp_path: Path) -> None:
    """What cannot be looked at any more once the items have run takes no result."""
    identity(package, cases.program("V = memoryview(b'a')", "V.release() or idx"))
    program = sys.modules["program"]
    assert list(program.R(program.P(None), output_dir=tmp_path / "out")(range(2))) == [0, 1]


def test_a_checkout_may_be_moved(package: Package) -> None:
    """Paths of a module's own, and its name, are the same run in a copy elsewhere; another one beside it is not."""
    text = "HERE = os.path.dirname(__file__)\nDATA = Path(__file__).parent / 'VALUE'"
    text = cases.program(text, "os.path.join(HERE, __file__, __name__, DATA)")
    first = identity(package, text.replace("VALUE", "1"))
    package.folder = package.folder / "copy" / "deeper"
    sys.path.insert(0, str(package.folder))
    assert differences(first, identity(package, text.replace("VALUE", "1"))) == []
    assert differences(first, identity(package, text.replace("VALUE", "2"))) != []
    sys.path.remove(str(package.folder))
