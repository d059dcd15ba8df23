"""What is left when something is killed, and what completes it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from espnet3.parallel import set_parallel
from espnet3.parallel.detached.launch import asking
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.detached.states import JobState, living_pid
from tests.habits import rows
from tests.parallel.detached.work import (
    DiesInAHook,
    Files,
    Provider,
    calls,
    espnet3,
    gone,
    held,
    here,
    hold,
    kill,
    let_go,
    program,
    run_of,
    status_json,
    supervised,
    supervisor,
)
from tests.standins import standin
from tests.waiting import wait_until


def test_the_submitter_is_killed_and_another_process_finishes(tmp_path: Path) -> None:
    """After SIGKILL of the submitting script, `status`, `wait` and `merge` elsewhere give the same bytes."""
    script = tmp_path / "submit it.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys
        from espnet3.parallel import set_parallel
        from tests.parallel.detached.work import Provider, Squares

        folder = sys.argv[1]

        class Mine(Squares):
            pass

        if __name__ == "__main__":
            set_parallel({"env": "local", "n_workers": 2, "detached": {"shards": 3}})
            Mine(Provider({"folder": folder}), output_dir=folder + "/run", async_mode=True)(range(12))
            print("submitted", flush=True)
            sys.stdin.readline()
        """)
    )
    folder = tmp_path / "a"
    hold(folder, 7)
    # the jobs load the script without its arguments: what it defines must not need them
    script.write_text(script.read_text().replace("folder = sys.argv[1]", f"folder = {str(folder)!r}"))
    with program(script.name, cwd=tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == "submitted\n"
        held(folder, 7)
        os.killpg(process.pid, signal.SIGKILL)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert espnet3("status", folder / "run", cwd=elsewhere, ok=False).returncode == 75
    let_go(folder, 7)
    assert "3 done" in " ".join(espnet3("wait", folder / "run", cwd=elsewhere).stdout.split())
    espnet3("merge", folder / "run", cwd=elsewhere)
    assert (folder / "run/results.jsonl").read_bytes() == here(tmp_path / "b")
    assert set(calls(folder).values()) == {1}


def test_a_killed_job_is_started_again(tmp_path: Path) -> None:
    """After `kill -9` of a job the supervisor continues its shard; only the item in flight runs again."""
    folder = tmp_path / "a"
    hold(folder, 4)
    run = run_of(folder)
    pid = held(folder, 4)
    let_go(folder, 4, dead=True)
    kill(pid)
    assert run.wait(600).done and len(run.merge()) == 12
    assert calls(folder) == {i: 2 if i == 4 else 1 for i in range(12)}


def test_the_supervisor_is_killed_and_its_jobs_go_on(tmp_path: Path) -> None:
    """After `kill -9` of the supervisor a job finishes its shard, and then those that wait, which are not lost."""
    folder = tmp_path / "a"
    hold(folder, 2)
    run = run_of(folder, workers=1)
    held(folder, 2)
    kill(supervisor(run))
    states = [shard.state for shard in run.status().shards]
    assert states == [JobState.RUNNING, JobState.PENDING, JobState.PENDING]
    let_go(folder, 2)
    assert run.wait(600).done and len(run.merge()) == 12
    assert set(calls(folder).values()) == {1}


def test_a_run_in_this_process_takes_over_what_dead_jobs_left(tmp_path: Path) -> None:
    """After `kill -9` of job and supervisor everything counts as lost; a call in this process computes it."""
    folder = tmp_path / "a"
    hold(folder, 8)
    run = run_of(folder, workers=1)
    job = held(folder, 8)
    kill(supervisor(run))
    kill(job)
    assert status_json(run.path, tmp_path)["states"] == {"done": 1, "lost": 2}
    let_go(folder, 8, dead=True)
    assert len(run_of(folder, async_mode=False)) == 12
    assert calls(folder) == {i: 2 if i == 8 else 1 for i in range(12)}
    run.retry()
    assert run.status().done
    assert (run.path / "results.jsonl").read_bytes() == here(tmp_path / "b")


@pytest.mark.parametrize("limit", [None, 1000.0])
def test_a_job_that_is_asked_to_end_finishes_its_item(limit: float | None, tmp_path: Path) -> None:
    """After a signal the item in flight is kept and none runs twice, also where a child of the job does the work."""
    folder = tmp_path / "a"
    hold(folder, 4)
    run = run_of(folder, config={"bad": [0.1, "slow"]}, item_timeout=limit)
    os.kill(os.getsid(held(folder, 4)), signal.SIGUSR1)
    wait_until(lambda: "stopping" in (Layout(run.path).shard(1) / "mark.json").read_text())
    let_go(folder, 4)
    assert run.wait(600).done and len(run.merge()) == 12
    assert set(calls(folder).values()) == {1}
    assert "unfinished: it was sent SIGUSR1" in dict(run.logs())[1]


@pytest.mark.parametrize(("how", "limit"), [("fork", None), ("fork", 1000.0), ("pool", 1000.0)])
def test_what_an_item_forks_is_no_job(how: str, limit: float | None, tmp_path: Path) -> None:
    """A signal ends a process that an item has forked, and not its job; one that the item leaves ends with the job."""
    run = run_of(tmp_path / "a", n=2, shards=1, config={"bad": [0, how]}, item_timeout=limit)
    assert run.wait(600).done, (run.status(), dict(run.logs()))
    wait_until(lambda: not supervised(run))


@pytest.mark.parametrize("on_error", ["raise", "record"])
def test_an_item_whose_tool_is_ended_with_the_job_goes_again(on_error: str, tmp_path: Path) -> None:
    """A scheduler signals all processes of a job: an item that fails of that has not failed, and stops no run."""
    folder = tmp_path / "a"
    run = run_of(folder, 2, shards=1, on_error=on_error, config={"bad": [0, "tool"]})
    wait_until((folder / "begun").exists)
    (folder / "repaired").touch()
    os.killpg(living_pid(Layout(run.path).shard(0)) or 0, signal.SIGTERM)
    assert run.wait(600).done and run.status().failed == 0 and calls(folder)[0] == 2, dict(run.logs())


def test_a_job_in_a_long_call_hears_a_signal(tmp_path: Path) -> None:
    """A call into C, which no handler interrupts, is not blamed for the death of a job that was told to end."""
    folder = tmp_path / "a"
    run = run_of(folder, 2, shards=1, config={"bad": [0, "long"]})
    wait_until((folder / "begun").exists)
    shard = Layout(run.path).shard(0)
    os.kill(job := living_pid(shard) or 0, signal.SIGTERM)
    wait_until(lambda: "stopping" in (shard / "mark.json").read_text())
    (folder / "repaired").touch()
    kill(job)
    assert run.wait(600).done and not (shard / "losses.json").exists()


def test_a_shard_of_writers_starts_over(tmp_path: Path) -> None:
    """A shard with writers that had failed begins again in an emptied folder; a finished one is left alone."""
    run = run_of(tmp_path / "a", n=6, runner=Files, workers=1, config={"bad": [2, "raise"]})
    assert not run.wait(600).done
    (run.path / "split.2/text").write_text("half a li")
    (tmp_path / "a/repaired").touch()
    run.retry()
    assert run.wait(600).done
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps({"first": 0, "run": str(run.path), "shards": [0, 1, 2]}))
    files = [run.path / f"split.{shard}/text" for shard in range(3)]
    before = [file.stat() for file in files]
    # as a scheduler's requeue does
    for words in ([run[1].spec], ["--tasks", tasks, "0"]):
        subprocess.run([sys.executable, "-m", "espnet3.parallel.worker", *words], check=True)
    assert [file.stat() for file in files] == before
    assert run.merge() == "0 0\n1 1\n2 4\n3 9\n4 16\n5 25\n"


