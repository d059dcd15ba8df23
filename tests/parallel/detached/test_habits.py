"""Detached runs on schedulers with bad habits: lists that are late, cut short or empty, and jobs that are forgotten."""

import json
from pathlib import Path

import pytest

from espnet3.parallel import FolderInUseError
from espnet3.parallel.detached.launch import asking
from espnet3.parallel.detached.launch.asking import Said
from espnet3.parallel.detached.looking.detached_run import DetachedRun
from espnet3.parallel.detached.states import JobState
from tests.habits import pairs
from tests.parallel.detached.test_standins import submit
from tests.parallel.detached.work import calls, held, here, hold, let_go
from tests.standins import Habit, standin
from tests.standins.place import NAMES

FINE = (JobState.DONE, JobState.RUNNING, JobState.PENDING, JobState.UNKNOWN)


def looked_at(run: DetachedRun, times: int = 6) -> None:
    """Look at a run that is at work: no shard is lost, and `retry` submits nothing."""
    for _ in range(times):
        states = [shard.state for shard in run.status().shards]
        assert all(state in FINE for state in states), run.status()
    with pytest.raises(FolderInUseError):
        run.retry()


@pytest.mark.parametrize(("name", "habits"), pairs(list(NAMES), alone=()))
def test_every_item_once_under_every_habit(name: str, habits: tuple[Habit, ...], tmp_path: Path) -> None:
    """Four shards on two slots: what runs or waits is never lost, and every item is computed once, with all habits."""
    hold(tmp_path, 0)
    with standin(name, slots=2, habits=habits) as queue:
        run = submit(name, tmp_path, n=4, shards=4)
        looked_at(run, 2)  # at once: the jobs may not be listed yet
        held(tmp_path, 0)
        looked_at(run)
        let_go(tmp_path, 0)
        status = run.wait(600)
        assert status.done, (status, dict(run.logs()))
        assert len(run.merge()) == 4
        assert len({each.job for each in queue.jobs()}) == 1
    assert calls(tmp_path) == dict.fromkeys(range(4), 1)
    assert (tmp_path / "run/results.jsonl").read_bytes() == here(tmp_path / "b", n=4)


@pytest.mark.parametrize(("name", "habits"), pairs(list(NAMES), shift=2, alone=()))
def test_cancel_leaves_nothing_under_every_habit(
    name: str, habits: tuple[Habit, ...], tmp_path: Path
) -> None:
    """`cancel` returns when the scheduler says that every job has ended, and leaves none in the queue."""
    hold(tmp_path, 0)
    with standin(name, slots=1, habits=habits) as queue:
        run = submit(name, tmp_path)
        held(tmp_path, 0)
        assert run.cancel(grace=0.2).counts == {JobState.CANCELLED: 3}
        assert queue.unfinished() == []


def test_a_server_without_history_lists_what_waits_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PBS that keeps no history lists what is alive: no command asks about a live job by itself."""
    asked: list[list[str]] = []

    def noted(command: list[str], folder: Path) -> Said:
        asked.append(command)
        return ask(command, folder)

    ask = asking.ask
    hold(tmp_path, 0)
    with standin("pbs", slots=1, habits=[Habit.NO_HISTORY]):
        run = submit("pbs", tmp_path)
        held(tmp_path, 0)
        monkeypatch.setattr(asking, "ask", noted)
        states = [shard.state for shard in run.status().shards]
        monkeypatch.undo()
        let_go(tmp_path, 0)
        assert run.wait(600).done
    assert set(states) <= {JobState.RUNNING, JobState.PENDING}
    assert asked[0][1:3] == ["-t", "-u"]
    assert asked[1:] == [["qstat", "-f", "1[]"]]  # why the array waits


def test_a_shard_that_wrote_its_end_is_known_at_once_without_history(tmp_path: Path) -> None:
    """A job that has said `unfinished`, and that the scheduler has forgotten, is not unknown for a minute."""
    with standin("pbs", slots=0, habits=[Habit.NO_HISTORY]) as queue:
        run = submit("pbs", tmp_path, shards=2)
        queue.cancel_all()
        for shard, end in enumerate(({"requeue": False}, {"requeue": True})):
            folder = run.path / f"detached/shard.{shard}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "ended.json").write_text(
                json.dumps({"state": "unfinished", "why": "its time is up", **end})
            )
        states = [shard.state for shard in run.status().shards]
    assert states == [JobState.UNFINISHED, JobState.UNKNOWN]  # the other one has asked to be queued again
