"""Which item of a shard is to blame for a lost worker, and which is not: the driver, with workers that are played."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel.engine.blame import Charges, Loss, failure_of_item
from espnet3.parallel.engine.settling import Block
from espnet3.parallel.engine.work import Chunk, Work
from espnet3.parallel.errors import PoisonItemError
from espnet3.parallel.ledger.lines import encode_line
from espnet3.parallel.ledger.results import Results
from espnet3.parallel.records import Policy, ProcessEnd, RunSummary, Tally
from espnet3.parallel.runner.shard_driver import run_shards
from espnet3.parallel.runner.shards import Shard, ShardResult, marker, shards_of
from espnet3.parallel.timing.recorder import TimesRecorder
from tests.parallel.ledger.making import begin, value_of

N = 20
CRASHED = ProcessEnd(signal=signal.SIGSEGV)
SHOT = ProcessEnd(signal=signal.SIGKILL)
Death = tuple[
    "tuple[int, int] | None", Loss
]  # what was in progress in the shard, and how its worker was lost


def death(at: int | None, end: ProcessEnd, n: int = 1, **facts: Any) -> Death:
    """Return a death over `n` items from position `at`, or in a hook."""
    return None if at is None else (at, at + n), Loss(0, 1, end, **facts)


class Played:
    """Workers that die one after another in the one shard of a run, and then finish it.

    Attributes:
        shards: The shard as it was sent each time.
    """

    def __init__(self, *deaths: Death) -> None:
        self.deaths = list(deaths)
        self.shards: list[Shard] = []

    @contextmanager
    def launch(self, work: Work) -> Iterator[tuple[Any, Tally]]:
        """Run the work, as the launchers do."""
        yield self._pairs(work), Tally()

    def _pairs(self, work: Work) -> Iterator[tuple[Chunk, Block]]:
        chunk = work.take(1, 1)
        while chunk is not None:
            (shard,) = chunk.items
            self.shards.append(shard)
            Path(shard.folder).mkdir(exist_ok=True)
            if self.deaths:
                in_progress, loss = self.deaths.pop(0)
                marker(shard)(in_progress)
                lost = failure_of_item(shard, loss, Charges(True, 1), Policy(), "w")
                yield chunk, Block(values=[lost], failed=[0], loss=loss)
            else:
                values = [shard.skip.get(at, b"") for at in range(len(shard.items))]
                lines = [value or _line(at) for at, value in enumerate(values)]
                yield chunk, Block(values=[ShardResult(lines, sorted(shard.skip))])
            chunk = work.suspects.popleft() if work.suspects else None

    def run(self, folder: Path, policy: Policy) -> RunSummary:
        """Run twenty items in one shard."""
        with begin(folder, range(N), plan={"shards": [0]}) as run:
            shards = shards_of([0], range(N), None, run.path)
            return run_shards(
                run,
                shards,
                self.launch,
                policy,
                lambda n, failed: None,
                False,
                TimesRecorder(run.append_times, range(N)),
            )


def _line(at: int) -> bytes:
    return encode_line(at, at, value_of(at))


def test_a_kill_from_outside_is_not_held_against_an_item_when_another_crashes(tmp_path: Path) -> None:
    """Of an item that was in progress at a kill, and one that crashes later, only the second has failed."""
    played = Played(death(3, SHOT), death(11, CRASHED))
    summary = played.run(tmp_path, Policy("record", poison_after=1))
    assert [dict(shard.skip).keys() for shard in played.shards] == [set(), set(), {11}]
    assert (summary.items, summary.failed) == (N, 1)


def test_a_worker_beside_another_run_makes_suspects_only(tmp_path: Path) -> None:
    """A death beside another run's item is charged to nobody at first, and three of them make an item poison."""
    policy = Policy("record", poison_after=1)
    played = Played(*[death(3, CRASHED, alone=False)] * 4)
    assert played.run(tmp_path, policy).failed == 1
    assert [len(shard.skip) for shard in played.shards] == [0, 0, 0, 0, 1]


def test_of_a_batch_the_items_go_one_by_one(tmp_path: Path) -> None:
    """A death in a batch names nobody; the shard goes again without batches, and then one death is enough."""
    played = Played(death(0, CRASHED, n=8), death(5, CRASHED))
    assert played.run(tmp_path, Policy("record", batch_size=8, poison_after=1)).failed == 1
    assert [(shard.one_by_one, list(shard.skip)) for shard in played.shards] == [
        (False, []),
        (True, []),
        (True, [5]),
    ]


@pytest.mark.parametrize(("end", "deaths"), [(CRASHED, 1), (SHOT, 2)])
def test_a_hook_that_ends_its_worker_stops_the_run(tmp_path: Path, end: ProcessEnd, deaths: int) -> None:
    """Outside of items the rules are the same, for the hook: the error names the shard, under any policy."""
    played = Played(*[death(None, end)] * deaths)
    with pytest.raises(PoisonItemError, match=r"in a writer hook, with no item in progress") as caught:
        played.run(tmp_path, Policy("record", poison_after=1))
    assert (caught.value.index, caught.value.failure.attempts) == ("shard 0", deaths)


def test_a_mark_of_an_earlier_driver_blames_nobody(tmp_path: Path) -> None:
    """What was in progress when a driver was killed is not taken for what a new driver's worker was in."""
    with begin(tmp_path, range(N), plan={"shards": [0]}) as run:
        (shard,) = shards_of([0], range(N), None, run.path)
        Path(shard.folder).mkdir()
        marker(shard)((3, 4))
    played = Played()
    with begin(tmp_path, range(N), plan={"shards": [0]}) as run:

        @contextmanager
        def launch(work: Work) -> Iterator[tuple[Any, Tally]]:
            assert not list(Path(shard.folder).glob("in_flight*"))
            with played.launch(work) as launched:
                yield launched

        run_shards(
            run,
            [shard],
            launch,
            Policy(),
            lambda n, failed: None,
            False,
            TimesRecorder(run.append_times, range(N)),
        )
    assert len(played.shards) == 1


def test_late_items_count_as_retries_and_are_on_disk(tmp_path: Path) -> None:
    """An item that takes too long is tried again, which the summary counts, and its failure is in the folder."""
    policy = Policy("record", max_retries=2, item_timeout=1.0)
    played = Played(*[death(7, SHOT, seconds=1.2)] * 3)
    with begin(tmp_path, range(N), plan={"shards": [0]}) as run:
        shards = shards_of([0], range(N), None, run.path)
        summary = run_shards(
            run,
            shards,
            played.launch,
            policy,
            lambda n, failed: None,
            False,
            TimesRecorder(run.append_times, range(N)),
        )
        run.merge()
    (failure,) = Results(tmp_path).failures()
    assert (failure.index, failure.cause, failure.attempts) == (7, "timeout", 3)
    assert summary.retries == 2