@pytest.mark.parametrize(
    ("hook", "how", "end"),
    rows(
        [
            ("open_writers", "killed", "was killed by SIGKILL"),
            ("close_writers", "leaves", "exited with code 0"),
        ],
        [("close_writers", "leaves", "exited with code 0")],
    ),
)
def test_a_job_that_dies_in_a_hook_names_the_hook(hook: str, how: str, end: str, tmp_path: Path) -> None:
    """A shard whose jobs end in a writer hook has failed, and its note says in which hook; no item is blamed."""
    run = run_of(tmp_path / "a", n=1, shards=1, runner=DiesInAHook, config={"bad": [hook, how]})
    (shard,) = run.wait(600).shards
    assert shard.state is JobState.FAILED, shard
    assert f"its process {end} in {hook}" in shard.note
    assert shard.failed == 0


def test_a_schedulers_job_that_dies_in_a_hook_names_the_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody but the scheduler saw end is explained by the hook that its mark names."""
    # PBS says F of a job that is done and of one that was killed
    monkeypatch.setattr(asking, "LATE_FILES", 0.5)
    with standin("pbs"):
        set_parallel(
            {
                "env": "pbs",
                "options": {"cores": 1, "memory": "1GB"},
                "detached": {"shards": 1, "requeue": False},
            }
        )
        folder = tmp_path / "a"
        folder.mkdir()
        provider = Provider({"folder": str(folder), "bad": ["close_writers", "killed"]})
        folders = {"output_dir": folder / "run", "async_specs_dir": folder / "specs"}
        run = DiesInAHook(provider, **folders, async_mode=True, progress=False)(range(2))
        shard = run.wait(600).shards[0]
        assert not shard.state.alive and shard.state is not JobState.DONE
        assert shard.note.endswith("; it was in close_writers"), shard


@pytest.mark.parametrize("grace", [0, 0.2])
def test_cancel_ends_a_job_whose_supervisor_is_gone(grace: float, tmp_path: Path) -> None:
    """It reads the order itself, also in an item that takes longer than the grace, and the end blames no item."""
    folder = tmp_path / "a"
    hold(folder, 0)
    run = run_of(folder, n=2, shards=1)
    pid = held(folder, 0)
    kill(supervisor(run))
    (shard,) = run.cancel(grace=grace).shards
    let_go(folder, 0, dead=True)
    gone(pid)
    assert shard.state is JobState.CANCELLED and "cancelled by" in shard.note
    run.retry()
    assert run.wait(150).counts == {JobState.DONE: 1} and not run.merge().failures
