"""Items that crash, hang or are shot, in runs that go to a folder."""

import os
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import BaseRunner, ItemError, ItemFailure, PoisonItemError, set_parallel
from tests.habits import rows
from tests.parallel.durable.work import BAD, Items, Provider, Shards, calls
from tests.parallel.ledger.making import receipt_of

N = 60
LIMIT = 2.0  # seconds: far more than any item needs that does not hang


@pytest.fixture
def two_workers() -> None:
    set_parallel({"env": "local", "n_workers": 2})


def make(folder: Path, cls: type[BaseRunner], kind: str, **options: Any) -> BaseRunner:
    config = {"log": str(folder / "log"), "stop": (kind, str(folder / "mark"))}
    return cls(Provider(config), output_dir=folder / "run", progress=False, **options)


@pytest.mark.usefixtures("two_workers")
@pytest.mark.parametrize(
    ("cls", "batch_size"),
    rows([(Items, None), (Items, 4), (Shards, None), (Shards, 4)], [(Items, None), (Shards, 4)]),
)
class TestOnTwoWorkers:
    """One bad item among sixty, alone and in batches, with and without files."""

    @pytest.mark.parametrize("kind", rows(["leave", "segfault"], ("segfault",)))
    def test_a_crash_is_named(
        self, kind: str, cls: type[BaseRunner], batch_size: int, tmp_path: Path
    ) -> None:
        """The item is poison, its neighbours have results, and a second call does not touch it again."""
        runner = make(tmp_path, cls, kind, on_error="record", batch_size=batch_size)
        results = runner(range(N))
        (failure,) = [r for r in results if isinstance(r, ItemFailure)]
        assert (failure.index, failure.cause) == (BAD, "poison")
        assert [r for r in results if r is not failure and not isinstance(r, ItemFailure)] == [
            i * i for i in range(N) if i != BAD
        ]
        assert receipt_of(tmp_path / "run").failed == {"poison": 1}
        before = calls(tmp_path / "log")[BAD]
        assert make(tmp_path, cls, kind, on_error="record", batch_size=batch_size)(range(N)) == results
        assert calls(tmp_path / "log")[BAD] == before

    def test_a_worker_that_was_shot_costs_nobody(
        self, cls: type[BaseRunner], batch_size: int, tmp_path: Path
    ) -> None:
        """A worker that somebody kills with an item in it does not make the item poison."""
        runner = make(tmp_path, cls, "shot once", on_error="record", batch_size=batch_size)
        assert runner(range(N)) == [i * i for i in range(N)]
        assert (runner.summary.deaths, runner.summary.retries) == (1, 0)


@pytest.mark.usefixtures("two_workers")
@pytest.mark.parametrize("cls", rows([Items, Shards], (Shards,)))
def test_by_default_they_stop_the_run(cls: type[BaseRunner], tmp_path: Path) -> None:
    """With `on_error="raise"` a crash and a hang are errors that name the item."""
    with pytest.raises(PoisonItemError, match=f"item {BAD} failed"):
        make(tmp_path / "a", cls, "segfault")(range(N))
    with pytest.raises(ItemError, match=f"item {BAD} failed") as caught:
        make(tmp_path / "b", cls, "hang", item_timeout=LIMIT)(range(N))
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert caught.value.failure.cause == "timeout"


def test_one_worker_with_a_time_limit_is_a_process_of_its_own(tmp_path: Path) -> None:
    """In the calling process nothing could be killed: the items run in one that can."""
    results = make(tmp_path, Items, "hang", on_error="record", item_timeout=LIMIT)(range(N))
    assert results[BAD].cause == "timeout"
    assert not (tmp_path / f"log.{os.getpid()}").exists()
