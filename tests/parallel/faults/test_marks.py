"""What is known of an item in progress when its worker dies: who is suspected, who goes back, who is named."""

from pathlib import Path
from typing import Any

from espnet3.parallel.records import Policy
from tests.parallel.faults.items import crash, crash_once
from tests.parallel.faults.running import failures, run
from tests.parallel.faults.watching import acting


def test_items_that_each_crash_once_are_no_poison(client: Any, folder: Path) -> None:
    """Items of one chunk that crash once each have their results in the end: none has killed twice."""
    results, _, retries = run(crash_once, range(1000), Policy("record"), client, root=str(folder), at=(3, 11))
    assert results == list(range(1000))
    assert retries == 0


def test_poison_after_one_with_slow_items(client: Any) -> None:
    """With `poison_after` 1, an item that was alone in its step is named after the one worker it killed."""
    policy = Policy("record", poison_after=1)
    results, tally, _ = run(crash, range(40), policy, client, at=(17,), pause=0.005)
    (failure,) = failures(results)
    assert (failure.index, failure.cause, failure.attempts, tally.deaths) == (17, "poison", 1, 1)


def test_poison_after_one_with_quick_items(client: Any) -> None:
    """Among quick items a step holds several: it takes at most a second worker to name the item."""
    policy = Policy("record", poison_after=1)
    results, tally, _ = run(crash, range(1000), policy, client, at=(417,))
    (failure,) = failures(results)
    assert (failure.index, failure.cause, failure.attempts) == (417, "poison", 1)
    assert tally.deaths in (1, 2)  # one where the machine was slow, and the step one item


def test_a_crash_among_quick_items_is_soon_found(client: Any) -> None:
    """After a crash in a chunk of many thousands, its suspects go in one chunk, not in one message each."""
    results, tally, _ = run(crash, range(200_000), Policy("record"), client, at=(150_000,))
    assert [f.index for f in failures(results)] == [150_000]
    assert tally.deaths in (2, 3)


def test_a_crash_beside_another_run(client: Any) -> None:
    """A worker that serves two runs dies in an item of one: the other's items are not named for it."""
    answers: list[tuple[list[Any], Any, int]] = []

    def beside() -> None:
        answers.append(run(crash, range(200), Policy("record", poison_after=1), client, at=(), pause=0.002))

    with acting(beside):
        results, _, _ = run(crash, range(200), Policy("record"), client, at=(60, 120), pause=0.002)
    assert [f.index for f in failures(results)] == [60, 120]
    assert answers[0][0] == list(range(200))
