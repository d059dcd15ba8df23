"""Objects and modules that answer to any name, raise where they are looked at, or say that they are something else."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from espnet3.parallel import (
    BaseRunner,
    EnvironmentProvider,
    parallel_map,
    parallel_submit,
    set_parallel,
)
from tests.parallel.contract.helpers import TWO


class AttrDict(dict[str, Any]):
    """Its keys are its attributes; a missing one is a KeyError."""

    __getattr__ = dict.__getitem__


class Anything(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return Anything()

    def __call__(self, *args: Any) -> Any:
        return self


class Raises:
    """Raises at every attribute that it has not."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Unlike:
    """Cannot be compared, counted, shown or asked whether it is true."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("==")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    def __len__(self) -> int:
        raise RuntimeError("len")

    def __repr__(self) -> str:
        raise RuntimeError("repr")


class Disguised:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return dict


ODD: dict[str, Callable[[], Any]] = {
    "attributes are keys": lambda: AttrDict(a=1),
    "any attribute": lambda: Anything(a=1),
    "raises": Raises,
    "no comparison": Unlike,
    "disguised": Disguised,
}
VALUE: Any = None
TABLE: dict[str, Any] = {}

odd = pytest.mark.parametrize("name", ODD)


class Provider(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        return {}


class Same(BaseRunner):
    kept: Any = None

    @staticmethod
    def forward(idx: int) -> Any:
        """Return it; what it names is what the run depends on."""
        return idx if VALUE is not TABLE else None


def runs(folder: Path, provider: Any = None) -> None:
    """Run into a folder, and go on there."""
    for _ in range(2):
        runner = Same(Provider() if provider is None else provider, output_dir=folder, progress=False)
        assert list(runner(range(3))) == [0, 1, 2]


@odd
def test_what_the_code_refers_to_may_be_odd(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A global, a table's entry and a class attribute are looked at without calling anything of theirs."""
    value = ODD[name]()
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "VALUE", value)
        patch.setitem(TABLE, "odd", value)
        patch.setattr(Same, "kept", value)
        runs(tmp_path / "run")


@odd
def test_what_a_provider_is_made_with_may_be_odd(name: str, tmp_path: Path) -> None:
    """In a config, an attribute or the whole of it, an object runs and resumes."""
    value = ODD[name]()
    runs(tmp_path / "config", Provider({"odd": value}))
    provider = Provider()
    provider.odd = value  # type: ignore[attr-defined]
    runs(tmp_path / "attribute", provider)
    if issubclass(type(value), dict):
        runs(tmp_path / "whole", Provider(value))


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.random.default_rng(1),
        lambda: np.random.RandomState(1),
        lambda: random.Random(1),
    ],
    ids=["default_rng", "RandomState", "Random"],
)
def test_a_generator_in_a_config_counts_by_its_state(make: Callable[[], Any], tmp_path: Path) -> None:
    """Of two generators with the same state a run is the same one."""
    for _ in range(2):
        runs(tmp_path / "run", Provider({"rng": make()}))


class MissingError(KeyError):
    """An error whose missing attributes are KeyErrors."""

    def __getattr__(self, name: str) -> Any:
        return {}[name]


def fails(x: Any) -> Any:
    """Raise it."""
    raise MissingError(x)


def give_back(x: Any) -> Any:
    """Return what is given."""
    return x


@pytest.mark.parametrize("block", [None, TWO], ids=["in-process", "own-workers"])
def test_items_results_and_errors_may_be_odd(block: Any) -> None:
    """What an item is, returns and raises travels as it is."""
    set_parallel(block)
    assert parallel_map(give_back, [AttrDict(a=1), Anything(a=2)]) == [{"a": 1}, {"a": 2}]
    assert parallel_submit(give_back, AttrDict(a=1)).result() == {"a": 1}
    with pytest.raises(MissingError) as caught:
        parallel_map(fails, ["it"])
    assert caught.value.args == ("it",) and "in item 0" in str(caught.value.__dict__["__notes__"])


class Lazy(ModuleType):
    """A module that raises at what it has not."""

    kind: type[Exception] = ImportError

    def __getattr__(self, name: str) -> Any:
        raise self.kind(name)


def catch_all() -> ModuleType:
    """Return a module that has every attribute, by a function of its own."""
    module = ModuleType("odd_module")
    module.__getattr__ = lambda name: Anything()  # type: ignore[method-assign]
    return module


MODULES: dict[str, Callable[[], Any]] = {
    "ImportError": lambda: Lazy("odd_module"),
    "KeyError": lambda: type("Lazy", (Lazy,), {"kind": KeyError})("odd_module"),
    "catch-all": catch_all,
    "object": Raises,
    "none": lambda: None,
}


def put_odd_module(kind: str) -> int:
    """Have the process that runs this hold an odd module."""
    sys.modules["odd_module"] = MODULES[kind]()
    return 1


class Imports(BaseRunner):
    """Imports by a name that is made at run time, so that any module may be meant."""

    @staticmethod
    def forward(idx: int) -> Any:
        return importlib.import_module("string" if idx else "math").__name__


@pytest.mark.parametrize("kind", MODULES)
def test_a_module_may_be_odd(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in `sys.modules`, runs with a folder go on, and nothing of it is called."""
    monkeypatch.setitem(sys.modules, "odd_module", MODULES[kind]())
    for _ in range(2):
        runner = Imports(Provider(), output_dir=tmp_path / "run", progress=False)
        assert list(runner(range(2))) == ["math", "string"]


def test_workers_with_odd_modules_are_used_again() -> None:
    """A worker that has loaded such a module is as good as any other for the next run."""
    set_parallel(TWO)
    for kind in MODULES:
        assert parallel_map(put_odd_module, [kind] * 4) == [1] * 4
