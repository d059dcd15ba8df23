"""Items that fail, or take their worker with them: recorded, or the first one stops the run."""

from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import (
    BaseRunner,
    ItemError,
    ItemFailure,
    PoisonItemError,
    get_client,
    parallel_for,
    parallel_map,
    set_parallel,
)
from tests.parallel.faults.items import pilot_threads
from tests.parallel.faults.watching import TWO, nothing_left
from tests.parallel.faults.workloads import (
    ERRORS,
    RESULTS,
    CrashOnceFiles,
    HoldsLockError,
    Provider,
    SlowSquare,
    Square,
    SquareBatches,
    SquareByCost,
    SquareFiles,
    TwoArgumentsError,
    fail_at_7,
    faulty,
)

N = 1000


def run(
    cls: type[BaseRunner], fault: str, *at: int, n: int = N, **options: Any
) -> tuple[list[Any], BaseRunner]:
    """Run `n` items, those in `at` with a fault, and record failures."""
    runner = cls(faulty(fault, *at), on_error="record", progress=False, **options)
    return runner(range(n)), runner


def check(results: list[Any], *bad: int, cause: str, n: int = N) -> list[ItemFailure]:
    """Assert that exactly the items in `bad` failed, each by its name, and the rest is right."""
    assert [r for i, r in enumerate(results) if i not in bad] == [i * i for i in range(n) if i not in bad]
    failures = [results[i] for i in bad]
    assert [type(f) for f in failures] == [ItemFailure] * len(bad)
    assert [(f.index, f.cause) for f in failures] == [(i, cause) for i in bad]
    return failures


