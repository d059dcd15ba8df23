"""Items that raise and are tried again, and runs that are given up."""

from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ItemError, ItemFailure, TooManyFailuresError
from tests.parallel.faults.workloads import FailsEvery, FailsTwice, FailsTwiceInBatches, Provider, SquareFiles

N = 200
SQUARES = [i * i for i in range(N)]
BAD = (0, 77, 78, 199)


def failing(cls: type[FailsTwice], folder: Path, **options: Any) -> Any:
    """Return a runner four of whose items raise twice."""
    return cls(Provider({"root": str(folder), "at": BAD}), progress=False, **options)


@pytest.fixture(params=[1, 2], ids=["inline", "workers"], scope="class")
def _workers(request: pytest.FixtureRequest) -> None:
    """Run the tests of a class in this process and on two workers."""
    if request.param == 2:
        request.getfixturevalue("two_workers")


@pytest.mark.usefixtures("_workers")
class TestRetries:
    """`max_retries` and `max_failures`, in this process and on workers."""

    @pytest.mark.parametrize(("cls", "size"), [(FailsTwice, None), (FailsTwiceInBatches, 16)])
    def test_enough(self, cls: type[FailsTwice], size: int | None, folder: Path) -> None:
        """Items that raise twice and then succeed give their results, within two retries each."""
        runner = failing(cls, folder, max_retries=2, batch_size=size)
        assert runner(range(N)) == SQUARES
        if cls is FailsTwice:  # without batches every failed try is an item's own
            assert runner.summary.retries == 2 * len(BAD)
        assert runner.summary.retries <= 2 * len(BAD)
        assert runner.summary.failed == 0

    def test_not_enough(self, folder: Path) -> None:
        """An item that raises more often than it may is recorded, with the number of times it was tried."""
        runner = failing(FailsTwice, folder, max_retries=1, on_error="record")
        results = runner(range(N))
        assert [i for i, r in enumerate(results) if isinstance(r, ItemFailure)] == list(BAD)
        assert [results[i].attempts for i in BAD] == [2] * len(BAD)
        assert "item 77 has no luck yet" in results[77].message
        assert (runner.summary.failed, runner.summary.retries) == (len(BAD), len(BAD))

    def test_raised_after_all_tries(self, folder: Path) -> None:
        """With "raise", the error says how often the item was tried."""
        with pytest.raises(ItemError, match="after 2 attempts") as caught:
            failing(FailsTwice, folder, max_retries=1)(range(N))
        assert caught.value.failure.attempts == 2
        assert type(caught.value.__cause__) is OSError

    def test_with_files(self, folder: Path) -> None:
        """Retries count in runs with writers too."""

        class Files(FailsTwice):
            open_writers = staticmethod(SquareFiles.open_writers)
            close_writers = staticmethod(SquareFiles.close_writers)

        runner = failing(Files, folder, max_retries=2, output_dir=folder / "out")
        assert runner(range(N)) == SQUARES
        assert runner.summary.retries == 2 * len(BAD)

    @pytest.mark.parametrize(
        ("budget", "stops"), [(10, False), (9, True), (0, True), (0.05, False), (0.04, True)]
    )
    def test_budget(self, budget: float, stops: bool) -> None:
        """Ten failures in two hundred: more than 9, or than 4 %, end the run; 10, or 5 %, do not."""
        runner = FailsEvery(Provider({"every": 20}), on_error="record", max_failures=budget, progress=False)
        if stops:
            with pytest.raises(TooManyFailuresError, match="max_failures"):
                runner(range(N))
        else:
            assert sum(isinstance(r, ItemFailure) for r in runner(range(N))) == 10

    def test_many_at_once(self) -> None:
        """A tenth of twenty thousand quick items fails: each is recorded, and no worker is lost."""
        runner = FailsEvery(Provider({"every": 10}), on_error="record", progress=False)
        results = runner(range(20_000))
        assert sum(isinstance(value, ItemFailure) for value in results) == 2000
        assert runner.summary.deaths == 0
