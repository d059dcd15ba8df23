"""A run that stops at its first failure says which item it was, and leaves nothing running."""

from __future__ import annotations

import pytest

from espnet3.parallel import ItemError, PoisonItemError, get_client, parallel_map, set_parallel
from tests.parallel.faults.items import pilot_threads
from tests.parallel.faults.watching import nothing_left
from tests.parallel.faults.workloads import (
    Square,
    fail_at_7,
    faulty,
)

TWO = {"env": "local", "n_workers": 2}


def stop(fault: str) -> ItemError:
    """Run a thousand items, the 417th with a fault, and return the error that stops the run."""
    with nothing_left():
        with pytest.raises(ItemError) as caught:
            Square(faulty(fault, 417), progress=False)(range(1000))
        assert caught.value.index == 417
        assert "item 417" in str(caught.value)
    return caught.value


def test_a_crash() -> None:
    """A crashing item stops the run as a `PoisonItemError` with its index."""
    set_parallel(TWO)
    error = stop("segfault")
    assert type(error) is PoisonItemError
    assert error.failure.cause == "poison"


def test_an_exception() -> None:
    """A raising item stops the run with an `ItemError`, caused by its own exception as far as that can travel."""
    set_parallel(TWO)
    error = stop("unpicklable_error")
    assert not isinstance(error, PoisonItemError)
    cause = error.__cause__
    assert error.failure.error_type in f"{type(cause).__module__}.{type(cause).__qualname__} {cause}"
    assert "in unpicklable_error" in error.failure.traceback


def test_a_result_that_cannot_travel() -> None:
    """A result that cannot be loaded stops the run with its item's index."""
    set_parallel(TWO)
    error = stop("unloadable_result")
    assert error.failure.cause == "result" and type(error.__cause__) is LookupError


def test_a_failed_call_gives_its_slots_back() -> None:
    """In an open client, calls that failed hold no worker threads, also while their exceptions are kept."""
    kept = []
    with get_client(TWO) as client:
        parallel_map(abs, range(100))
        before = client.run(pilot_threads)
        for _ in range(4):
            with pytest.raises(ValueError, match="bad item") as caught:
                parallel_map(fail_at_7, range(20), fault="bad_value")
            kept.append(caught.value)
        assert parallel_map(abs, range(100)) == list(range(100))
        assert client.run(pilot_threads) == before
