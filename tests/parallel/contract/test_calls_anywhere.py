"""`parallel_map`, `parallel_for` and `parallel_submit` give one answer in process and on two workers."""

import functools
import itertools
import sys
import threading
import time
import traceback
from collections import deque

import numpy as np
import pytest
from omegaconf import OmegaConf

from espnet3.parallel import WorkerSetupError, parallel_for, parallel_map, parallel_submit
from tests.parallel.contract import work

pytestmark = pytest.mark.usefixtures("place")


# --- what may be mapped ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        range(7),
        [3, 1, 2],
        {5: "a", 6: "b"},
        np.arange(5),
        deque([1, 2, 3]),
        work.Indexed(5),
        OmegaConf.create([1, 2, 3]),
    ],
    ids=lambda data: type(data).__name__,
)
def test_any_iterable_is_mapped_in_its_order(data):
    """The results are those of a loop over the data, whatever kind of iterable it is."""
    assert parallel_map(work.plus, data) == [x + 1 for x in data]


def test_a_generator_is_mapped_in_its_order():
    """A generator is consumed once, and its results come in its order."""
    assert parallel_map(work.plus, (x * x for x in range(50))) == [x * x + 1 for x in range(50)]


@pytest.mark.parametrize(
    "func",
    [
        work.plus,
        lambda x: x + 1,
        functools.partial(work.plus, y=1),
        work.Add(1),
        work.Add(1).method,
        abs,
        str,
    ],
    ids=["function", "lambda", "partial", "object", "method", "builtin", "class"],
)
def test_any_callable_can_be_mapped(func):
    """Whatever can be called with one item can be mapped."""
    assert parallel_map(func, range(-3, 6)) == [func(x) for x in range(-3, 6)]


def test_a_closure_carries_what_it_refers_to():
    """A function made inside another one takes the values it refers to with it."""
    table = {x: -x for x in range(9)}

    def look_up(x):
        return table[x]

    assert parallel_map(look_up, range(9)) == [-x for x in range(9)]


@pytest.mark.parametrize("empty", [[], iter(())], ids=["list", "iterator"])
def test_no_items_give_no_results(empty):
    """An empty iterable gives an empty list or stream, and no call."""
    assert parallel_map(fail, empty) == []
    assert list(parallel_for(fail, empty)) == []


def test_results_that_look_like_failures_are_results():
    """None, an exception instance and a class that are returned, not raised, arrive as results."""
    wanted = [None, ValueError("returned"), KeyError, StopIteration(3), False]
    got = parallel_map(lambda at: wanted[at], range(len(wanted)))
    assert list(map(repr, got)) == list(map(repr, wanted))


def test_keywords_reach_every_call():
    """Keywords of parallel_map, parallel_for and parallel_submit are given to the function."""
    assert parallel_map(work.plus, range(3), y=10) == [10, 11, 12]
    assert sorted(parallel_for(work.plus, range(3), y=10)) == [10, 11, 12]
    assert parallel_submit(work.plus, 3, y=10).result() == 13


def test_what_is_not_callable_is_refused_at_the_call():
    """A first argument that cannot be called is a TypeError where it was given, not at the first item."""
    with pytest.raises(TypeError, match="not callable"):
        parallel_map(5, range(3))
    with pytest.raises(TypeError, match="not callable"):
        parallel_for("plus", range(3))


# --- order ----------------------------------------------------------------------------------------


