"""A run that stops at its first failure says which item it was, and leaves nothing running."""

from __future__ import annotations

from typing import Any

import pytest

from espnet3.parallel import ItemError, PoisonItemError, get_client, parallel_map, set_parallel
from tests.habits import rows
from tests.parallel.faults.items import pilot_threads
from tests.parallel.faults.watching import nothing_left
from tests.parallel.faults.workloads import (
    ERRORS,
    RESULTS,
    HoldsLockError,
    Square,
    fail_at_7,
    faulty,
)

TWO = {"env": "local", "n_workers": 2}
THREADS = {**TWO, "options": {"threads_per_worker": 2}}


def stop(cls: type[Square], fault: str, **options: Any) -> ItemError:
    """Run a thousand items, the 417th with a fault, and return the error that stops the run."""
    with nothing_left():
        with pytest.raises(ItemError) as caught:
            cls(faulty(fault, 417), progress=False, **options)(range(1000))
        assert caught.value.index == 417
        assert "item 417" in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    "config", [TWO, pytest.param(THREADS, marks=pytest.mark.matrix)], ids=["processes", "threads"]
)
@pytest.mark.parametrize("fault", rows(["segfault", "leave"], ("segfault",)))
def test_a_crash(fault: str, config: dict[str, Any]) -> None:
    """A crashing item stops the run as a `PoisonItemError` with its index."""
    set_parallel(config)
    error = stop(Square, fault)
    assert type(error) is PoisonItemError
    assert error.failure.cause == "poison"


@pytest.mark.parametrize("fault", rows([*ERRORS], ("unpicklable_error",)))
def test_an_exception(fault: str) -> None:
    """A raising item stops the run with an `ItemError`, caused by its own exception where that can travel."""
    set_parallel(TWO)
    error = stop(Square, fault)
    assert isinstance(error, ItemError)
    assert not isinstance(error, PoisonItemError)
    cause = error.__cause__
    if fault in ("bad_value", "system_exit"):
        assert type(cause) is {"bad_value": ValueError, "system_exit": SystemExit}[fault]
    else:  # it cannot travel as it is: in words, or without what cannot
        assert error.failure.error_type in f"{type(cause).__module__}.{type(cause).__qualname__} {cause}"
    assert f"in {fault}" in error.failure.traceback


@pytest.mark.parametrize("fault", rows([*RESULTS], ("unloadable_result",)))
def test_a_result_that_cannot_travel(fault: str) -> None:
    """A result that cannot be pickled, or not be loaded, stops the run with its item's index."""
    set_parallel(TWO)
    error = stop(Square, fault)
    assert error.failure.cause == "result"
    assert type(error.__cause__) is {"unpicklable_result": TypeError, "unloadable_result": LookupError}[fault]


@pytest.mark.parametrize("fault", ERRORS)
def test_in_this_process(fault: str) -> None:
    """With one worker the exception itself is the cause, whatever it is."""
    error = stop(Square, fault)
    kinds = {"bad_value": ValueError, "system_exit": SystemExit, "unpicklable_error": HoldsLockError}
    if fault in kinds:
        assert type(error.__cause__) is kinds[fault]
    if fault == "bad_value":
        assert isinstance(error.__cause__, ValueError)
        assert type(error.__cause__.__cause__) is KeyError


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
