"""Objects and modules that answer to any name, or raise where they are looked at."""

import importlib
import sys
from types import ModuleType

import pytest

from espnet3.parallel import BaseRunner, parallel_map
from tests.parallel.contract import work

pytestmark = pytest.mark.usefixtures("place")


class AttrDict(dict):
    """Its keys are its attributes; a missing one is a KeyError."""

    __getattr__ = dict.__getitem__


class Raises:
    def __getattr__(self, name):
        raise RuntimeError(name)


class MissingError(KeyError):
    """An error whose missing attributes are KeyErrors."""

    def __getattr__(self, name):
        return {}[name]


class Lazy(ModuleType):
    def __getattr__(self, name):
        raise ImportError(name)


class Imports(BaseRunner):
    """Imports by a name that is made at run time, so that any module may be meant."""

    @staticmethod
    def forward(idx):
        return importlib.import_module("string" if idx else "math").__name__


def fails(x):
    raise MissingError(x)


@pytest.mark.parametrize("value", [AttrDict(a=1), Raises()], ids=["attributes are keys", "raises"])
def test_a_config_may_hold_them(value, tmp_path):
    """Such a value in a config is looked at without calling anything of it, and the run resumes."""
    for _ in range(2):
        runner = work.Echo(work.Whole({"odd": value}), output_dir=tmp_path / "run", progress=False)
        assert list(runner(range(3))) == [0, 1, 2]


def test_items_results_and_errors_may_be_odd():
    """What an item is, returns and raises travels as it is."""
    assert parallel_map(AttrDict, [AttrDict(a=1), AttrDict(b=2)]) == [{"a": 1}, {"b": 2}]
    with pytest.raises(MissingError) as caught:
        parallel_map(fails, ["it"])
    assert caught.value.args == ("it",) and "in item 0" in str(caught.value.__dict__["__notes__"])


def test_a_module_may_raise(tmp_path, monkeypatch):
    """Of a lazy module in `sys.modules` nothing is called, and a run with a folder resumes."""
    monkeypatch.setitem(sys.modules, "odd_module", Lazy("odd_module"))
    for _ in range(2):
        runner = Imports(work.Whole(), output_dir=tmp_path / "run", progress=False)
        assert list(runner(range(2))) == ["math", "string"]
