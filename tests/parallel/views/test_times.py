"""How long items took and what workers did: recorded in few lines, and read back by the report."""

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel
from espnet3.parallel.engine.loop import Block
from espnet3.parallel.ledger.split import TIMES
from espnet3.parallel.timing.reading import RunTimes, TimesReader
from espnet3.parallel.timing.recorder import ItemTimes, TimesRecorder, edge_of
from espnet3.parallel.views.charts import amount
from espnet3.parallel.views.facts import read_facts
from espnet3.parallel.views.page import page_of
from tests.parallel.detached.work import Files, Provider, Squares, run_of, shut
from tests.parallel.views.test_report import Checked
from tests.waiting import wait_until

SLOW, STEP = 7, 0.3  # the item that takes longest, and the seconds by which it does
# the one that takes long among quick ones, far longer than any other may be held up
QUICK_SLOW, QUICK_STEP = 300, 3.0
LARGE = 300 << 20  # bytes


class Naps(BaseRunner):
    @staticmethod
    def forward(idx: int, pause: Any) -> int:
        pause(STEP if idx == SLOW else 0.004)
        return idx

    @staticmethod
    def item_cost(idx: int) -> float:
        return 12.0 if idx == SLOW else 1.0


class Quick(Naps):
    @staticmethod
    def forward(idx: int, pause: Any) -> int:
        pause(QUICK_STEP if idx == QUICK_SLOW else 0.0001)
        return idx


class NapsAndDeath(Naps):
    """The same; at the first look at one item its process ends."""

    @staticmethod
    def forward(idx: int, pause: Any, folder: Path) -> int:
        if idx == 30 and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
            pause(60)  # another thread may be given the signal
        pause(0.004)
        return idx


class Large(Naps):
    """The slow item takes memory as well, and gives it back; every worker has an item."""

    @staticmethod
    def forward(idx: int, pause: Any, folder: Path) -> int:
        (folder / f"item.{os.getpid()}").touch()
        wait_until(lambda: len(list(folder.glob("item.*"))) == len(list(folder.glob("env.*"))))
        return idx + len(b"x" * LARGE) - LARGE if idx == SLOW else idx


class Patience(EnvironmentProvider):
    """The env has what waits; it is there once all workers are."""

    def build_env_local(self) -> dict[str, Any]:
        folder = Path(self.config["folder"])
        (folder / f"env.{os.getpid()}").touch()
        wait_until(lambda: len(list(folder.glob("env.*"))) >= self.config["workers"])
        return {"pause": time.sleep, "folder": folder}


def naps(folder: Path, workers: int, cls: Any = Naps, n: int = 120, **arguments: Any) -> Path:
    set_parallel({"env": "local", "n_workers": workers})
    cls(
        Patience({"folder": str(folder), "workers": workers}),
        output_dir=folder / "run",
        progress=False,
        **arguments,
    )(range(n))
    return folder / "run"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_report_has_the_time_of_items_and_what_each_worker_did(tmp_path: Path, workers: int) -> None:
    """Every item is counted once, the slow one is named with its time, and each worker has its row and its env."""
    facts = read_facts(naps(tmp_path, workers))
    times = facts.times
    assert times.items == 120 == sum(one.items for one in times.stints)
    ((seconds, name),) = [(seconds, name) for seconds, place, name in times.slow if place == SLOW]
    assert name == str(SLOW) and STEP <= seconds < STEP + 5 and (seconds, name) in facts.slowest
    (_, median), *_ = times.quantiles([0.5])
    assert 0.0036 < median < STEP + 5, "no item took less than its nap"
    names = {one.worker for one in times.arrivals}
    assert len(names) == workers and names >= {one.worker for one in times.stints}
    page = page_of(facts)
    labels = Checked(page).labels
    assert any("Histogram of 120 items" in label for label in labels)
    assert f"item {SLOW}" in page


@pytest.mark.parametrize("workers", [1, 2])
def test_a_slow_item_among_quick_ones_is_named_and_no_other(tmp_path: Path, workers: int) -> None:
    """Quick items are timed in steps of several, and the slow one by itself: its neighbours are not taken for it."""
    times = read_facts(naps(tmp_path, workers, cls=Quick, n=400)).times
    assert times.items == 400
    (seconds, _, name), *others = times.slow
    assert name == str(QUICK_SLOW) and seconds >= QUICK_STEP
    assert str(QUICK_SLOW) not in [name for _, _, name in others]


