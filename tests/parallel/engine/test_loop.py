"""The loop that every item goes through."""

import pytest

from espnet3.parallel.engine.loop import Call, Loop, run_items
from espnet3.parallel.records import Policy

RECORD = Policy(on_error="record")


def fails_at(*bad):
    def one(i):
        if i in bad:
            raise KeyError(i)
        return i * 10

    return one


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("retries", [0, 2])
def test_an_item_that_was_a_batch_by_itself_is_not_tried_once_more(retries, seed):
    """The last batch of a chunk may hold one item, and seeded ones always do: that has been its first attempt."""
    calls = []

    def many(items):
        calls.append(list(items))
        return [fails_at(8)(i) for i in items]

    policy = Policy("record", max_retries=retries, batch_size=4, seed=seed)
    block = run_items(Loop(range(9), Call(fails_at(8), many), policy, "w"))
    assert block.failed == [8]
    assert block.values[8].attempts == calls.count([8]) == 1 + retries


def test_the_budget_ends_a_chunk_early_and_the_tail_is_left():
    """A chunk stops at the first look at the clock after its budget, with at least one value."""
    import time

    def slow(i):
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.01:
            pass
        return i

    block = run_items(Loop(range(1000), Call(slow), Policy(), "w", budget=0.03))
    assert 1 <= len(block.values) < 1000 and block.values == list(range(len(block.values)))


@pytest.mark.parametrize(("many", "fails"), [(False, True), (True, False)])
def test_an_item_that_took_long_is_the_chunks_last_and_timed_by_itself_where_outcomes_are_kept(many, fails):
    """Among quick ones in a step, in a batch, and whether it returns or raises: what is done goes to disk."""
    import time

    begun = {}

    def one(i):
        if i == 300:
            begun[i] = time.perf_counter()
            time.sleep(1.6)
            begun[i] = time.perf_counter() - begun[i]
            if fails:
                raise KeyError(i)
        return i

    call = Call(one, (lambda items: [one(i) for i in items]) if many else None)
    policy = Policy(on_error="record", batch_size=10 if many else None)
    block = run_items(Loop(range(1000), call, policy, "w", step=1 << 16, keep=1.5))
    *before, (n, seconds) = block.steps
    assert sum(n for n, _ in before) == 300 and n == len(block.values) - 300 == (10 if many else 1)
    assert 1.6 <= begun[300] <= seconds
    assert sum(seconds for _, seconds in block.steps) <= block.seconds
    if fails and not many:
        assert begun[300] <= block.values[300].seconds <= seconds


def test_each_step_is_announced_before_it_begins():
    """What is said before an item runs holds that item; every item is in some step, and steps grow."""
    said = []

    def one(i):
        at, n = said[-1]
        assert at <= i < at + n
        return i

    block = run_items(Loop(range(1000), Call(one), RECORD, "w", enter=lambda at, n: said.append((at, n))))
    assert block.values == list(range(1000))
    assert said[0] == (0, 1) and len(said) < 100


@pytest.mark.parametrize("batch_size", [None, 7])
def test_no_step_is_longer_than_its_chunk(batch_size):
    """However many quick items fail, a step announces no more items than the chunk holds: a mark can note it."""
    steps = []
    call = Call(
        fails_at(*range(0, 400, 2)), None if batch_size is None else lambda batch: [i // 0 for i in batch]
    )
    policy = Policy(on_error="record", batch_size=batch_size)
    block = run_items(Loop(range(400), call, policy, "w", enter=lambda at, n: steps.append(n)))
    assert len(block.values) == 400
    assert max(steps) <= 400 + (batch_size or 0)
