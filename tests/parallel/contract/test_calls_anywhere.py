"""`parallel_map`, `parallel_for` and `parallel_submit` give one answer in process and on two workers."""

import functools
import itertools
import traceback
from collections import deque

import numpy as np
import pytest
from omegaconf import OmegaConf

from espnet3.parallel import ItemError, parallel_for, parallel_map, parallel_submit
from tests.parallel.contract import work

pytestmark = pytest.mark.usefixtures("place")


# --- what may be mapped ---------------------------------------------------------------------------


class Backwards(list):
    """A list that is iterated over from its end."""

    def __iter__(self):
        return reversed(self)


@pytest.mark.parametrize(
    "data",
    [
        range(7),
        [3, 1, 2],
        {5: "a", 6: "b"},
        np.arange(5),
        deque([1, 2, 3]),
        work.Indexed(5),
        Backwards([1, 2, 3]),
        OmegaConf.create([1, 2, 3]),
    ],
    ids=lambda data: type(data).__name__,
)
def test_any_iterable_is_mapped_in_its_order(data):
    """The results are those of a loop over the data, whatever kind of iterable it is."""
    wanted = [x + 1 for x in data]
    assert parallel_map(work.plus, data) == wanted
    assert list(parallel_for(work.plus, (x for x in data), ordered=True)) == wanted


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


def test_ordered_stream_has_the_order_of_the_items():
    """ordered=True yields in the order of the items, unordered the same results in some order."""
    busy = functools.partial(lambda x: (sum(range(20_000 // (x + 1))), x)[1])
    assert list(parallel_for(busy, range(60), ordered=True)) == list(range(60))
    assert sorted(parallel_for(busy, range(60))) == list(range(60))


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


def test_the_items_iterator_may_raise():
    """What it gave before is computed and yielded, its exception arrives as itself, and the next call works."""

    def items():
        yield from range(100)
        raise work.TwoPartError(5, "disk is gone")

    got = []
    with pytest.raises(work.TwoPartError, match="disk is gone"):
        for result in parallel_for(work.plus, items(), ordered=True):
            got.append(result)  # noqa: PERF402  what is there when it raises is the point
    assert got == list(range(1, 101))
    with pytest.raises(work.TwoPartError, match="disk is gone"):
        parallel_map(work.plus, items())
    assert parallel_map(work.plus, range(3)) == [1, 2, 3]


# --- exceptions -----------------------------------------------------------------------------------


def fail(x):
    if x == 13:
        raise work.TwoPartError(x, "bad sample")
    return x


def fail_plainly(x):
    if x == 13:
        raise LookupError("bad sample")
    return x


@pytest.mark.parametrize("call", [parallel_map, lambda f, x: list(parallel_for(f, x))], ids=["map", "for"])
def test_an_items_exception_is_itself_with_a_note(call):
    """A builtin exception of an item keeps its type, arguments and traceback, and a note names the item."""
    with pytest.raises(LookupError) as caught:
        call(fail_plainly, range(10, 20))
    assert type(caught.value) is LookupError
    assert caught.value.args == ("bad sample",)
    notes = "\n".join(caught.value.__notes__)
    assert "item 3" in notes and "13" in notes
    assert "in fail_plainly" in "".join(traceback.format_exception(caught.value))


def test_an_exception_with_a_constructor_of_its_own_keeps_type_and_attributes():
    """An exception whose constructor takes other arguments than its `args` still keeps type and attributes."""
    with pytest.raises(work.TwoPartError) as caught:
        parallel_map(fail, range(20))
    assert caught.value.code == 13
    assert str(caught.value) == "13: bad sample"


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


def test_parameters_and_what_is_given_must_fit_before_any_item(tmp_path):
    """A parameter that nobody gives, and a keyword that fits none, are named in a TypeError; no item has run."""

    def needs(x, folder, tokenizer):
        work.log(folder, x)

    with pytest.raises(TypeError, match="'tokenizer'.*'model', 'dataset'"):
        parallel_map(needs, range(9), folder=str(tmp_path), setup_fn=lambda: {"model": 1, "dataset": 2})
    with pytest.raises(TypeError, match="'yy'"):
        parallel_map(work.noted, range(9), folder=str(tmp_path), yy=3)
    assert not (tmp_path / "log").exists()


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


# --- items that are odd, or that change -----------------------------------------------------------


def test_what_cannot_be_called_or_iterated_over_is_refused_at_the_call():
    """Either is a TypeError where it was given, not at the first item, and the argument is named."""
    with pytest.raises(TypeError, match="not callable"):
        parallel_map(5, range(3))
    with pytest.raises(TypeError, match="args must be an iterable of items, not 7"):
        parallel_for(str, 7)


@pytest.mark.parametrize("kind", [list, deque], ids=lambda kind: kind.__name__)
def test_a_stream_whose_consumer_shortens_the_list_ends_with_all_items(kind):
    """A consumer may take items out of the list that it gave: the stream neither hangs nor skips any."""
    items = kind(range(2000))
    seen = []
    for value in parallel_for(work.plus, items):
        seen.append(value)
        if items:
            items.pop()
    assert sorted(seen) == [i + 1 for i in range(2000)]


def test_an_item_that_lets_a_stop_iteration_out_is_called_once(tmp_path):
    """An item's StopIteration is its failure at the first call: what the item does is not done twice."""
    with pytest.raises(StopIteration) as caught:
        parallel_map(work.noted_and_stopped, range(5), folder=str(tmp_path))
    (failed,) = caught.value.args  # the first one that came in, of several workers
    assert (tmp_path / "log").read_text().splitlines().count(str(failed)) == 1
    with pytest.raises(ItemError, match="StopIteration"):  # no generator can raise the other
        list(parallel_for(work.noted_and_stopped, range(5), folder=str(tmp_path)))
