"""An `ItemError` is also an instance of what its item raised: caught as that, pickled, and printed once."""

import copy
import json
import pickle
import subprocess
import sys
import traceback

import pytest

from espnet3.parallel.errors import ConfigError, ItemError, PoisonItemError, item_error_of
from espnet3.parallel.records import ItemFailure
from tests.parallel.contract.work import TwoPartError


class SlottedError(Exception):
    __slots__ = ("code",)


class UnhashableError(Exception):
    def __eq__(self, other):
        return True

    __hash__ = None


class TalksError(Exception):
    """Has a text and a way of pickling of its own, and neither works."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__

    def __reduce_ex__(self, protocol):
        raise RuntimeError("no pickling")


class HasIndexError(Exception):
    """Has an attribute of our name that cannot be set."""

    @property
    def index(self):
        return "theirs"


class NotDerivableError(Exception):
    def __init_subclass__(cls, **kwargs):
        raise RuntimeError("final")


def raised(function):
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it has raised nothing")


def error_of(error):
    return item_error_of(error, ItemFailure(7, type(error).__name__, "its message", "", 1, "w"))


COMBINED = [
    ValueError("x"),
    KeyError("k"),
    FileNotFoundError(2, "No such file", "a.wav"),
    TimeoutError(),
    raised(b"\xff".decode),
    raised(lambda: json.loads("{")),
    TwoPartError(3, "bad"),
    SlottedError("s"),
    UnhashableError("u"),
    TalksError(),
    ConfigError("nested"),
]
ALONE = [
    StopIteration(1),
    SystemExit(1),
    KeyboardInterrupt(),
    RuntimeError("r"),
    HasIndexError("h"),
    NotDerivableError("n"),
    PoisonItemError(ItemFailure(1, "a", "b", "c", 1, "w")),
    ItemError(ItemFailure(1, "a", "b", "c", 1, "w")),
]


def name_of(error):
    """Name a case by its exception's type."""
    return type(error).__name__


@pytest.mark.parametrize("error", COMBINED, ids=name_of)
def test_it_is_caught_as_what_the_item_raised(error):
    """It is an ItemError and an instance of the exception's type; its class is made once."""
    found = error_of(error)
    assert isinstance(found, ItemError)
    assert isinstance(found, type(error))
    assert type(error_of(error)) is type(found)
    assert (found.index, found.worker, found.__cause__) == (7, "w", error)


@pytest.mark.parametrize("error", ALONE, ids=name_of)
def test_what_cannot_or_must_not_be_combined_is_an_item_error_alone(error):
    """No exception that ends a program, that `raise` changes or that resists is combined: it is a plain ItemError."""
    found = error_of(error)
    assert type(found) is ItemError
    assert found.__cause__ is error


@pytest.mark.parametrize("error", [*COMBINED, *ALONE], ids=name_of)
def test_it_is_pickled_and_copied(error):
    """A copy is of the same class, and has the same text, index and attributes."""
    first = error_of(error)
    first.__notes__ = ["a note"]
    for second in (copy.copy(first), pickle.loads(pickle.dumps(first))):
        assert type(second) is type(first)
        assert (str(second), second.index, second.failure) == (str(first), 7, first.failure)
        assert vars(second) == vars(first)


@pytest.mark.parametrize("error", [*COMBINED, *ALONE], ids=name_of)
def test_it_looks_like_an_item_error_and_is_printed_once(error):
    """Its last line is that of an ItemError, whatever the type; a traceback has it once, and the cause once."""
    found = error_of(error)
    (line,) = traceback.format_exception_only(type(found), found)
    wanted = f"espnet3.parallel.errors.ItemError: item 7 failed on worker w: {name_of(error)}: its message\n"
    assert line == wanted
    try:
        raise found
    except ItemError as caught:
        text = "".join(traceback.format_exception(caught))
    assert text.count(wanted) == 1
    assert text.count("direct cause") == 1
    assert repr(found).startswith("ItemError(<ItemFailure: item 7")


def test_it_has_what_the_exception_knew():
    """Fields that a constructor has set, and attributes, are those of the exception; also after pickling."""
    for again in (lambda error: error, lambda error: pickle.loads(pickle.dumps(error))):
        found = again(error_of(FileNotFoundError(2, "No such file", "a.wav")))
        assert (found.errno, found.strerror, found.filename) == (2, "No such file", "a.wav")
        assert again(error_of(TwoPartError(3, "bad"))).code == 3
        assert again(error_of(raised(b"\xff".decode))).object == b"\xff"
        assert again(error_of(ImportError("no", name="espeak"))).name == "espeak"


def test_an_item_error_of_an_item_error_is_of_the_first_type():
    """Where an item runs a runner whose item failed, the outer error is still of what was raised first."""
    found = error_of(error_of(LookupError("deep")))
    assert isinstance(found, LookupError)
    assert type(found) is type(error_of(LookupError("deep")))


def test_it_is_pickled_where_dask_is_imported_after_it():
    """distributed has every exception class of that moment pickled by tblib, which asks in a way of its own."""
    program = """if True:
        import pickle
        from espnet3.parallel.errors import item_error_of
        from espnet3.parallel.records import ItemFailure
        first = item_error_of(KeyError("k"), ItemFailure(7, "KeyError", "k", "", 1, "1"))
        import distributed
        second = pickle.loads(pickle.dumps(first))
        assert isinstance(second, KeyError) and second.index == 7 and type(second) is type(first)
        assert str(second) == str(first) and isinstance(second.__cause__, KeyError)
    """
    subprocess.run([sys.executable, "-c", program], check=True)
