"""What is known of an item in progress when its worker dies: who is suspected, who goes back, who is named."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import get_client, parallel_map, set_parallel
from espnet3.parallel.engine.watch import Late
from espnet3.parallel.engine.work import Chunk, Work
from espnet3.parallel.pilots.dask.pools import pool_of
from espnet3.parallel.pilots.losses import Losses
from espnet3.parallel.pilots.mark import Mark, Window
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.pilots.slot import Slot
from espnet3.parallel.records import ItemFailure, Policy, ProcessEnd
from tests.parallel.faults.running import failures, run
from tests.parallel.faults.watching import once
from tests.parallel.faults.workloads import CRASHES, Square, faulty

TWO = {"env": "local", "n_workers": 2}
JOB = 7


# --- the page itself --------------------------------------------------------------------------------------


def test_the_driver_reads_what_the_worker_wrote(folder: Path) -> None:
    """Each state of a slot is read as what it is, and the file's name is gone once it is open."""
    mark = Mark(str(folder))
    window = Window(str(folder), mark.name)
    assert list(folder.iterdir()) == []
    items = range(100, 200)
    assert window.within(JOB, 40, items) is None  # nothing yet
    mark.set_up(JOB)
    assert window.in_setup(JOB) and not window.in_setup(8) and window.within(JOB, 40, items) is None
    mark.begin(JOB, 40)
    assert window.within(JOB, 40, items) == (0, 100) and not window.in_setup(JOB)
    mark.step(8, 16)
    assert window.within(JOB, 40, items) == (8, 16)
    assert window.within(JOB, 41, items) is None and window.within(8, 40, items) is None
    mark.step(90, 64)  # a step's last items may be fewer
    assert window.within(JOB, 40, items) == (90, 10)
    mark.leave(100)
    assert window.within(JOB, 40, items) == (0, 100)
    mark.clear()
    assert window.within(JOB, 40, items) is None


def test_without_a_folder_there_is_no_mark() -> None:
    """On another host a mark has no name, and no file is made."""
    mark = Mark("")
    mark.begin(JOB, 0)
    mark.step(0, 1)
    assert mark.name == ""


def test_a_folder_that_cannot_be_written_costs_only_the_mark(folder: Path) -> None:
    """Where the file cannot be made, the slot works without a mark."""
    assert Mark(str(folder / "gone")).name == ""


# --- what follows from it -----------------------------------------------------------------------------------


class Case:
    """One job's work, and workers to lose."""

    def __init__(self, folder: Path, n: int = 10, **policy: Any) -> None:
        self.work = Work(range(n))
        self.failed: list[ItemFailure] = []
        self.losses = Losses(
            JOB,
            self.work,
            Policy("record", **policy),
            lambda pid: ProcessEnd(signal=signal.SIGSEGV),
            lambda chunk, failure, loss: self.failed.append(failure),
        )
        self.folder = folder

    def slot(self, run: Chunk, *ahead: Chunk, marked: bool = True) -> tuple[Slot, Mark]:
        """Return a slot that holds a chunk, and its worker's mark."""
        mark = Mark(str(self.folder))
        window = Window(str(self.folder), mark.name)
        channel: Any = None
        slot = Slot(channel, Hello("w", "tcp://w", 1, "here"), window if marked else None)
        slot.flying.extend([run, *ahead])
        mark.begin(JOB, run.start)
        return slot, mark

    def waiting(self) -> tuple[list[list[int]], list[list[int]]]:
        """Take all chunks that went back, and all suspects."""
        suspects = [list(run.items) for run in self.work.suspects]
        back = []
        while self.work.returned:
            taken = self.work.take(100, 100)
            assert taken is not None
            back.append(list(taken.items))
        return back, suspects


def test_only_the_step_is_suspected(folder: Path) -> None:
    """Of a chunk, the items before and after the step in progress go back, and so does the chunk sent ahead."""
    case = Case(folder, 20)
    slot, mark = case.slot(Chunk(0, range(10)), Chunk(10, range(10, 20)))
    mark.step(3, 4)
    case.losses.settle([slot], alone=True)
    assert case.waiting() == ([[0, 1, 2], [7, 8, 9], list(range(10, 20))], [[3, 4, 5, 6]])
    assert [run.deaths for run in case.work.suspects] == [0]