@pytest.mark.usefixtures("two_workers")
class TestOnTwoWorkers:
    """One failing item (or a few) among a thousand good ones."""

    @pytest.mark.parametrize(("cls", "seed"), [(Square, None), (Square, 0), (SquareByCost, None)])
    def test_a_crashing_item_is_named_and_nobody_else_pays(self, cls: type[Square], seed: int | None) -> None:
        """999 results and one poison with its signal, and no item counts a retry, with a seed and with costs too."""
        results, runner = run(cls, "oom", 417, seed=seed)
        (failure,) = check(results, 417, cause="poison")
        assert runner.summary is not None
        assert (runner.summary.retries, runner.summary.failed) == (0, 1)
        assert runner.summary.deaths in (2, 3)
        assert failure.attempts == 2
        assert "SIGKILL" in failure.message

    @pytest.mark.parametrize(("fault", "words"), [("leave", "code 3"), ("segfault", "SIGSEGV")])
    def test_a_crashing_item_that_was_alone_costs_two_workers(self, fault: str, words: str) -> None:
        """An item that takes its time is known from its first crash on: two workers are lost, and it is named."""
        results, runner = run(SlowSquare, fault, 17, n=40)
        (failure,) = check(results, 17, cause="poison", n=40)
        assert runner.summary is not None
        assert (runner.summary.retries, runner.summary.deaths, runner.summary.failed) == (0, 2, 1)
        assert failure.attempts == 2
        assert words in failure.message

    @pytest.mark.parametrize("fault", ERRORS)
    def test_a_raising_item_is_recorded(self, fault: str) -> None:
        """An exception of any kind is one item's failure, and costs no worker."""
        results, runner = run(Square, fault, 417)
        (failure,) = check(results, 417, cause="error")
        words = {
            "bad_value": ("ValueError", "bad item"),
            "unpicklable_error": (f"{HoldsLockError.__module__}.HoldsLockError", "it holds a lock"),
            "unloadable_error": (f"{TwoArgumentsError.__module__}.TwoArgumentsError", "one and two"),
            "system_exit": ("SystemExit", "the item wants to leave"),
        }[fault]
        assert (failure.error_type, failure.message) == words
        assert f"in {fault}" in failure.traceback
        assert runner.summary is not None
        assert (runner.summary.retries, runner.summary.deaths, runner.summary.failed) == (0, 0, 1)

    @pytest.mark.parametrize("fault", RESULTS)
    def test_a_result_that_cannot_travel_is_recorded(self, fault: str) -> None:
        """A result that cannot be pickled, or not be loaded, is its item's failure and no other's."""
        results, runner = run(Square, fault, 417)
        check(results, 417, cause="result")
        assert runner.summary is not None
        assert (runner.summary.retries, runner.summary.deaths, runner.summary.failed) == (0, 0, 1)

    @pytest.mark.parametrize(("bad", "n"), [((0, 500, N - 1), N), ((0, 1), 2)], ids=["among others", "alone"])
    def test_several_poison_items_the_first_and_the_last_among_them(
        self, bad: tuple[int, ...], n: int
    ) -> None:
        """Each of several poison items is named, and each costs three workers at most, also where all are poison."""
        results, runner = run(Square, "leave", *bad, n=n)
        check(results, *bad, cause="poison", n=n)
        assert runner.summary is not None
        assert runner.summary.retries == 0
        assert runner.summary.deaths <= 3 * len(bad)

    @pytest.mark.parametrize(("fault", "cause"), [("segfault", "poison"), ("bad_value", "error")])
    def test_in_a_batch(self, fault: str, cause: str) -> None:
        """With batches of 16, the fifteen neighbours of a failing item keep their results."""
        results, runner = run(SquareBatches, fault, 417, batch_size=16)
        check(results, 417, cause=cause)
        assert runner.summary is not None
        assert runner.summary.retries == 0

    @pytest.mark.parametrize(("fault", "cause"), [("segfault", "poison"), ("unpicklable_result", "result")])
    def test_with_files_in_many_shards(self, fault: str, cause: str, folder: Path) -> None:
        """A failing item is missing in its shard's file, alone, and its failure is in the answer."""
        results, runner = run(SquareFiles, fault, 41, n=200, output_dir=folder)
        check(results, 41, cause=cause, n=200)
        assert runner.summary is not None
        assert (runner.summary.retries, runner.summary.failed) == (0, 1)
        lines = sorted(
            line for f in folder.glob("split.*/squares.txt") for line in f.read_text().splitlines()
        )
        if cause != "result":
            assert lines == sorted(f"{i * i}" for i in range(200) if i != 41)

    def test_with_files_in_one_shard(self, folder: Path) -> None:
        """In a single shard, poison at any place is left out and the rest is written once."""
        bad = (0, 3, 4, 19)
        results, _ = run(SquareFiles, "leave", *bad, n=20, output_dir=folder, batch_size=20)
        check(results, *bad, cause="poison", n=20)
        (file,) = folder.glob("split.*/squares.txt")
        assert file.read_text() == "".join(f"{i * i}\n" for i in range(20) if i not in bad)

    def test_two_items_of_a_shard_that_each_crash_once(self, folder: Path) -> None:
        """Each is named after its own crash, nobody else is, and `retry_failed` gives them their results."""
        options: dict[str, Any] = {"on_error": "record", "progress": False, "output_dir": folder / "out"}
        provider = Provider({"root": str(folder), "at": (3, 11)})
        results = CrashOnceFiles(provider, batch_size=20, **options)(range(20))
        assert [(r.index, r.cause, r.attempts) for r in results if isinstance(r, ItemFailure)] == [
            (3, "poison", 1),
            (11, "poison", 1),
        ]
        again = CrashOnceFiles(provider, retry_failed=True, **options)(range(20))
        assert again == [i * i for i in range(20)]

    def test_a_shard_that_an_earlier_session_left_in_the_middle(self, folder: Path) -> None:
        """What was in flight when a driver was killed is not held against any item, also where a mark is empty."""
        run(SquareFiles, "leave", 11, n=20, output_dir=folder, batch_size=20)
        shard = folder / "split.0"
        (shard / "done").unlink()
        (shard / "in_flight.json").write_text("")
        (shard / "deaths.json").write_text("[[3, 4]]")
        results, _ = run(SquareFiles, "leave", 11, n=20, output_dir=folder, batch_size=20)
        check(results, 11, cause="poison", n=20)

    def test_parallel_map_and_for_name_the_item(self) -> None:
        """From `parallel_map` and `parallel_for`, a crash is a `PoisonItemError` that names the item."""
        with pytest.raises(RuntimeError) as mapped:
            parallel_map(fail_at_7, range(20), fault="leave")
        with pytest.raises(RuntimeError) as iterated:
            list(parallel_for(fail_at_7, range(20), fault="leave"))
        for error in (mapped.value, iterated.value):
            assert isinstance(error, PoisonItemError)
            assert error.index == 7
            assert "item 7" in str(error)


def test_with_two_threads_per_worker() -> None:
    """With two threads in each process, what the other thread was running is not blamed."""
    with get_client({"env": "local", "n_workers": 2, "options": {"threads_per_worker": 2}}):
        results, runner = run(Square, "segfault", 3, 417)
        check(results, 3, 417, cause="poison")
        assert runner.summary is not None
        assert runner.summary.retries == 0


# --- where the first failure stops the run --------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "cause", "raised"),
    [
        ("segfault", "poison", type(None)),
        ("unpicklable_error", "error", Exception),
        ("unloadable_result", "result", LookupError),
    ],
)
def test_the_first_failure_stops_the_run(fault: str, cause: str, raised: type) -> None:
    """A crash, an exception and a result that cannot travel each end the run with the item, and leave nothing."""
    set_parallel(TWO)
    with nothing_left(), pytest.raises(ItemError, match="item 417") as caught:
        Square(faulty(fault, 417), progress=False)(range(1000))
    error = caught.value
    assert (error.index, error.failure.cause) == (417, cause)
    assert isinstance(error, PoisonItemError) is (cause == "poison")
    assert isinstance(error.__cause__, raised)
    if cause == "error":  # as far as it can travel
        cls = type(error.__cause__)
        assert error.failure.error_type in f"{cls.__module__}.{cls.__qualname__} {error.__cause__}"


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
