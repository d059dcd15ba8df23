"""Items that do to their process what no item should: each has its result, or a failure that names it.

The next items, and the next run on the same workers, never notice.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ItemFailure, parallel_map, set_parallel
from espnet3.parallel.records import Policy
from tests.parallel.faults.mischief import HARMFUL, HARMLESS, Mischief, breaks_the_pilot, fills_memory
from tests.parallel.faults.running import failures, run
from tests.parallel.faults.watching import TWO, nothing_left, workers_of
from tests.parallel.faults.workloads import Provider

N, AT = 60, 17


def mischief(act: str) -> list[object]:
    """Run items, one of which does more than its work."""
    runner = Mischief(Provider({"act": act, "at": AT}), on_error="record", progress=False)
    results: list[object] = runner(range(N))
    return results


def check(act: str, results: list[object]) -> None:
    """Assert that the item has its result or a failure of the right kind, and all others have theirs."""
    assert [r for i, r in enumerate(results) if i != AT] == [i * i for i in range(N) if i != AT]
    if act in HARMLESS:
        assert results[AT] == AT * AT
        return
    failure = results[AT]
    assert isinstance(failure, ItemFailure)
    assert (failure.index, failure.cause, failure.error_type) == (AT, *HARMFUL[act][1:])


@pytest.mark.usefixtures("two_workers")
class TestOnTwoWorkers:
    """One item among sixty, on two workers."""

    @pytest.fixture(autouse=True)
    def replaced(self, two_workers: Any) -> Iterator[None]:
        """Replace the workers after each test: what one has done to them is not the next one's business."""
        yield
        two_workers.wait_for_workers(2)
        for process in workers_of():
            process.kill()

    @pytest.mark.parametrize("act", [*HARMLESS, *HARMFUL])
    def test_in_a_run(self, act: str) -> None:
        """The run ends with every other result, and the next run on the same workers with all of them."""
        check(act, mischief(act))
        assert parallel_map(abs, range(1000)) == list(range(1000))

    def test_every_item_of_a_run_forks(self) -> None:
        """Children that come back from an item end there: no result twice, none missing."""
        assert parallel_map(HARMLESS["forks_and_returns"], range(50)) == list(range(50))


def test_without_a_client() -> None:
    """Processes that live for a run alone too are rid of what its items have done."""
    set_parallel({**TWO, "n_workers": 3})
    check("daemon_and_death", mischief("daemon_and_death"))


@pytest.mark.parametrize("n_workers", [1, 2])
def test_memory_beyond_the_limit(n_workers: int) -> None:
    """An item that exhausts `memory_limit` loses its worker, one alone too, is named, and the others have results."""
    set_parallel({"env": "local", "n_workers": n_workers, "options": {"memory_limit": "250MB"}})
    with nothing_left():
        results, tally, _ = run(fills_memory, range(20), Policy("record"), at=7)
    (failure,) = failures(results)
    assert (failure.index, failure.cause, tally.deaths) == (7, "poison", 2)
    assert "was killed by SIGKILL for using more than its memory_limit (" in failure.message
    assert "a higher memory_limit" in failure.message and "let an item need less" in failure.message


def test_a_process_that_an_item_has_damaged(folder: Path) -> None:
    """A process that can run no further item ends, and no result is lost."""
    set_parallel(TWO)
    results = parallel_map(breaks_the_pilot, range(2000), at=100, where=str(folder / "once"))
    assert results == list(range(2000))
