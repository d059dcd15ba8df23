"""Detached runs on real SLURM: large arrays, cancelled elements, preemption, lost nodes, walltime, memory."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from espnet3.parallel import FolderInUseError, set_parallel
from espnet3.parallel.detached.launch import asking
from espnet3.parallel.detached.looking.detached_run import DetachedRun
from espnet3.parallel.detached.states import JobState
from tests.clusters.chaos_slurm.queue import SOON, waits_long
from tests.clusters.labs import Lab, never_to_run
from tests.clusters.test_detached import finished
from tests.parallel.detached.work import Provider, Squares, calls, held, hold, let_go
from tests.waiting import wait_until

pytestmark = pytest.mark.clusters


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the scheduler's commands, which grows as they are called."""
    names: list[str] = []
    ask = asking.ask

    def spy(command: list[str], *rest: Any, **more: Any) -> asking.Said:
        names.append(command[0])
        return ask(command, *rest, **more)

    monkeypatch.setattr(asking, "ask", spy)
    return names


def submit(
    slurm: Lab,
    folder: Path,
    n: int = 12,
    workers: int = 4,
    options: Any = None,
    bad: Any = None,
    **detached: Any,
) -> DetachedRun:
    set_parallel({**slurm.block(workers, **(options or {})), "detached": {"shards": 3, **detached}})
    folders = {"output_dir": folder / "run", "async_specs_dir": folder / "specs"}
    runner = Squares(Provider({"folder": str(folder), "bad": bad}), **folders, async_mode=True)
    return runner(range(n))  # type: ignore[no-any-return]


def submitted(run: DetachedRun) -> Any:
    """Return what was noted of the last submission."""
    return json.loads((run.path / "detached/jobs.json").read_text())


@pytest.mark.parametrize(("limit", "arrays"), [(None, 1), (99, 10)])
def test_a_thousand_shards(
    slurm: Lab, tmp_path: Path, called: list[str], limit: int | None, arrays: int
) -> None:
    """They are one array, or ten where the site takes indices below 100; status asks once, cancel calls once."""
    held_back = {"job_extra_directives": ["--hold"]}
    run = submit(slurm, tmp_path, n=1000, shards=1000, array_limit=limit, options=held_back)
    assert len(list(run.path.glob("detached/scheduler/array.*.json"))) == arrays
    assert len({job.job_id for job in run}) == 1000
    assert called == [*(["scontrol"] if limit is None else []), *["sbatch"] * arrays]
    del called[:]
    assert run.status().counts == {JobState.PENDING: 1000}
    assert called == ["squeue"]
    del called[:]
    assert run.cancel().counts == {JobState.CANCELLED: 1000}
    assert called.count("scancel") == 1
    slurm.wait_for_empty_queue()
    assert not calls(tmp_path)


def test_other_elements_take_the_shards_of_cancelled_ones(slurm: Lab, tmp_path: Path) -> None:
    """After `scancel` of ten waiting elements of two arrays the others do their shards, and none is lost meanwhile."""
    for first in (0, 20):
        hold(tmp_path, first)
    run = submit(slurm, tmp_path, n=40, workers=2, shards=20, array_limit=9)
    assert len(list(run.path.glob("detached/scheduler/array.*.json"))) == 2
    for first in (0, 20):
        held(tmp_path, first)  # each array runs one element at a time: the others wait
    cancelled = {*range(5, 10), *range(11, 16)}
    subprocess.run(["scancel", *(run[k].job_id for k in cancelled)], check=True)
    assert all(shard.state.alive for shard in run.status().shards)
    for first in (0, 20):
        let_go(tmp_path, first)
    finished(run, slurm)
    assert len(run.merge()) == 40
    assert set(calls(tmp_path).values()) == {1}


def test_memory_is_raised_only_after_a_kill_for_want_of_it(slurm: Lab, tmp_path: Path) -> None:
    """SLURM kills a job that takes more than it asked for: `retry` asks for more for that shard."""
    options = {"memory": "200MiB"}
    run = submit(slurm, tmp_path, n=3, options=options, bad=[1, "eat", 400], retry_memory_factor=4.0)
    states = [shard.state for shard in run.wait(120).shards]
    said = [file.read_text() for file in run.path.glob("detached/scheduler/out*")]
    assert states == [JobState.DONE, JobState.OUT_OF_MEMORY, JobState.DONE], (run.status(), said)
    assert "raised" not in submitted(run) or not submitted(run)["raised"]
    run.retry()
    assert submitted(run)["raised"] == {"1": 4.0} and submitted(run)["last"] == [1]
    assert _squeue(run[1].job_id, "%m") == "800M"  # the memory that it asks for
    finished(run, slurm)
    assert len(run.merge()) == 3


