"""Detached runs on real schedulers: no driver is alive while the jobs run."""

import functools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import FolderInUseError, set_parallel
from espnet3.parallel.detached.launch import asking
from espnet3.parallel.detached.looking.detached_run import DetachedRun
from espnet3.parallel.detached.states import JobState
from tests.clusters.labs import LABS, Lab
from tests.parallel.detached.work import (
    Provider,
    Squares,
    calls,
    espnet3,
    held,
    here,
    hold,
    let_go,
    program,
    status_json,
)
from tests.waiting import wait_until

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


def submit(lab: Lab, folder: Path, n: int = 12, workers: int = 4, **detached: Any) -> DetachedRun:
    set_parallel({**block_of(lab, **detached), "n_workers": workers})
    folders = {"output_dir": folder / "run", "async_specs_dir": folder / "specs"}
    runner = Squares(Provider({"folder": str(folder)}), **folders, async_mode=True)
    return runner(range(n))  # type: ignore[no-any-return]


def finished(run: DetachedRun, lab: Lab, seconds: float = 600) -> Any:
    """Wait for a run; on a failure show what its jobs and the queue said."""
    status = run.wait(seconds)
    outs = [file.read_text(errors="replace") for file in (run.path / "detached/scheduler").glob("*out*")]
    assert status.done, (status, dict(run.logs()), outs, lab.queue())
    return status


@pytest.fixture(scope="module")
def lab_of(started: Any) -> Callable[[str], Lab]:
    """Return a function that starts a scheduler once."""
    return functools.cache(started)


@pytest.mark.parametrize("name", LABS)
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
    words = json.dumps([str(folder), block_of(lab), 12])
    with program("submit it.py", words, cwd=folder) as process:
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


ROUNDS = {"htcondor": 10}  # it lists only what it has made, which another round may find at another point


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name in LABS for number in range(ROUNDS.get(name, 1))]
)
def test_more_shards_than_workers_are_never_lost(
    name: str, number: int, lab_of: Callable[[str], Lab], tmp_path: Path
) -> None:
    """Eight shards on two workers: those to come are pending, `retry` refuses, and every item is computed once."""
    lab = lab_of(name)
    hold(tmp_path, 0)
    run = submit(lab, tmp_path, n=8, workers=2, shards=8)
    held(tmp_path, 0)
    fine = {JobState.DONE, JobState.RUNNING, JobState.PENDING}

    def others_are_done() -> bool:
        states = run.status().counts
        assert set(states) <= fine, run.status()
        return states.get(JobState.DONE, 0) > (0 if name == "oar" else 2)

    assert others_are_done() in (True, False)
    with pytest.raises(FolderInUseError):
        run.retry()
    wait_until(others_are_done, 600, every=0.2, said=run.status)
    let_go(tmp_path, 0)
    wait_until(lambda: others_are_done() and run.status().done, 600, every=0.2, said=run.status)
    assert len(run.merge()) == 8
    assert calls(tmp_path) == dict.fromkeys(range(8), 1)
    lab.wait_for_empty_queue()


@pytest.mark.parametrize("name", [name for name, lab in LABS.items() if lab.listing])
def test_a_job_that_fails_before_its_worker_says_why(
    name: str, lab_of: Callable[[str], Lab], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logs` prints the scheduler's output file, and `status` quotes its last line, where a job has no python."""
    lab = lab_of(name)
    if name != "htcondor":  # the whole minute is waited for once
        monkeypatch.setattr(asking, "LATE_FILES", 5.0)
    set_parallel(lab.block(2, job_script_prologue=["echo the module is gone >&2", "exit 4"]))
    folders = {"output_dir": tmp_path / "run", "async_specs_dir": tmp_path / "specs"}
    run = Squares(Provider({"folder": str(tmp_path)}), **folders, async_mode=True)(range(2))
    status = run.wait(600)
    assert not status.alive and not status.done, status
    assert "the module is gone" in run.status().shards[0].note
    assert "the module is gone" in dict(run.logs())[0]


@pytest.mark.parametrize("name", [name for name, lab in LABS.items() if lab.listing])
def test_cancel_empties_the_queue_and_retry_goes_on(
    name: str, lab_of: Callable[[str], Lab], tmp_path: Path
) -> None:
    """One `cancel` ends what runs, waits and is to come; `retry` completes with only the item in flight again."""
    lab = lab_of(name)
    hold(tmp_path, 4)
    run = submit(lab, tmp_path, workers=2, shards=6)
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