def test_quantiles_are_right_to_a_bin() -> None:
    """Of drawn times each quantile lies within a bin (9 %) of the true one."""
    draw = random.Random(5)
    values = [draw.lognormvariate(-3, 2) for _ in range(5000)]
    times = ItemTimes()
    for place, value in enumerate(values):
        times.add(place, 1, value)
    ordered = sorted(values)
    for share, found in RunTimes(counts=times.counts).quantiles([0.01, 0.5, 0.9, 0.99]):
        true = ordered[int(share * len(values)) - 1]
        assert edge_of(-1) <= found / true <= edge_of(1)


@pytest.mark.parametrize(("workers", "hours"), [(1, 0.05), (2, 12), (200, 12), (1000, 2)])
def test_the_records_of_a_long_run_stay_few(workers: int, hours: float) -> None:
    """However long and wide a run is, its records are some ten thousands of lines, and they count every item."""
    lines, items, now = [], 0, (begin := 1e9)
    recorder = TimesRecorder(lines.extend, range(10**9), clock=lambda: now)
    took, each = Block([0] * 3, seconds=0.9, times=ItemTimes({1: 3})), max(1.0, hours * 3600 / 400)
    while now < begin + hours * 3600:
        now += each
        for worker in range(workers):
            recorder.took(str(worker), took, range(items, items + 3))
            items += 3
    recorder.flush()
    assert len(lines) < 40_000
    assert sum(json.loads(line)["items"] for line in lines) == items


@pytest.mark.parametrize("workers", [1, 2])
def test_the_most_memory_of_each_worker_is_recorded(tmp_path: Path, workers: int) -> None:
    """The worker of an item that took 300 MB for a moment has recorded it, another one has not; the report says it."""
    run = naps(tmp_path, workers, Large)
    times = TimesReader(run).look()
    ran = {one.worker: max(s.memory for s in times.stints if s.worker == one.worker) for one in times.stints}
    assert times.memory == max(ran.values()) > LARGE
    if workers > 1:  # one process gives memory back, and its peak stays; the other one never had it
        assert len(ran) == 2 and 10**7 < min(ran.values()) < times.memory - LARGE / 2
    page = page_of(read_facts(run))
    assert "of memory, the largest worker" in page and f"up to {amount(times.memory)} of memory" in page


def test_a_worker_that_died_is_in_its_row(tmp_path: Path) -> None:
    """The report shows in its row where a worker ended with items in progress, and counts those once."""
    facts = read_facts(naps(tmp_path, 2, NapsAndDeath))
    ((lost, _),) = facts.times.losses
    assert lost in {one.worker for one in facts.times.arrivals} and facts.times.items == 120
    assert 'class="lost"' in page_of(facts)


@pytest.mark.parametrize("cls", [Squares, Files])
def test_detached_jobs_record_the_same(tmp_path: Path, cls: Any) -> None:
    """Jobs write down their items' times, with hooks of their own too, and the report counts each item once."""
    run = run_of(tmp_path, runner=cls)
    try:
        run.wait(timeout=600)
    finally:
        shut(run)
    times = TimesReader(Path(run.path)).look()
    assert (
        times.memory > 10**7
        and times.items == 12
        and {name for _, _, name in times.slow} <= set(map(str, range(12)))
    )
    facts = read_facts(Path(run.path))
    jobs = Counter(one.worker.partition(" on ")[0] for one in times.arrivals)
    assert set(jobs) == {span.name for span in facts.shards} and set(jobs.values()) == {1}
    Checked(page_of(facts))


def test_shards_of_a_driver_record_their_items(tmp_path: Path) -> None:
    """A runner with writers of its own, whose shards are the driver's items, has the times of its own items."""
    set_parallel({"env": "local", "n_workers": 2})
    Files(Provider({"folder": str(tmp_path)}), output_dir=tmp_path / "run", progress=False)(range(30))
    facts = read_facts(tmp_path / "run")
    assert facts.times.items == 30


def test_what_is_torn_or_missing_is_passed_over(tmp_path: Path) -> None:
    """Of a killed run the last line may be torn, and a run of before has none: the report says what is there."""
    run = naps(tmp_path, 1)
    (file,) = run.glob(f"*/{TIMES}")
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"worker": "0", "beg')
    assert TimesReader(run).look().items == 120
    Checked(page_of(read_facts(run)))
    file.unlink()
    facts = read_facts(run)
    assert facts.times == RunTimes() and facts.ok == 120
    Checked(page_of(facts))


def test_a_second_look_reads_only_what_is_new(tmp_path: Path) -> None:
    """Two looks give what one gives, and count nothing twice, also where the first one met half a line."""
    run = naps(tmp_path, 1)
    (file,) = run.glob(f"*/{TIMES}")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    reader = TimesReader(run)
    reader.look()
    file.write_bytes(whole)
    assert reader.look() == TimesReader(run).look() == reader.look()