def test_a_chunk_that_had_not_begun_goes_back(folder: Path) -> None:
    """A worker that dies before it began a chunk is held against none of its items."""
    case = Case(folder)
    slot, mark = case.slot(Chunk(0, range(10)))
    mark.clear()
    case.losses.settle([slot], alone=True)
    assert case.waiting() == ([list(range(10))], [])


def test_a_suspect_that_had_not_begun_keeps_its_deaths(folder: Path) -> None:
    """What is held against an item stays when its next worker dies before it looked at it."""
    case = Case(folder)
    slot, mark = case.slot(Chunk(5, range(5, 6), suspect=True, deaths=1))
    mark.clear()
    case.losses.settle([slot], alone=True)
    (again,) = case.work.suspects
    assert (list(again.items), again.deaths) == ([5], 1)


def test_an_item_alone_is_named_at_its_second_death(folder: Path) -> None:
    """The first death of an item known to be alone counts; the second names it, with two attempts."""
    case = Case(folder)
    slot, mark = case.slot(Chunk(0, range(10)))
    mark.step(5, 1)
    case.losses.settle([slot], alone=True)
    (again,) = case.work.suspects
    assert (list(again.items), again.deaths, case.failed) == ([5], 1, [])
    slot, mark = case.slot(again)
    mark.step(0, 1)
    case.losses.settle([slot], alone=True)
    assert [(f.index, f.cause, f.attempts) for f in case.failed] == [(5, "poison", 2)]


def test_poison_after_one(folder: Path) -> None:
    """With `poison_after` 1 a death of an item alone names it; one of several items still names none."""
    case = Case(folder, poison_after=1)
    slot, mark = case.slot(Chunk(0, range(10)))
    mark.step(4, 2)
    case.losses.settle([slot], alone=True)
    assert case.failed == []
    (again,) = case.work.suspects
    slot, mark = case.slot(again)
    mark.step(1, 1)
    case.losses.settle([slot], alone=True)
    assert [(f.index, f.attempts) for f in case.failed] == [(5, 1)]


def test_two_slots_of_a_process_are_both_suspected(folder: Path) -> None:
    """Where two threads were in an item each, either may have killed the process: nothing is counted."""
    case = Case(folder, 20, poison_after=1)
    one, first = case.slot(Chunk(0, range(10)))
    other, second = case.slot(Chunk(10, range(10, 20)))
    first.step(2, 1)
    second.step(4, 1)
    case.losses.settle([one, other], alone=True)
    back, suspects = case.waiting()
    assert suspects == [[2], [14]] and case.failed == []
    assert [run.deaths for run in case.work.suspects] == [0, 0]
    assert sorted(i for part in back for i in part) == [i for i in range(20) if i not in (2, 14)]


def test_a_late_item_clears_its_neighbour(folder: Path) -> None:
    """Of a process killed because one item took too long, the other thread's items go back unsuspected."""
    case = Case(folder, 20, item_timeout=1.0)
    one, first = case.slot(Chunk(0, range(10)))
    other, second = case.slot(Chunk(10, range(10, 20)))
    first.step(0, 8)
    second.step(4, 1)
    one.late = Late(2, 1, 1.1)
    case.losses.settle([one, other], alone=True)
    assert [(f.index, f.cause) for f in case.failed] == [(2, "timeout")]
    assert case.waiting() == ([[0, 1], list(range(3, 10)), list(range(10, 20))], [])


def test_a_suspect_beside_another_job(folder: Path) -> None:
    """A suspect that dies where another job has an item too may be innocent: it is named at the third time."""
    case = Case(folder, poison_after=1)
    held = Chunk(5, range(5, 6), suspect=True)
    for deaths in (1, 2):
        slot, mark = case.slot(held)
        mark.step(0, 1)
        case.losses.settle([slot], alone=False)
        held = case.work.suspects.popleft()
        assert (held.deaths, case.failed) == (deaths, [])
    slot, mark = case.slot(held)
    mark.step(0, 1)
    case.losses.settle([slot], alone=False)
    assert [(f.index, f.cause, f.attempts) for f in case.failed] == [(5, "poison", 3)]