def test_order_survives_items_of_very_different_length():
    """Results of parallel_map stand in the order of the data though later items finish first."""
    assert parallel_map(lambda x: (sum(range(40_000 // (x + 1))), x)[1], range(60)) == list(range(60))


def test_ordered_stream_has_the_order_of_the_items():
    """ordered=True yields in the order of the items, unordered the same results in some order."""
    busy = functools.partial(lambda x: (sum(range(20_000 // (x + 1))), x)[1])
    assert list(parallel_for(busy, range(60), ordered=True)) == list(range(60))
    assert sorted(parallel_for(busy, range(60))) == list(range(60))


def test_a_hundred_thousand_items():
    """A hundred thousand cheap items come back complete and in order."""
    assert parallel_map(work.plus, list(range(100_000))) == list(range(1, 100_001))


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_an_endless_iterable_is_taken_as_it_is_needed(ordered):
    """parallel_for over an endless iterable yields, and closing it ends it."""
    stream = parallel_for(work.plus, itertools.count(), ordered=ordered)
    got = list(itertools.islice(stream, 300))
    stream.close()
    assert len(set(got)) == 300
    if ordered:
        assert got == list(range(1, 301))


def one_ms(x):
    """Take a millisecond, at least that on any machine."""
    time.sleep(0.001)
    return x


@pytest.mark.parametrize("ordered", [True, False])
def test_a_slow_consumer_keeps_the_window_small(ordered):
    """Items are taken by chunks of 100 ms at most, and only so many chunks are taken ahead of the consumer."""
    pulled = 0

    def source():
        nonlocal pulled
        for pulled in itertools.count(1):  # noqa: UP028  counting what was pulled is the point
            yield pulled

    # two with each of two workers, and as many that have come back; in order, 32 more may wait for a slow one
    bound = 8 * 50 + 32 * 50 * ordered
    most = 0
    stream = parallel_for(one_ms, source(), ordered=ordered)
    for consumed, _ in enumerate(itertools.islice(stream, 1000)):
        most = max(most, pulled - consumed)
    stream.close()
    assert most <= bound


def test_the_items_iterator_may_raise():
    """An exception of the items' iterator arrives as itself, and the next call works."""

    def items():
        yield from range(30)
        raise work.TwoPartError(5, "disk is gone")

    with pytest.raises(work.TwoPartError, match="disk is gone"):
        list(parallel_for(work.plus, items()))
    with pytest.raises(work.TwoPartError, match="disk is gone"):
        parallel_map(work.plus, items())
    assert parallel_map(work.plus, range(3)) == [1, 2, 3]


def test_items_before_a_broken_iterator_are_not_lost():
    """What the items' iterator gave before it raised is computed and yielded, then its exception comes."""

    def items():
        yield from range(100)
        raise OSError("disk is gone")

    got = []
    with pytest.raises(OSError, match="disk is gone"):
        for result in parallel_for(work.plus, items(), ordered=True):
            got.append(result)  # noqa: PERF402  what is there when it raises is the point
    assert got == list(range(1, 101))


# --- exceptions -----------------------------------------------------------------------------------


def fail(x):
    """Raise at item 13."""
    if x == 13:
        raise work.TwoPartError(x, "bad sample")
    return x


def fail_plainly(x):
    """Raise a builtin exception at item 13."""
    if x == 13:
        raise LookupError("bad sample")
    return x


def notes(error):
    """Return an exception's notes as one text."""
    return "\n".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("call", [parallel_map, lambda f, x: list(parallel_for(f, x))], ids=["map", "for"])
def test_an_items_exception_is_itself_with_a_note(call):
    """A builtin exception of an item keeps its type and arguments, and a note names the item."""
    with pytest.raises(LookupError) as caught:
        call(fail_plainly, range(10, 20))
    assert type(caught.value) is LookupError
    assert caught.value.args == ("bad sample",)
    assert "item 3" in notes(caught.value) and "13" in notes(caught.value)


def test_an_exception_with_a_constructor_of_its_own_keeps_type_and_attributes():
    """An exception whose constructor takes other arguments than its `args` still keeps type and attributes."""
    with pytest.raises(work.TwoPartError) as caught:
        parallel_map(fail, range(20))
    assert caught.value.code == 13
    assert str(caught.value) == "13: bad sample"


def test_a_local_exception_class_is_the_same_class_here():
    """An exception whose class was made inside a function is an instance of that very class."""

    class LocalError(Exception):
        pass

    def bad(x):
        raise LocalError(x)

    with pytest.raises(LocalError):
        parallel_map(bad, [7])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_an_exception_group_arrives_whole():
    """An exception group keeps its exceptions with their types, those that cannot be pickled too."""

    def bad(x):
        raise ExceptionGroup("both", [work.TwoPartError(x, "why"), LookupError(threading.Lock())])  # noqa: F821

    with pytest.raises(ExceptionGroup) as caught:  # noqa: F821  new in 3.11
        parallel_map(bad, [7])
    assert [type(each) for each in caught.value.exceptions] == [work.TwoPartError, LookupError]
    assert caught.value.exceptions[0].code == 7


def test_the_place_of_an_exception_is_shown():
    """The traceback names the function that raised, also from another process."""
    with pytest.raises(LookupError) as caught:
        parallel_map(fail_plainly, range(20))
    assert "in fail_plainly" in "".join(traceback.format_exception(caught.value))


def test_results_before_a_failure_are_yielded_in_order():
    """With ordered=True everything before the failed item is yielded, then its exception comes."""
    got = []
    with pytest.raises(LookupError):
        for result in parallel_for(fail_plainly, range(40), ordered=True):
            got.append(result)  # noqa: PERF402  as above
    assert got == list(range(13))


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit()], ids=repr)
def test_an_item_that_leaves_is_an_item_that_failed(error):
    """SystemExit and GeneratorExit raised by an item arrive as themselves, and the next call works."""

    def leave(x):
        raise error

    with pytest.raises(type(error)):
        parallel_map(leave, [1, 2, 3])
    assert parallel_map(work.plus, range(3)) == [1, 2, 3]


# --- the env --------------------------------------------------------------------------------------


def test_setup_fn_gives_parameters_by_name():
    """Entries of the env are given to the parameters of their names, over their defaults."""
    env = {"y": 100, "unused": object()}
    assert parallel_map(work.plus, range(3), setup_fn=lambda: dict(env, unused=None)) == [100, 101, 102]
    assert list(parallel_for(work.plus, [1], setup_fn=lambda: {"y": 5})) == [6]
    assert parallel_submit(work.plus, 1, setup_fn=lambda: {"y": 5}).result() == 6


def test_keyword_only_and_open_parameters_are_given():
    """Keyword-only parameters are given by name, and **env gets every entry that is left."""

    def func(x, *, a, **env):
        return x, a, sorted(env.items())

    setup = lambda: {"a": 1, "b": 2, "c": 3}  # noqa: E731  travels by value
    assert parallel_map(func, [0], setup_fn=setup) == [(0, 1, [("b", 2), ("c", 3)])]


@pytest.mark.parametrize("call", ["map", "for", "submit"])
def test_a_keyword_that_the_env_also_holds_is_refused_before_any_item(call, tmp_path):
    """A keyword that the env also holds is a ValueError that names it, and no item has run."""
    keywords = {"setup_fn": lambda: {"y": 1}, "folder": str(tmp_path), "y": 2}
    with pytest.raises(ValueError, match="'y'"):
        if call == "map":
            parallel_map(work.noted, range(50), **keywords)
        elif call == "for":
            list(parallel_for(work.noted, range(50), **keywords))
        else:
            parallel_submit(work.noted, 1, **keywords).result()
    assert not (tmp_path / "log").exists()


def test_a_parameter_that_nobody_gives_is_refused_before_any_item(tmp_path):
    """A missing parameter is a TypeError that lists what the env holds, and no item has run."""

    def needs(x, folder, tokenizer):
        work.log(folder, x)

    with pytest.raises(TypeError, match="'tokenizer'.*'model', 'dataset'"):
        parallel_map(needs, range(9), folder=str(tmp_path), setup_fn=lambda: {"model": 1, "dataset": 2})
    assert not (tmp_path / "log").exists()


def test_a_keyword_that_fits_no_parameter_is_refused_before_any_item(tmp_path):
    """A keyword that the function does not take is a TypeError that names it, and no item has run."""
    with pytest.raises(TypeError, match="'yy'"):
        parallel_map(work.noted, range(9), folder=str(tmp_path), yy=3)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("setup", [lambda: None, lambda: [("y", 1)]], ids=["None", "pairs"])
def test_an_env_that_is_no_dict_is_refused(setup):
    """A setup_fn that does not return a dict is a ValueError that says so, and the next call works."""
    with pytest.raises(ValueError, match="must return a dict"):
        parallel_map(work.plus, range(3), setup_fn=setup)
    assert parallel_map(work.plus, range(3)) == [1, 2, 3]


def test_an_env_that_cannot_be_built_is_an_error_with_its_cause():
    """A setup_fn that raises is a WorkerSetupError, caused by its exception, with its traceback."""

    def setup():
        raise FileNotFoundError("no such model: exp/best.pth")

    with pytest.raises(WorkerSetupError, match="exp/best.pth") as caught:
        parallel_map(work.plus, range(3), setup_fn=setup)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert "in setup" in str(caught.value)
    assert parallel_map(work.plus, range(3)) == [1, 2, 3]


# --- data -----------------------------------------------------------------------------------------


def test_arrays_arrive_writable_and_leave_writable():
    """Arrays given as items can be written to by the function, and arrays returned by the caller."""

    def change(array):
        array += 1
        return array * 2

    for n in (4, 300_000):
        results = parallel_map(change, [np.zeros(n, np.float32) for _ in range(3)])
        for result in results:
            assert result.flags.writeable and result.dtype == np.float32
            result[0] = 5


def test_large_items_and_results_pass_each_other():
    """Items and results of five megabytes each arrive whole and in their places."""
    results = parallel_map(lambda item: item[::-1], [bytes([x]) * 5_000_000 for x in range(8)])
    assert results == [bytes([x]) * 5_000_000 for x in range(8)]


def test_a_result_that_cannot_travel_is_an_error_of_its_item():
    """In another process, a result that cannot be pickled is a TypeError that names type and item."""
    made = []
    try:
        made = parallel_map(lambda x: threading.Lock(), [5])
    except TypeError as error:
        assert "lock" in str(error) and "5" in notes(error)  # noqa: PT017  either outcome is right
    else:
        assert len(made) == 1
    assert parallel_map(work.plus, [1]) == [2]
