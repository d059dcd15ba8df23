"""A run that one item, or a signal, stops: what is said of the shards that it stops in their middle, or before."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from espnet3.parallel.detached.job import supervisor as supervising
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.detached.looking.run import DetachedRun
from espnet3.parallel.detached.states import JobState
from tests.parallel.detached.test_jobs import worker
from tests.parallel.detached.work import Files, gone, held, hold, let_go, run_of, supervisor

STOPPED = "shard 0 stopped the run: item 0 failed: ValueError: no square of 0"


class BadFiles(Files):
    """Files whose item 0 fails."""

    @staticmethod
    def forward(idx: int, folder: Path, bad: object) -> int:
        """Return the square, or fail."""
        if idx == 0:
            raise ValueError("no square of 0")
        return idx * idx


def test_writers_stop_the_run_too(tmp_path: Path) -> None:
    """An item that fails in a runner with writers stops the other shards, as it does in any other runner."""
    run = run_of(tmp_path / "a", n=6, workers=1, runner=BadFiles)
    first, *others = run.wait(60).shards
    assert (first.state, first.note) == (JobState.FAILED, STOPPED.partition(": ")[2])
    assert {(shard.state, shard.note) for shard in others} == {(JobState.NOT_STARTED, STOPPED)}


def test_a_job_that_starts_after_the_stop_has_not_begun(tmp_path: Path) -> None:
    """A scheduler starts queued jobs of a stopped run: each ends at once, as not started, with the reason."""
    run = run_of(tmp_path / "a", n=4, shards=2, workers=1, config={"bad": [0, "raise"]})
    assert not run.wait(60).alive
    ended = Layout(run.path).shard(1) / "ended.json"
    ended.unlink()
    worker(run[1].spec)
    assert json.loads(ended.read_text())["why"] == STOPPED
    assert run.status().shards[1].state is JobState.NOT_STARTED


def test_a_supervisor_that_is_told_to_end_says_so(tmp_path: Path) -> None:
    """SIGTERM, as at the shutdown of a host, leaves no shard `lost`: each has a state and a reason."""
    folder = tmp_path / "a"
    folder.mkdir()
    hold(folder, 0)
    run = run_of(folder, n=3, shards=3, workers=1)
    held(folder, 0)
    pid = supervisor(run)
    os.kill(pid, signal.SIGTERM)
    let_go(folder, 0)
    gone(pid)
    states = [(shard.state, shard.note) for shard in run.status().shards]
    assert states[1:] == [(JobState.NOT_STARTED, "its supervisor was told to end")] * 2
    assert states[0][0] in (JobState.DONE, JobState.UNFINISHED)


def test_an_item_that_does_not_end_is_excused(tmp_path: Path) -> None:
    """A job killed after the grace because the run was stopped says which shard stopped it, and blames no item."""
    folder = tmp_path / "a"
    folder.mkdir()
    hold(folder, 1)
    run = run_of(folder, n=2, shards=2, workers=2, config={"bad": [0, "raise"]})
    held(folder, 1)
    shard = run.wait(60).shards[1]
    let_go(folder, 1, dead=True)
    assert shard.state is JobState.UNFINISHED, shard
    assert shard.note == f"{STOPPED}; killed 10 s after it was asked to end, in the middle of an item"
    assert json.loads((Layout(run.path).shard(1) / "mark.json").read_text())["stopping"]
    assert DetachedRun.open(run.path).status().shards[1].note == shard.note
    assert supervising.GRACE == 10
