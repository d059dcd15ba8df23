"""Items of detached jobs that take longer than `item_timeout`."""

import os
import signal
from pathlib import Path

import pytest

from espnet3.parallel import ItemFailure
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.detached.states import JobState
from tests.habits import rows
from tests.parallel.detached.work import calls, gone, held, hold, kill, let_go, run_of, supervisor


@pytest.mark.parametrize("how", rows(["sleep", "lock"], ("lock",)))
def test_an_item_that_hangs_is_recorded_and_the_shard_goes_on(tmp_path: Path, how: str) -> None:
    """Its process is killed, it is a timeout in the second shard of a job, which goes on with all others."""
    bad = {"bad": [5, how]}
    run = run_of(tmp_path / "a", config=bad, on_error="record", item_timeout=2.0, workers=1)
    status = run.wait(600)
    assert (status.done, status.ok, status.failed) == (True, 11, 1), (status, dict(run.logs()))
    failure = run.merge()[5]
    assert isinstance(failure, ItemFailure)
    assert (failure.index, failure.cause, failure.error_type) == (5, "timeout", "TimeoutError")
    assert failure.attempts == 1 and failure.seconds is not None and failure.seconds > 2.0
    assert "item_timeout = 2 s" in failure.message
    assert ("in misbehave" in failure.traceback) is (how == "sleep")
    counted = calls(tmp_path / "a")
    # its neighbours may have been done in the same 50 ms, and be computed again
    assert set(counted) == set(range(12)) and max(counted.values()) <= 3
    # the job itself went on: the supervisor had none to start again
    assert "shard 1 ended with -" not in (Layout(run.path).supervisor / "log.txt").read_text()


def test_a_late_item_is_tried_again_as_the_policy_says(tmp_path: Path) -> None:
    """With max_retries=1 it has two attempts; with on_error="raise" the second stops the run with its name."""
    bad = {"bad": [5, "sleep"]}
    run = run_of(tmp_path / "a", config=bad, item_timeout=2.0, max_retries=1)
    status = run.wait(600)
    assert status.shards[1].state is JobState.FAILED, (status, dict(run.logs()))
    assert status.shards[1].note.startswith("item 5 failed: TimeoutError: it took longer than item_timeout")
    assert calls(tmp_path / "a")[5] == 2
    (tmp_path / "a/repaired").touch()
    run.retry()  # what it was given up for is forgotten
    assert run.wait(600).done
    assert [result["square"] for result in run.merge()] == [i * i for i in range(12)]


def test_what_a_late_item_has_started_ends_with_it(tmp_path: Path) -> None:
    """Also a process that it had put into a session of its own."""
    bad = {"bad": [1, "child"]}
    run = run_of(tmp_path / "a", n=2, shards=1, config=bad, on_error="record", item_timeout=2.0)
    assert run.wait(600).done
    gone(int((tmp_path / "a/child").read_text()))


def test_nothing_is_left_of_a_killed_job(tmp_path: Path) -> None:
    """With `kill -9` of the job the child that does its work goes too; with that of the child, the job."""
    folder = tmp_path / "a"
    hold(folder, 0)
    hold(folder, 1)
    run = run_of(folder, n=2, shards=2, item_timeout=1000.0)
    children = [held(folder, 0), held(folder, 1)]
    jobs = [os.getsid(pid) for pid in children]
    kill(supervisor(run))
    os.kill(jobs[0], signal.SIGKILL)
    os.kill(children[1], signal.SIGKILL)
    for pid in (*children, *jobs):
        gone(pid)
    for idx in (0, 1):
        let_go(folder, idx, dead=True)
    run.retry()
    assert run.wait(600).done
    assert calls(folder) == {0: 2, 1: 2}
