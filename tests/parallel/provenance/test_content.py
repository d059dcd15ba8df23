"""The hash of a value is that of its content: for equal values the same, for others another."""

import datetime
import decimal
import enum
import functools
import logging
import multiprocessing
import re
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from omegaconf import OmegaConf

from espnet3.parallel.provenance.content import NoContentError, content_hash
from espnet3.parallel.provenance.parts import changed_parts
from espnet3.parallel.provenance.reach import code_of
from tests.components.needed import needed


class Plain:
    """An object without a repr of its own."""

    def __init__(self, value: object) -> None:
        self.value = value


@dataclass
class Data:
    value: object


class Nothing(Plain):
    def __getstate__(self) -> dict[str, object]:
        return {}


class Another(Plain):
    def __reduce__(self) -> tuple[type, tuple[int]]:
        return Another, (1,)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


Mark = enum.Flag("Mark", "A B")


def with_attrs(value: int) -> Any:
    table = pandas.DataFrame()
    table.attrs["k"] = value
    return table


def closure(held: object) -> Any:
    return lambda: held


DIFFERENT: list[tuple[Any, ...]] = [
    ("long arrays", np.arange(5000), np.r_[:2500, -1, 2501:5000]),
    ("arrays of another shape", np.zeros((2, 3)), np.zeros((3, 2))),
    ("arrays of another type", np.zeros(3, "f4"), np.zeros(3, "f8")),
    ("arrays of objects", np.array([{1: 2}, None]), np.array([{1: 3}, None])),
    ("masked arrays", *(np.ma.masked_array([1, 2], [at, 1 - at]) for at in (0, 1))),
    ("memoryviews", memoryview(b"ab"), memoryview(b"ac")),
    ("numbers of another type", 1, 1.0),
    ("a number and a text", 1, "1"),
    ("True and one", True, 1),
    ("objects without a repr", Plain(1), Plain(2)),
    ("dataclasses", Data(1), Data(2)),
    ("members of an enumeration", Colour.RED, Colour.BLUE),
    ("closures", closure(1), closure(2)),
    ("partials", functools.partial(int, base=2), functools.partial(int, base=3)),
    ("sets", {1, 2}, {1, 3}),
    ("defaults of dicts", defaultdict(int), defaultdict(list)),
    ("lists in another order", [1, 2], [2, 1]),
    ("long lists", list(range(2000)), [*range(1999), 0]),
    ("long dicts", dict(enumerate("ab" * 1000)), dict(enumerate("ab" * 999 + "aa"))),
    ("nested", {"a": [{"b": (1, {2})}]}, {"a": [{"b": (1, {3})}]}),
    ("dates", datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
    ("decimals", decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    ("fractions", Fraction(1, 3), Fraction(1, 4)),
    ("paths", Path("a"), Path("b")),
    ("patterns", re.compile("a"), re.compile("a", re.IGNORECASE)),
    ("texts cut elsewhere", ["ab", "c"], ["a", "bc"]),
    ("nan and infinity", float("nan"), float("inf")),
    ("configs", OmegaConf.create({"a": 1}), OmegaConf.create({"a": 2})),
    ("a long tuple and a long list", tuple(range(2000)), list(range(2000))),
    ("an ordered dict and a dict", OrderedDict(a=1), {"a": 1}),
    ("numbers of another precision", np.float32(0.5), 0.5),
    ("a number of numpy and Python's", np.float64(0.5), 0.5),
    ("cached functions", functools.cache(closure(1)), functools.cache(closure(2))),
    ("properties", property(closure(1)), property(closure(2))),
    ("the order of a dict", {"yes": 1, "no": 2}, {"no": 2, "yes": 1}),
    ("names of a structured type", *(np.zeros(1, [(one, "i4") for one in two]) for two in ("ab", "ba"))),
    ("the order of categories", pandas.Categorical(["a"], ["a", "b"]), pandas.Categorical(["a"], ["b", "a"])),
    ("the name of columns", *(pandas.DataFrame().rename_axis(columns=name) for name in "uv")),
    ("a table's attrs", with_attrs(1), with_attrs(2)),
    ("keys 1 and '1'", {1: "a", "1": "b"}, {1: "c", "1": "b"}),
    ("a set and a frozenset", {1}, frozenset({1})),
    ("members of flags", Mark.A | Mark.B, Mark.A),
    ("generators of random numbers", np.random.default_rng(1), np.random.default_rng(2)),
    ("ranges", range(3), range(4)),
    ("objects that pickle to nothing", Nothing(1), Nothing(2)),
    ("objects that pickle to another", Another(1), Another(2)),
    ("the format of a memoryview", memoryview(b"abcd"), memoryview(b"abcd").cast("i")),
    ("a text's form", "\u00e9", "e\u0301"),
]


@pytest.mark.parametrize(("one", "other"), [d[1:] for d in DIFFERENT], ids=[d[0] for d in DIFFERENT])
def test_other_content_is_another_hash(one: Any, other: Any) -> None:
    """Two values that differ anywhere have different hashes, and each has the same one twice."""
    assert content_hash(one) == content_hash(one)
    assert content_hash(one) != content_hash(other)


def test_equal_content_is_the_same_hash() -> None:
    """Neither the order of a set nor the class of a config changes the hash."""
    assert content_hash({"b": [2], "a": 1}) == content_hash(OmegaConf.create({"b": [2], "a": 1}))
    assert content_hash({"x", "y", "z"}) == content_hash({"z", "y", "x"})
    assert content_hash(Plain([1, object()])) == content_hash(Plain([1, object()]))


@pytest.mark.parametrize("value", [b"a" * 2**24, np.ones(2**24, "u1"), dict.fromkeys(range(2**18))], ids=type)
def test_a_large_value_takes_little_memory(value: Any) -> None:
    """Hashing takes less than twice as much memory as the value has itself."""
    tracemalloc.start()
    content_hash(value)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2 * sys.getsizeof(value)


def test_pandas_tables() -> None:
    """Tables count by their cells, columns, types and index, however long they are."""
    frame = pandas.DataFrame({"a": range(2000), "b": ["x"] * 2000})
    other = frame.copy()
    other.loc[1000, "b"] = "y"
    assert content_hash(frame) == content_hash(frame.copy()) != content_hash(other)
    assert content_hash(frame["a"]) != content_hash(frame["a"].astype("f8"))
    assert content_hash(frame) != content_hash(frame.set_index(frame.index + 1))


@pytest.mark.parametrize("value", [(x for x in "ab"), iter([1]), socket.socket()], ids=type)
def test_what_has_no_content_is_refused(value: Any) -> None:
    """What may decide a result and cannot be looked at is refused with its place."""
    with pytest.raises(NoContentError, match=r"config\.a\[0\] is a"):
        content_hash({"a": [value]}, "config")


@pytest.mark.parametrize(
    "part", [threading.Lock(), multiprocessing.Lock(), logging.getLogger("a"), sys.stderr]
)
def test_a_part_that_never_decides_a_result_drops_out_alone(part: Any) -> None:
    """A lock, a logger or an open file does not count, and what stands beside it does."""
    assert content_hash(Plain([1, part])) == content_hash(Plain([1, part])) != content_hash(Plain([2, part]))


def test_values_that_hold_themselves() -> None:
    """A list that holds itself has a hash, and so has one nested ten thousand deep, whose innermost value counts."""
    loop: list[Any] = [1]
    loop.append(loop)
    assert content_hash(loop) == content_hash(loop)
    deep, other = [1], [2]
    for _ in range(10_000):
        deep, other = [deep], [other]
    assert content_hash(deep) != content_hash(other)
    while isinstance(deep, list):  # taken apart here: the interpreter's own way is as deep
        deep, other = deep.pop(), other.pop()


def test_every_process_has_the_same_hash() -> None:
    """The hash depends on no hash seed and no address."""
    program = (
        "import numpy as np\n"
        "from espnet3.parallel.provenance.content import content_hash\n"
        "class Plain: pass\n"
        "p = Plain(); p.names = {'a', 'b', 'c'}; p.table = {('x', 1): np.arange(3)}\n"
        "print(content_hash([p, {'k', 'l'}, lambda: 1, frozenset('abc'), np.random.default_rng(1)]))\n"
    )
    seeds = [{"PYTHONHASHSEED": seed} for seed in "123"]
    assert len({subprocess.check_output([sys.executable, "-c", program], env=env) for env in seeds}) == 1


def test_an_installed_decorators_object_is_its_function_and_options() -> None:
    """What such an object has beside them, as numba's dispatchers have, is of one process."""

    class Dispatcher:
        def __init__(self, function: Any, **options: bool) -> None:
            functools.update_wrapper(self, function)
            self.targetoptions, self.number = options, time.perf_counter_ns()

    Dispatcher.__module__ = "numpy"
    one, other = closure(1), closure(2)
    assert content_hash(Dispatcher(one)) == content_hash(Dispatcher(one)) != content_hash(Dispatcher(other))
    assert content_hash(Dispatcher(one)) != content_hash(Dispatcher(one, fastmath=True))


def test_a_tensor_counts_by_its_numbers() -> None:
    """A conjugate that has not been computed yet is equal to the one that has."""
    torch = needed("torch")
    conjugate = torch.tensor([1 + 2j]).conj()
    assert content_hash(conjugate) == content_hash(conjugate.resolve_conj()) != content_hash(conjugate.conj())


def test_the_mode_of_a_layer_counts_unless_items_set_it() -> None:
    """`train` and `eval` set a flag of every layer; code that calls them leaves it as it likes."""
    layer = needed("torch").nn.ReLU()

    def evaluates() -> Any:
        return layer.eval()

    def uses() -> Any:
        return layer

    for function, counts in ((evaluates, False), (uses, True)):
        found = []
        for mode in (True, False):
            layer.train(mode)
            found.append(code_of([function])[0])
        assert bool(changed_parts(*found)) is counts
