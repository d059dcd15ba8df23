"""The same crash and the same delay in every kind of run: one answer, in the same words."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ItemFailure, set_parallel
from espnet3.parallel.detached.code import refer
from espnet3.parallel.detached.job.blame import ShardBlame
from espnet3.parallel.detached.losses import LossFile
from espnet3.parallel.detached.marks import Marks, excuse_dead, job_name, note_end
from espnet3.parallel.detached.spec import JobSpec
from espnet3.parallel.detached.surroundings import record
from espnet3.parallel.engine.blame import Charges, Loss, failure_of_item
from espnet3.parallel.engine.settling import Block
from espnet3.parallel.engine.watch import Late
from espnet3.parallel.engine.work import Chunk, Work
from espnet3.parallel.ledger.results import Results
from espnet3.parallel.pilots.losses import Losses
from espnet3.parallel.pilots.mark import Mark, Window
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.pilots.slot import Slot
from espnet3.parallel.records import Policy, ProcessEnd, Tally
from espnet3.parallel.runner.shard_driver import run_shards
from espnet3.parallel.runner.shards import ShardResult, marker, shards_of
from espnet3.parallel.timing.recorder import TimesRecorder
from tests.parallel.detached.work import Files, Provider, Squares, calls, run_of
from tests.parallel.ledger.making import begin

N, BAD = 12, 5
CRASHED = ProcessEnd(signal=signal.SIGSEGV)
LEFT = ProcessEnd(exit_code=1)
SHOT = ProcessEnd(signal=signal.SIGKILL)


# --- the three stores, fed with the same deaths and delays ------------------------------------------------------


def on_pilots(folder: Path, policy: Policy, loss: Loss) -> ItemFailure:
    """Lose worker after worker of a run with pilots in one item; return its failure."""
    found: list[ItemFailure] = []
    work = Work(range(N))
    losses = Losses(1, work, policy, lambda pid: loss.end, lambda chunk, failure, loss: found.append(failure))
    chunk = Chunk(0, range(N))
    while not found:
        mark = Mark(str(folder))
        window = Window(str(folder), mark.name)
        channel: Any = None
        slot = Slot(channel, Hello("w", "tcp://w", 1, "here"), window)
        slot.flying.append(chunk)
        mark.begin(1, chunk.start)
        mark.step(BAD - chunk.start, 1)
        if loss.seconds is not None:
            slot.late = Late(BAD - chunk.start, 1, loss.seconds, loss.stack)
        losses.settle([slot], alone=True)
        if work.suspects:
            chunk = work.suspects.popleft()
    return found[0]


def in_shards(folder: Path, policy: Policy, loss: Loss) -> ItemFailure:
    """Lose worker after worker of a run with writers in one item of its shard; return its failure."""
    found: list[ItemFailure] = []

    @contextmanager
    def launch(work: Work) -> Iterator[tuple[Any, Tally]]:
        yield pairs(work), Tally()

    def pairs(work: Work) -> Iterator[tuple[Chunk, Block]]:
        chunk = work.take(1, 1)
        while chunk is not None:
            (shard,) = chunk.items
            if BAD in shard.skip:
                found.append(shard.skip[BAD])
                lines = [b"%d\n" % item for item in shard.items]
                values = [shard.skip.get(at, line) for at, line in enumerate(lines)]
                yield chunk, Block(values=[ShardResult(values, [BAD])])
            else:
                Path(shard.folder).mkdir(exist_ok=True)
                marker(shard)((BAD, BAD + 1))
                lost = failure_of_item(shard, loss, Charges(True, 1), Policy(), "w")
                yield chunk, Block(values=[lost], failed=[0], loss=loss)
            chunk = work.suspects.popleft() if work.suspects else None

    with begin(folder / "run", range(N), plan={"shards": [0]}) as run:
        shards = shards_of([0], range(N), None, run.path)
        run_shards(
            run,
            shards,
            launch,
            policy,
            lambda n, failed: None,
            False,
            TimesRecorder(run.append_times, range(100)),
        )
    return found[0]


def spec_of(policy: Policy) -> JobSpec:
    """Return the spec of a shard."""
    runner, provider = refer(Squares, "runner"), refer(Provider, "provider")
    return JobSpec("", 0, 0, range(N), "", "", runner, provider, {}, policy, record())


def in_jobs(folder: Path, policy: Policy, loss: Loss) -> ItemFailure:
    """Lose job after job of a detached shard in one item; return its failure."""
    while True:
        blame = ShardBlame(folder, spec_of(policy), "w")
        if blame.failures():
            return blame.failures()[BAD]
        blame.marks.set((BAD, BAD + 1))
        if loss.seconds is not None:
            LossFile(folder).add(replace(loss, begin=BAD))
            excuse_dead(folder)
        else:
            assert note_end(folder, job_name(os.getsid(0)), loss.end)


STORES = [on_pilots, in_shards, in_jobs]


@pytest.mark.parametrize("end", [CRASHED, LEFT, SHOT])
@pytest.mark.parametrize("poison_after", [1, 2, 3])
def test_poison_is_the_same_in_every_store(tmp_path: Path, poison_after: int, end: ProcessEnd) -> None:
    """After the same deaths, a run with pilots, one with writers and a detached job give one record of the item."""
    policy = Policy("record", poison_after=poison_after)
    failures = [store(tmp_path, policy, Loss(BAD, 1, end)) for store in STORES]
    assert failures[0] == failures[1] == failures[2]
    deaths = max(poison_after, 2) if end is SHOT else poison_after
    assert (failures[0].index, failures[0].cause, failures[0].attempts) == (BAD, "poison", deaths)
    assert failures[0].message.startswith(f"its worker process {end}, with no other item in progress")
    count = {
        1: "in progress",
        2: "the second worker lost to this item",
        3: "the third worker lost to this item",
    }
    assert failures[0].message.endswith(count[deaths])


@pytest.mark.parametrize("max_retries", [0, 1, 2])
def test_a_late_item_is_the_same_in_every_store(tmp_path: Path, max_retries: int) -> None:
    """After the same delays, all three give one record of the item, with the limit, the seconds and the stack."""
    policy = Policy("record", max_retries, item_timeout=1.0)
    loss = Loss(BAD, 1, SHOT, seconds=1.25, stack="File x")
    failures = [store(tmp_path, policy, loss) for store in STORES]
    words = [re.sub(r"\bon (worker )?w\b", "on w", failure.message) for failure in failures]
    assert words == ["it took longer than item_timeout = 1 s on w, whose process was killed after 1.2 s"] * 3
    same = [replace(failure, message="") for failure in failures]
    assert same[0] == same[1] == same[2]
    assert (same[0].index, same[0].cause, same[0].attempts) == (BAD, "timeout", max_retries + 1)


# --- the marks of detached jobs -----------------------------------------------------------------------------------


def test_an_unknown_end_names_nobody_at_once(tmp_path: Path) -> None:
    """Where nobody has noted how a job ended, it may have been killed: its item has failed after two."""
    for deaths in (0, 1, 2):
        blame = ShardBlame(tmp_path, spec_of(Policy(poison_after=1)), "w")
        assert len(blame.failures()) == (deaths == 2)
        blame.marks.set((BAD, BAD + 1))
    assert blame.failures()[BAD].message.startswith("its worker process ended, ")


def test_a_worker_that_was_told_to_stop_blames_nobody(tmp_path: Path) -> None:
    """What was in flight then is no loss, also if its end is noted."""
    marks = Marks(tmp_path, LossFile(tmp_path))
    marks.set((3, 9))
    marks.excuse()
    assert not note_end(tmp_path, job_name(os.getsid(0)), SHOT)
    losses = LossFile(tmp_path)
    Marks(tmp_path, losses)
    assert losses.losses == LossFile(tmp_path).losses == []


def test_the_end_of_one_job_is_not_noted_for_another(tmp_path: Path) -> None:
    """A job that ends without the shard leaves the mark of the one that is at work alone."""
    marks = Marks(tmp_path, LossFile(tmp_path))
    marks.set((3, 9))
    before = (tmp_path / "mark.json").read_bytes()
    assert not note_end(tmp_path, job_name(os.getsid(0) + 1), LEFT)
    assert (tmp_path / "mark.json").read_bytes() == before


def test_a_death_is_counted_once(tmp_path: Path) -> None:
    """Whoever takes up the mark of a dead worker notes its loss, and the next one does not again."""
    Marks(tmp_path, LossFile(tmp_path)).set((3, 9))
    note_end(tmp_path, job_name(os.getsid(0)), LEFT)
    for _ in range(3):
        Marks(tmp_path, LossFile(tmp_path)).close()
        assert LossFile(tmp_path).losses == [Loss(3, 6, LEFT)]


# --- the four ways to run a runner, with real processes -------------------------------------------------------------


def misbehave(idx: int, bad: Any) -> None:
    """Do at one item what `bad` says."""
    if bad is None or idx != BAD:
        return
    time.sleep(0.2)  # long enough to be in progress alone: where quick items are, it takes one more death
    if bad == "leave":
        os._exit(1)  # the exit status of a job that has failed in order
    elif bad == "shot":
        os.kill(os.getpid(), signal.SIGKILL)
    elif bad == "hang":
        time.sleep(60)


class BadSquares(Squares):
    """Ends its process at one item, or hangs there."""

    @staticmethod
    def forward(idx: int, folder: Path, bad: Any) -> dict[str, Any]:
        """Return the square, or misbehave."""
        result = Squares.forward(idx, folder, None)
        misbehave(idx, bad)
        return result


class BadFiles(Files):
    """The same, into files."""

    @staticmethod
    def forward(idx: int, folder: Path, bad: Any) -> int:
        """Return the square, or misbehave."""
        result = Files.forward(idx, folder, None)
        misbehave(idx, bad)
        return result


def detached(folder: Path, cls: type, bad: str, **options: Any) -> Path:
    """Run a runner as jobs to its end; return its folder."""
    run = run_of(folder, N, 1, 1, runner=cls, config={"bad": bad}, on_error="record", **options)
    status = run.wait(600)
    assert (status.done, status.ok, status.failed) == (True, N - 1, 1), (status, dict(run.logs()))
    run.merge()
    return Path(run.path)


def attended(folder: Path, cls: type, bad: str, **options: Any) -> Path:
    """Run a runner with two workers; return its folder."""
    folder.mkdir()
    set_parallel({"env": "local", "n_workers": 2})
    config = {"folder": str(folder), "bad": bad}
    cls(Provider(config), progress=False, on_error="record", output_dir=folder / "run", **options)(range(N))
    return folder / "run"


WAYS: list[tuple[Callable[..., Path], type]] = [
    (attended, BadSquares),
    (attended, BadFiles),
    (detached, BadSquares),
    (detached, BadFiles),
]


def only_failure(run: Path) -> ItemFailure:
    """Return the one failure that a run has left on disk."""
    (failure,) = Results(run).failures()
    return failure


@pytest.mark.parametrize(("bad", "deaths"), [("leave", 1), ("shot", 2)])
def test_a_crash_is_the_same_everywhere(tmp_path: Path, bad: str, deaths: int) -> None:
    """With and without writers, attended and detached: one item has failed, in one message, after as many attempts."""
    found = []
    for number, (way, cls) in enumerate(WAYS):
        failure = only_failure(way(tmp_path / str(number), cls, bad))
        found.append((failure.index, failure.cause, failure.error_type, failure.attempts, failure.message))
        assert calls(tmp_path / str(number))[BAD] >= deaths
    assert found == found[:1] * len(WAYS)
    assert found[0][:4] == (BAD, "poison", "WorkerDied", deaths)
    end = {"leave": LEFT, "shot": SHOT}[bad]
    assert found[0][4].startswith(f"its worker process {end}, ")


def test_a_hang_is_the_same_everywhere(tmp_path: Path) -> None:
    """With a retry, the item is given up after two attempts in every way to run it, in the same words."""
    found = []
    for number, (way, cls) in enumerate(WAYS):
        failure = only_failure(way(tmp_path / str(number), cls, "hang", item_timeout=0.5, max_retries=1))
        words = re.sub(r" on .*, whose|[\d.]+ s$", "", failure.message)
        found.append((failure.index, failure.cause, failure.error_type, failure.attempts, words))
        assert calls(tmp_path / str(number))[BAD] == 2
    assert found == found[:1] * len(WAYS)
    assert found[0][:4] == (BAD, "timeout", "TimeoutError", 2)