def test_a_suspected_chunk_that_dies_as_a_whole_is_taken_apart(folder: Path) -> None:
    """Items that kill their worker on the way in or out, where no mark can tell which it was, each go alone."""
    case = Case(folder)
    slot, _ = case.slot(Chunk(0, range(3), suspect=True))
    case.losses.settle([slot], alone=True)
    assert case.waiting() == ([], [[0], [1], [2]])


def test_without_a_mark_all_of_a_chunk_is_suspected(folder: Path) -> None:
    """On another host each item of a dead worker's chunk goes alone, and the next death names it."""
    case = Case(folder)
    slot, _ = case.slot(Chunk(0, range(3)), marked=False)
    case.losses.settle([slot], alone=True)
    assert case.waiting() == ([], [[0], [1], [2]])
    slot, _ = case.slot(case.work.suspects[1], marked=False)
    case.losses.settle([slot], alone=True)
    assert [(f.index, f.attempts) for f in case.failed] == [(1, 2)]


def test_workers_that_die_before_they_begin_do_not_go_on_for_ever(folder: Path) -> None:
    """A chunk at which worker after worker dies without beginning it is suspected after a few."""
    case = Case(folder)
    held = Chunk(0, range(3))
    for _ in range(10):
        slot, mark = case.slot(held)
        mark.clear()
        case.losses.settle([slot], alone=True)
        if case.work.suspects:
            break
        taken = case.work.take(100, 100)
        assert taken is not None
        held = taken
    assert len(case.work.suspects) == 3


# --- with real workers --------------------------------------------------------------------------------------


def crash_once(x: int, root: str, at: tuple[int, ...]) -> int:
    """Take the worker along at some items, the first time each."""
    if x in at and once(f"{root}/{x}"):
        CRASHES["leave"]()
    return x


def crash(x: int, at: tuple[int, ...], pause: float = 0.0) -> int:
    """Take the worker along at some items, each time."""
    if pause:
        time.sleep(pause)
    if x in at:
        CRASHES["leave"]()
    return x


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Open two workers for all tests of this module."""
    with get_client(TWO) as client:
        yield client


@pytest.mark.parametrize("at", [(3, 11), (500, 501), (0, 999), tuple(range(490, 496))])
def test_items_that_each_crash_once_are_no_poison(client: Any, folder: Path, at: tuple[int, ...]) -> None:
    """Items of one chunk that crash once each have their results in the end: none has killed twice."""
    results, _, retries = run(crash_once, range(1000), Policy("record"), client, root=str(folder), at=at)
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
    from tests.parallel.faults.watching import acting

    answers: list[tuple[list[Any], Any, int]] = []

    def beside() -> None:
        answers.append(run(crash, range(200), Policy("record", poison_after=1), client, at=(), pause=0.002))

    with acting(beside):
        results, _, _ = run(crash, range(200), Policy("record"), client, at=(60, 120), pause=0.002)
    assert [f.index for f in failures(results)] == [60, 120]
    assert answers[0][0] == list(range(200))


def test_on_a_cluster_of_the_users_own() -> None:
    """In a plain LocalCluster with nannies too, the item in progress is known, and is all that is lost."""
    from distributed import Client, LocalCluster

    set_parallel({"env": "local", "start_timeout": 600})  # both workers are restarted, which may take a while
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as own,
    ):
        parallel_map(abs, range(100), client=own)
        assert all(slot.mark is not None for slot in pool_of(own)._idle)
        policy = Policy("record", poison_after=1)
        results, tally, retries = run(crash, range(40), policy, own, at=(17,), pause=0.005)
        (failure,) = failures(results)
        # two: how a nanny's worker ended is not known here, and one death may be somebody else's doing
        assert (failure.index, failure.cause, failure.attempts) == (17, "poison", 2)
        assert (tally.deaths, retries) == (2, 0)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("fault", CRASHES)
def test_with_a_seed(fault: str) -> None:
    """With a seed: 999 results, one poison, no retry."""
    runner = Square(faulty(fault, 417), on_error="record", progress=False, seed=0)
    results = runner(range(1000))
    assert [r for r in results if not isinstance(r, ItemFailure)] == [i * i for i in range(1000) if i != 417]
    assert [(f.index, f.cause) for f in failures(results)] == [(417, "poison")]
    assert runner.summary is not None and runner.summary.retries == 0
