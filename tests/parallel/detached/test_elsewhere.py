"""A run folder that was copied or moved: it is read where it is, and goes on when its runner is called with it."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ConfigError, DetachedRun, FolderInUseError, set_parallel
from espnet3.parallel.detached.states import JobState
from tests.habits import rows
from tests.parallel.detached.test_standins import submit
from tests.parallel.detached.work import (
    Files,
    Provider,
    Squares,
    calls,
    espnet3,
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


def refused(run: DetachedRun, home: Path) -> None:
    """Check that no verb that writes or drives takes a folder that was elsewhere, and that each says what to do."""
    events = (run.path / "events.jsonl").read_bytes()
    for verb in (run.cancel, run.submit, run.retry):
        with pytest.raises(
            ConfigError, match=r"move it back, or call its runner with this output_dir"
        ) as error:
            verb()
        assert f"was copied or moved from {home}" in str(error.value)
    assert (run.path / "events.jsonl").read_bytes() == events and not (
        run.path / "detached/stop.json"
    ).exists()


def again(place: Path, data: Path, n: int = 12, runner: Any = Squares, **arguments: Any) -> Any:
    """Call the runner with a copied or moved folder as its output_dir, and the same block."""
    folders = {"output_dir": place, "async_specs_dir": data / "specs", "async_mode": True}
    return runner(Provider({"folder": str(data)}), progress=False, **folders, **arguments)(range(n))


@pytest.mark.parametrize("original", rows(["runs", "is gone"], ("runs",)))
def test_a_copy_of_a_running_run_is_completed_where_it_is(original: str, tmp_path: Path) -> None:
    """The jobs of a call with the copy compute there what is missing; the original, and its jobs, do not notice."""
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
    refused(found, run.path)
    for item in (1, 5):
        (first / f"hold.{item}").unlink()
    found = again(copy, first)
    status = found.wait(150)
    assert status.done, (status, dict(found.logs()))
    assert all(copy in job.spec.resolve().parents for job in found)
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
        refused(copy, run.path)
        assert run.status().counts == {JobState.RUNNING: 1, JobState.PENDING: 2}
        (tmp_path / "hold.0").unlink()
        copy = again(copy.path, tmp_path, 6)
        (tmp_path / "go.0").write_text("go")
        for one in (run, copy):
            status = one.wait(150)
            assert status.done, (status, dict(one.logs()))
            one.merge()
    assert (tmp_path / "copy/results.jsonl").read_bytes() == here(tmp_path / "b", n=6)
    assert calls(tmp_path) == Counter(dict.fromkeys(range(6), 2))


@pytest.mark.parametrize("name", rows(["local", "pbs"], ("local",)))
def test_a_moved_run_says_so_and_goes_on_where_it_is(name: str, tmp_path: Path) -> None:
    """Its jobs end as they miss their folder; then the runner's call goes on in the new place, and none in the old."""
    hold(tmp_path, 0)
    with standin("pbs", slots=1) as queue:
        run = run_of(tmp_path, n=6) if name == "local" else submit(name, tmp_path)
        held(tmp_path, 0)
        if name == "local":  # also where no shard is silent
            wait_until(lambda: run.status().counts == {JobState.RUNNING: 1, JobState.DONE: 2})
        moved = run.path.rename(tmp_path / "moved")
        found = DetachedRun.open(moved)
        status = found.status()
        assert status.alive and any(str(run.path) in note for note in status.notes)
        refused(found, run.path)
        with pytest.raises(FolderInUseError):
            again(moved, tmp_path, 6)
        let_go(tmp_path, 0)
        status = found.wait(150)
        assert not status.alive and not status.done and not run.path.exists()
        assert all(str(run.path) in shard.note for shard in status.shards if shard.state is JobState.LOST)
        queue.cancel_all()  # which holds jobs for the folder that is gone, and cannot start them
        found = again(moved, tmp_path, 6)
        status = found.wait(150)
        assert status.done, (status, dict(found.logs()))
        found.merge()
    assert not run.path.exists()
    assert (moved / "results.jsonl").read_bytes() == here(tmp_path / "b", n=6)


@pytest.mark.parametrize("how", rows(["copied", "moved"], ("moved",)))
def test_every_verb_that_reads_takes_a_finished_run_that_is_elsewhere(how: str, tmp_path: Path) -> None:
    """On the command line, with the hooks of the run, and without its specs and the folder it was submitted for."""
    run = run_of(tmp_path, 6, shards=2, runner=Files, shard_subdir="dev")
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
    verbs = ("status", "wait", "logs", "failures", "merge", "report", "watch")
    with program("-c", code, str(place), *verbs, cwd=tmp_path) as process:
        process.communicate()
    assert process.returncode == 0
    (place / "split.1/text").unlink()
    (place / "detached/shard.1/done").unlink()
    for name in ("results.jsonl", "errors.jsonl", "done"):
        (place / run[1].result.parent.name / name).unlink(missing_ok=True)
    refused(DetachedRun.open(place), run.path)
    found = again(place.parent, tmp_path, 6, Files, shard_subdir="dev")
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
    found = run_of(tmp_path, config={"bad": [5, "raise"]}, output_dir=tmp_path / "copy")
    assert found.wait(150).done and len(found.merge()) == 12
    assert files_of(run.path) == before and files_of(tmp_path / "specs") == specs
    assert all(tmp_path / "copy" in job.spec.resolve().parents for job in found)
    assert run[1].spec.resolve().parent == run.path / "detached/specs"


def test_a_snapshot_goes_with_its_folder(tmp_path: Path) -> None:
    """What reads a copy loads the copied code, also where the original is gone."""
    set_parallel({"env": "local", "n_workers": 1, "detached": {"shards": 1, "snapshot": True}})
    folders = {"output_dir": tmp_path / "run", "async_specs_dir": tmp_path / "specs"}
    provider = Provider({"folder": str(tmp_path), "bad": [5, "raise"]})
    run = Squares(provider, **folders, async_mode=True, progress=False)(range(6))
    assert run.wait(150).shards[0].state is JobState.FAILED
    copy = shutil.copytree(run.path, tmp_path / "copy", ignore=shutil.ignore_patterns("*.tmp"))
    shutil.rmtree(run.path)
    assert "item 5 now: raised" in espnet3("replay", copy, "5", cwd=tmp_path, ok=False).stdout
