"""Items that cannot travel fail by themselves and are named; odd ones, and odd modules, change nothing."""

import importlib
import sys
import threading
from types import ModuleType

import pytest

from espnet3.parallel import BaseRunner, ItemError, parallel_for, parallel_map, parallel_submit
from tests.parallel.contract import work

pytestmark = pytest.mark.usefixtures("place")
AT, N = 13, 40


class Unloadable:
    def __reduce__(self):
        return refuse, ()


def refuse():
    raise LookupError("no such recording")


class Locked:
    def __init__(self):
        self.lock = threading.Lock()


class Prickly:
    """Travels, but cannot be shown, hashed or compared."""

    def __repr__(self):
        raise OSError("no repr")

    def __hash__(self):
        raise OSError("no hash")

    def __eq__(self, other):
        raise OSError("no equality")


ERRORS = {Unloadable: LookupError, Locked: TypeError}


def name_of(item):
    return type(item).__name__


class Names(BaseRunner):
    @staticmethod
    def forward(item):
        return name_of(item)

    @staticmethod
    def batch_forward(items):
        return [name_of(item) for item in items]


@pytest.fixture
def workers(place):
    if place == 1:
        pytest.skip("nothing travels")


def items_with(kind):
    return [kind() if k == AT else k for k in range(N)]


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize(("kind", "size"), [(Unloadable, None), (Locked, None), (Unloadable, 4)])
def test_a_bad_index_is_recorded_with_its_name(kind, size):
    """The others have their results, and the failure has the index, its place and what is wrong with it."""
    items = items_with(kind)
    results = Names(work.Whole(), on_error="record", progress=False, batch_size=size)(items)
    failure = results.pop(AT)
    assert results == ["int"] * (N - 1)
    assert failure.index is items[AT] and failure.error_type == ERRORS[kind].__name__
    assert f"item {AT} of the data cannot be" in failure.message


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("kind", ERRORS)
def test_a_bad_index_stops_a_run_as_an_item_does(kind):
    """Where failures are not recorded it is an ItemError, and from `parallel_*` its own error, that names it."""
    items = items_with(kind)
    with pytest.raises(ItemError, match=f"item {AT} of the data") as caught:
        Names(work.Whole(), progress=False)(items)
    assert caught.value.failure.index is items[AT] and isinstance(caught.value.__cause__, ERRORS[kind])
    with pytest.raises(ERRORS[kind]) as plain:
        parallel_map(name_of, items)
    with pytest.raises(ERRORS[kind]) as streamed:
        list(parallel_for(name_of, iter(items)))
    for error in (plain.value, streamed.value):
        assert any(f"item {AT} of the data cannot be" in note for note in error.__notes__)


def test_an_index_is_not_shown_hashed_or_compared():
    """An index that forbids all of that is run like any other."""
    assert Names(work.Whole(), progress=False)(items_with(Prickly))[AT] == "Prickly"
    assert parallel_map(name_of, items_with(Prickly))[AT] == "Prickly"


@pytest.mark.usefixtures("workers")
def test_a_submitted_call_that_cannot_be_loaded_fails_alone():
    """Its future has the error; other calls go on."""
    bad, good = parallel_submit(name_of, Unloadable()), parallel_submit(name_of, 1)
    with pytest.raises((LookupError, RuntimeError)):  # on a client the error is Dask's
        bad.result(60)
    assert good.result(60) == "int"


# --- odd ones -------------------------------------------------------------------------------------


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