def test_a_job_that_is_queued_again_keeps_its_item(slurm: Lab, tmp_path: Path) -> None:
    """`scontrol requeue` sends TERM: the item in flight is kept."""
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
    options = {"walltime": "00:00:18"}
    run = submit(slurm, tmp_path, n=22, workers=1, options=options, bad=[1.0, "slow"], shards=1)
    _wait_for_requeue(run[0].job_id)

    def is_done() -> bool:  # on a slow machine there are more than two parts
        if _is_requeued(run[0].job_id):
            _start_now(run[0].job_id)
        return run.status().done

    wait_until(is_done, 600, every=0.2, said=lambda: (run.status(), dict(run.logs()), _known(run[0].job_id)))
    assert len(run.merge()) == 22
    assert set(calls(tmp_path).values()) == {1}
    assert len(list(tmp_path.glob("calls.*"))) > 1
    assert "unfinished: its walltime is nearly over" in dict(run.logs())[0]


def test_a_job_that_is_killed_at_its_walltime_says_so_for_good(slurm: Lab, tmp_path: Path) -> None:
    """An item that outlives the walltime leaves `timeout`, also when SLURM has forgotten the job."""
    hold(tmp_path, 0)
    run = submit(slurm, tmp_path, n=2, workers=1, options={"walltime": "00:01:00"}, shards=1, requeue=False)
    held(tmp_path, 0)
    wait_until(lambda: not run.status().alive, 200, every=0.5, said=run.status)
    assert run.status().counts == {JobState.TIMEOUT: 1}, run.status()
    ended = json.loads((run.path / "detached/shard.0/ended.json").read_text())
    assert (ended["state"], ended["early"]) == ("timeout", True)
    # as after MinJobAge: SLURM has no job of this number
    jobs = run.path / "detached/jobs.json"
    jobs.write_text(jobs.read_text().replace(f'"{run[0].job_id}"', '"4000000_0"'))
    assert run[0].job_id == "4000000_0"
    for file in (run.path / "detached").rglob("*"):
        os.utime(file, times=(0, 0))  # and nothing has given a sign of life for longer than a minute
    assert run.status().counts == {JobState.TIMEOUT: 1}, run.status()
    let_go(tmp_path, 0, dead=True)
    run.retry()
    finished(run, slurm)


def test_a_request_that_can_never_run_shows_the_reason(slurm: Lab, tmp_path: Path) -> None:
    """The status of a job has SLURM's reason: one waits for the end of a job that has failed, one is held."""
    run = submit(slurm, tmp_path, options={"job_extra_directives": [never_to_run(slurm)]})
    said = {"PENDING: DependencyNeverSatisfied"}  # SLURM finds it out a moment after the submission
    wait_until(lambda: {shard.note for shard in run.status().shards} == said, every=0.5, said=run.status)
    run.cancel()
    held = tmp_path / "held"
    held.mkdir()
    run = submit(slurm, held, options={"job_extra_directives": ["--hold"]})
    assert run.status().shards[0].note == "PENDING: JobHeldUser"
    run.cancel()
    slurm.wait_for_empty_queue()


def test_cancel_takes_a_held_element_of_an_earlier_array(slurm: Lab, tmp_path: Path) -> None:
    """What an earlier submission left in the queue goes with the run, though its shard has a newer job."""
    hold(tmp_path, 0)
    run = submit(slurm, tmp_path, n=2, shards=2)
    held(tmp_path, 0)
    first = run[0].job_id
    subprocess.run(["scontrol", "requeuehold", first], check=True)
    wait_until(lambda: "PENDING" in _squeue(first, "%T") or "REQUEUE" in _squeue(first, "%T"), every=0.2)
    let_go(tmp_path, 0, dead=True)
    with pytest.raises(FolderInUseError):
        run.retry()
    run.cancel()
    slurm.wait_for_empty_queue()


def _known(job: str) -> str:
    """Return all that SLURM knows of a job, ended or not."""
    return subprocess.run(
        ["scontrol", "show", "job", job], capture_output=True, text=True, check=False
    ).stdout


def _squeue(job: str, field: str) -> str:
    done = subprocess.run(
        ["squeue", "-h", "-j", job, "-o", field], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _start_now(job: str) -> None:
    """Wait until a job is queued again, and let it run at once: SLURM would wait two minutes.

    It does so for a reason: what its last run has still to report would be taken for the end of the next.
    """
    _wait_for_requeue(job)
    step = f"slurmstepd: [{_squeue(job, '%A')}."
    wait_until(
        lambda: not any(step in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])),
        every=0.1,
    )
    subprocess.run(["scontrol", "update", f"jobid={job}", SOON], check=True)


def _is_requeued(job: str) -> bool:
    """Say whether a job waits for the two minutes after which SLURM starts it again."""
    return "PENDING" in _squeue(job, "%T") and "BeginTime" in _squeue(job, "%r") and waits_long(job)


def _wait_for_requeue(job: str) -> None:
    wait_until(lambda: _is_requeued(job), every=0.1, said=lambda: _squeue(job, "%T %r"))
