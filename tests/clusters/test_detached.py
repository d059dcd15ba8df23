"""Detached runs on real schedulers: nobody is there while the jobs run."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import set_parallel
from espnet3.parallel.detached.run import DetachedRun
from espnet3.parallel.detached.states import JobState
from tests.clusters.labs import Lab
from tests.parallel.detached.work import (
    ROOT,
    Provider,
    Squares,
    calls,
    espnet3,
    held,
    here,
    hold,
    let_go,
    status_json,
)

pytestmark = pytest.mark.clusters

SUBMIT = """
import json, sys
from espnet3.parallel import set_parallel
from tests.parallel.detached.work import Provider, Squares

class Mine(Squares):
    pass

if __name__ == "__main__":
    folder, block, n = json.loads(sys.argv[1])
    set_parallel(block)
    runner = Mine(Provider({"folder": folder}), output_dir=folder + "/run", async_mode=True)
    print(json.dumps([job.job_id for job in runner(range(n))]), flush=True)
    sys.stdin.readline()
"""


def block_of(lab: Lab, **detached: Any) -> dict[str, Any]:
    """Return a `parallel` block for detached jobs."""
    return {**lab.block(4), "detached": {"shards": 3, **detached}}


def submit(lab: Lab, folder: Path, n: int = 12, **detached: Any) -> DetachedRun:
    """Submit squares from this process."""
    set_parallel(block_of(lab, **detached))
    folders = {"output_dir": folder / "run", "async_specs_dir": folder / "specs"}
    runner = Squares(Provider({"folder": str(folder)}), **folders, async_mode=True)
    return runner(range(n))  # type: ignore[no-any-return]


def finished(run: DetachedRun, lab: Lab, seconds: float = 150) -> Any:
    """Wait for a run; on a failure show what its jobs and the queue said."""
    status = run.wait(seconds)
    outs = [file.read_text(errors="replace") for file in (run.path / "detached/scheduler").glob("*out*")]
    assert status.done, (status, dict(run.logs()), outs, lab.queue())
    return status


@pytest.fixture(scope="module")
def lab_of(started: Any) -> Callable[[str], Lab]:
    """Return a function that starts a scheduler once."""
    return functools.cache(started)


@pytest.fixture
def slurm(lab_of: Callable[[str], Lab]) -> Lab:
    """Return a running SLURM."""
    return lab_of("slurm")


@pytest.mark.parametrize("name", ["slurm", "sge", "oar", "htcondor"])
def test_the_submitter_is_killed_and_another_process_finishes(
    name: str, lab_of: Callable[[str], Lab], tmp_path: Path
) -> None:
    """After SIGKILL of the submitter, `status`, `wait` and `merge` elsewhere give the bytes of this process."""
    lab = lab_of(name)
    folder, elsewhere = tmp_path / "a «b» 'c' $(d)", tmp_path / "elsewhere"
    for new in (folder, elsewhere):
        new.mkdir()
    hold(folder, 5)
    (folder / "submit it.py").write_text(SUBMIT)
    with subprocess.Popen(
        [sys.executable, "submit it.py", json.dumps([str(folder), block_of(lab), 12])],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        ids = json.loads(process.stdout.readline())
        assert len(set(ids)) == 3
        held(folder, 5)
        os.kill(process.pid, signal.SIGKILL)
    assert status_json(folder / "run", elsewhere)["alive"]
    let_go(folder, 5)
    finished(DetachedRun.open(folder / "run"), lab)
    espnet3("wait", folder / "run", cwd=elsewhere)
    espnet3("merge", folder / "run", cwd=elsewhere)
    assert (folder / "run/results.jsonl").read_bytes() == here(tmp_path / "b")
    assert set(calls(folder).values()) == {1}
    lab.wait_for_empty_queue()


@pytest.mark.parametrize("name", ["slurm", "sge", "oar", "htcondor"])
def test_cancel_empties_the_queue_and_retry_goes_on(
    name: str, lab_of: Callable[[str], Lab], tmp_path: Path
) -> None:
    """One `cancel` ends what runs and what waits; `retry` completes with only the item in flight again."""
    lab = lab_of(name)
    hold(tmp_path, 4)
    run = submit(lab, tmp_path)
    held(tmp_path, 4)
    espnet3("cancel", run.path, "--grace", 1, cwd=tmp_path)
    status = status_json(run.path, tmp_path)
    assert not status["alive"], status
    lab.wait_for_empty_queue()
    let_go(tmp_path, 4, dead=True)
    run.retry()
    finished(run, lab)
    assert len(run.merge()) == 12
    counted = calls(tmp_path)
    assert counted.pop(4) == 2 and set(counted.values()) == {1}


def test_arrays_are_split_and_elements_retried(slurm: Lab, tmp_path: Path) -> None:
    """A limit on the index splits a run into arrays; elements that were cancelled are the ones retried."""
    hold(tmp_path, 0)
    run = submit(slurm, tmp_path, n=30, shards=10, array_limit=3)
    jobs = json.loads((run.path / "detached/jobs.json").read_text())
    assert len(jobs["arrays"]) == 3 and len(jobs["jobs"]) == 10
    subprocess.run(["scancel", *(run[k].job_id for k in range(6, 10))], check=True)
    held(tmp_path, 0)
    let_go(tmp_path, 0)
    status = run.wait(120)
    states = [shard.state for shard in status.shards]
    assert states[:6] == [JobState.DONE] * 6, status
    gone = {shard.shard for shard in status.shards if shard.state is not JobState.DONE}
    assert gone <= set(range(6, 10))  # those that had not finished before they were cancelled
    run.retry()
    retried = json.loads((run.path / "detached/jobs.json").read_text())["jobs"]
    assert set(map(int, retried)) == gone
    finished(run, slurm)
    assert len(run.merge()) == 30
    assert set(calls(tmp_path).values()) == {1}


def test_a_node_that_goes_down_costs_nothing(slurm: Lab, tmp_path: Path) -> None:
    """SLURM queues the elements of a lost node again, and the run completes without a retry."""
    hold(tmp_path, 4)
    run = submit(slurm, tmp_path)
    held(tmp_path, 4)
    job = run[1].job_id
    node = _squeue(job, "%N")
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=test"], check=True)
    try:
        let_go(tmp_path, 4, dead=True)
        _start_now(job, f"ExcNodeList={node}")
        finished(run, slurm)
    finally:
        # it may be back by itself: slurm.conf says ReturnToService=2
        subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=False)
    assert len(run.merge()) == 12
    counted = calls(tmp_path)
    assert counted.pop(4) == 2 and set(counted.values()) == {1}


def test_a_job_that_is_preempted_is_queued_again(slurm: Lab, tmp_path: Path) -> None:
    """`scontrol requeue`, which preemption does too, sends TERM: the item in flight is kept."""
    hold(tmp_path, 4)
    run = submit(slurm, tmp_path)
    held(tmp_path, 4)
    job = run[1].job_id
    subprocess.run(["scontrol", "requeue", job], check=True)
    let_go(tmp_path, 4)
    _start_now(job)
    finished(run, slurm)
    assert len(run.merge()) == 12
    assert set(calls(tmp_path).values()) == {1}


def test_a_walltime_that_is_too_short_costs_nothing(slurm: Lab, tmp_path: Path) -> None:
    """A job that runs out of time queues itself again, and goes on where it stopped: no item runs twice."""
    block = slurm.block(1, walltime="00:00:18")
    set_parallel({**block, "detached": {"shards": 1}})
    folders = {"output_dir": tmp_path / "run", "async_specs_dir": tmp_path / "specs"}
    provider = Provider({"folder": str(tmp_path), "bad": [1.0, "slow"]})
    run = Squares(provider, **folders, async_mode=True)(range(22))
    _wait_for_requeue(run[0].job_id)
    until = time.monotonic() + 150
    while not run.status().done:  # on a slow machine there are more than two parts
        assert time.monotonic() < until, (run.status(), dict(run.logs()), slurm.queue())
        processes = [Path("/proc", file.suffix[1:]) for file in tmp_path.glob("calls.*")]
        if _is_requeued(run[0].job_id) and not any(process.exists() for process in processes):
            _start_now(run[0].job_id)
        time.sleep(0.2)
    assert len(run.merge()) == 22
    assert set(calls(tmp_path).values()) == {1}
    assert len(list(tmp_path.glob("calls.*"))) > 1
    assert "unfinished: its walltime is nearly over" in dict(run.logs())[0]


def test_a_scheduler_that_is_away_is_said(
    slurm: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` works without the scheduler, and says so."""
    hold(tmp_path, 0)
    run = submit(slurm, tmp_path, shards=8)
    held(tmp_path, 0)
    with monkeypatch.context() as away:
        away.setenv("PATH", str(tmp_path))
        status = run.status()
        assert "the scheduler does not answer" in status.notes[0]
        assert status.shards[0].state is JobState.RUNNING
        assert JobState.UNKNOWN in status.counts
    let_go(tmp_path, 0)
    finished(run, slurm)


def _squeue(job: str, field: str) -> str:
    done = subprocess.run(
        ["squeue", "-h", "-j", job, "-o", field], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _start_now(job: str, *update: str) -> None:
    """Wait until a job is queued again, and let it run at once: SLURM would wait two minutes."""
    _wait_for_requeue(job)
    subprocess.run(["scontrol", "update", f"jobid={job}", "StartTime=now", *update], check=True)


def _is_requeued(job: str) -> bool:
    """Tell whether a job waits for the two minutes after which SLURM starts it again."""
    return "PENDING" in _squeue(job, "%T") and "BeginTime" in _squeue(job, "%r")


def _wait_for_requeue(job: str) -> None:
    until = time.monotonic() + 60
    while not _is_requeued(job):
        assert time.monotonic() < until, _squeue(job, "%T %r")
        time.sleep(0.1)
