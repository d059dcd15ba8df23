"""A run folder that was copied or moved: jobs work in the folder that a verb was given, and in no other one."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from espnet3.parallel import DetachedRun, FolderInUseError, set_parallel
from espnet3.parallel.detached.states import JobState
from tests.habits import rows
from tests.parallel.detached.test_standins import submit
from tests.parallel.detached.work import (
    Files,
    Provider,
    Squares,
    calls,
    held,
    here,
    hold,
    kill,
    let_go,
    program,
    run_of,
    supervised,
    supervisor,
)
from tests.standins import standin
from tests.standins.place import NAMES
from tests.waiting import wait_until


def files_of(run: Path) -> dict[str, bytes]:
    """Return what the files of a folder hold, but for those that tell of a process at work."""
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in sorted(run.rglob("*"))
        if file.is_file() and not file.name.startswith("lease.") and file.suffix != ".tmp"
    }


@pytest.mark.parametrize("original", rows(["runs", "is gone"], ("runs",)))
def test_a_copy_of_a_running_run_is_completed_where_it_is(original: str, tmp_path: Path) -> None:
    """Its own jobs compute in the copy what is missing there; the original, and its jobs, do not notice."""
    first, copy = tmp_path / "a", tmp_path / "elsewhere/copy"
    first.mkdir()
    for item in (1, 5):
        hold(first, item)
    run = run_of(first)
    pids = [held(first, item) for item in (1, 5)]
    shutil.copytree(run.path, copy, ignore=shutil.ignore_patterns("*.tmp"))
    if original == "is gone":
        for pid in [supervisor(run), *pids]:
            kill(pid)
        shutil.rmtree(run.path)
        shutil.rmtree(first / "specs")
    found = DetachedRun.open(copy)
    assert set(found.status().counts) == {JobState.LOST}
    assert all(str(run.path) in shard.note for shard in found.status().shards)
    before = files_of(run.path)
    assert not found.cancel(grace=0.2).alive
    for item in (1, 5):
        (first / f"hold.{item}").unlink()
    found.retry()
    status = found.wait(150)
    assert status.done, (status, dict(found.logs()))
    assert all(copy in job.spec.parents for job in found)
    found.merge()
    expected = here(tmp_path / "b")
    assert (copy / "results.jsonl").read_bytes() == expected
    if original == "is gone":
        assert not run.path.exists()
        return
    assert files_of(run.path) == before
    for item in (1, 5):
        (first / f"go.{item}").write_text("go")
    assert run.wait(150).done
    run.merge()
    assert (run.path / "results.jsonl").read_bytes() == expected
    assert max(calls(first).values()) == 2


@pytest.mark.parametrize("name", rows([*NAMES], ("pbs",)))
def test_a_copys_jobs_in_a_queue_are_its_own(name: str, tmp_path: Path) -> None:
    """On a scheduler a copy cancels no job of its original, and queues jobs that write in the copy."""
    hold(tmp_path, 0)
    with standin(name, slots=1):
        run = submit(name, tmp_path)
        held(tmp_path, 0)
        shutil.copytree(run.path, tmp_path / "copy", ignore=shutil.ignore_patterns("*.tmp"))
        copy = DetachedRun.open(tmp_path / "copy")
        assert copy.status().counts == {JobState.LOST: 3}
        copy.cancel(grace=0.2)
        assert run.status().counts == {JobState.RUNNING: 1, JobState.PENDING: 2}
        (tmp_path / "hold.0").unlink()
        copy.retry()
        (tmp_path / "go.0").write_text("go")
        for one in (run, copy):
            status = one.wait(150)
            assert status.done, (status, dict(one.logs()))
            one.merge()
    assert (tmp_path / "copy/results.jsonl").read_bytes() == here(tmp_path / "b", n=6)
    assert calls(tmp_path) == Counter(dict.fromkeys(range(6), 2))


@pytest.mark.parametrize("name", rows(["local", "pbs"], ("local",)))
def test_a_moved_run_says_so_and_goes_on_where_it_is(name: str, tmp_path: Path) -> None:
    """Its jobs count as its own until they have ended; then `retry` computes in the new place, and none in the old."""
    hold(tmp_path, 0)
    with standin("pbs", slots=1):
        run = run_of(tmp_path, n=6) if name == "local" else submit(name, tmp_path)
        held(tmp_path, 0)
        if name == "local":  # also where no shard is silent
            wait_until(lambda: run.status().counts == {JobState.RUNNING: 1, JobState.DONE: 2})
        moved = run.path.rename(tmp_path / "moved")
        found = DetachedRun.open(moved)
        status = found.status()
        assert status.alive and any(str(run.path) in note for note in status.notes)
        with pytest.raises(FolderInUseError):
            found.retry()
        assert not found.cancel(grace=0.2).alive
        assert not run.path.exists()
        let_go(tmp_path, 0, dead=True)
        found.retry()
        status = found.wait(150)
        assert status.done, (status, dict(found.logs()))
        found.merge()
    assert not run.path.exists()
    assert (moved / "results.jsonl").read_bytes() == here(tmp_path / "b", n=6)


def test_jobs_end_when_their_folder_is_moved_away(tmp_path: Path) -> None:
    """They are not started again and again, nothing comes up in the old place, and the lost shards say why."""
    hold(tmp_path, 0)
    run = run_of(tmp_path)
    held(tmp_path, 0)
    moved = DetachedRun.open(run.path.rename(tmp_path / "moved"))
    let_go(tmp_path, 0)
    status = moved.wait(150)
    assert not status.alive and not status.done and not run.path.exists()
    assert all(str(run.path) in shard.note for shard in status.shards if shard.state is JobState.LOST)
    moved.retry()
    assert moved.wait(150).done and len(moved.merge()) == 12


@pytest.mark.parametrize("how", rows(["copied", "moved"], ("moved",)))
def test_every_verb_takes_a_finished_run_that_is_elsewhere(how: str, tmp_path: Path) -> None:
    """On the command line, with the hooks of the run, and without its specs and the folder it was submitted for."""
    set_parallel({"env": "local", "n_workers": 2, "detached": {"shards": 2}})
    folders = {"output_dir": tmp_path / "run", "async_specs_dir": tmp_path / "specs", "shard_subdir": "dev"}
    provider = Provider({"folder": str(tmp_path)})
    run = Files(provider, **folders, async_mode=True, progress=False)(range(6))
    assert run.wait(150).done
    text = run.merge()
    place = tmp_path / "there/dev"
    shutil.copytree(run.path, place, ignore=shutil.ignore_patterns("*.tmp"))
    shutil.rmtree(tmp_path / "specs")
    if how == "moved":
        wait_until(lambda: not supervised(run))  # it writes until its end
        shutil.rmtree(tmp_path / "run")
    code = "import sys; from espnet3_parallel.main import main\n"
    code += "for verb in sys.argv[2:]: main([verb, sys.argv[1]], standalone_mode=False)"
    verbs = ("status", "wait", "logs", "cancel", "retry", "merge", "report", "watch")
    with program("-c", code, str(place), *verbs, cwd=tmp_path) as process:
        process.communicate()
    assert process.returncode == 0
    (place / "split.1/text").unlink()
    (place / "detached/shard.1/done").unlink()
    for name in ("results.jsonl", "errors.jsonl", "done"):
        (place / run[1].result.parent.name / name).unlink(missing_ok=True)
    found = DetachedRun.open(place)
    found.retry()
    assert found.wait(150).done and found.merge() == text
    assert (tmp_path / "run").exists() == (how == "copied")


def test_the_same_call_goes_on_in_a_copy(tmp_path: Path) -> None:
    """A runner that is called with the copy as its output_dir writes specs of its own, and leaves the first ones."""
    run = run_of(tmp_path, config={"bad": [5, "raise"]})
    assert not run.wait(150).done
    wait_until(lambda: not supervised(run))
    shutil.copytree(run.path, tmp_path / "copy", ignore=shutil.ignore_patterns("*.tmp"))
    before, specs = files_of(run.path), files_of(tmp_path / "specs")
    (tmp_path / "repaired").touch()
    set_parallel({"env": "local", "n_workers": 2})
    folders = {"output_dir": tmp_path / "copy", "async_specs_dir": tmp_path / "specs"}
    provider = Provider({"folder": str(tmp_path), "bad": [5, "raise"]})
    found = Squares(provider, **folders, async_mode=True, progress=False)(range(12))
    assert found.wait(150).done and len(found.merge()) == 12
    assert files_of(run.path) == before and files_of(tmp_path / "specs") == specs
    assert all(tmp_path / "copy" in job.spec.resolve().parents for job in found)
    assert run[1].spec.resolve().parent == run.path / "detached/specs"


def test_a_snapshot_goes_with_its_folder(tmp_path: Path) -> None:
    """The jobs of a copy load the copied code, also where the original is gone."""
    set_parallel({"env": "local", "n_workers": 1, "detached": {"shards": 1, "snapshot": True}})
    folders = {"output_dir": tmp_path / "run", "async_specs_dir": tmp_path / "specs"}
    provider = Provider({"folder": str(tmp_path), "bad": [5, "raise"]})
    run = Squares(provider, **folders, async_mode=True, progress=False)(range(6))
    assert run.wait(150).shards[0].state is JobState.FAILED
    copy = DetachedRun.open(
        shutil.copytree(run.path, tmp_path / "copy", ignore=shutil.ignore_patterns("*.tmp"))
    )
    shutil.rmtree(run.path)
    (tmp_path / "repaired").touch()
    copy.retry()
    status = copy.wait(150)
    assert status.done and len(copy.merge()) == 6, (status, dict(copy.logs()))
