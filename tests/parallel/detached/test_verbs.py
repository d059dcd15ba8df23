"""Verbs that change a run: one at a time, and `cancel` reaches every job that the run ever had."""

import json
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from espnet3.parallel import ConfigError, DetachedRun, FolderInUseError, IncompleteRunError
from espnet3.parallel.detached.launch import asking
from espnet3.parallel.detached.launch.asking import submitted
from espnet3.parallel.detached.launch.supervisors import SUPERVISING
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.detached.looking import detached_run as looking
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.ledger.lease import Lease
from espnet3.parallel.views.facts import read_facts
from tests.parallel.detached.test_standins import submit
from tests.parallel.detached.work import Fussy, calls, run_of
from tests.standins import StandIn, standin
from tests.standins.jobs import Store


def test_verbs_exclude_each_other_and_say_who_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one verb has the run's lease every other one is refused, with the name and the process of the first."""
    run = run_of(tmp_path / "a", n=2, shards=1)
    assert run.wait(600).done
    monkeypatch.setattr(looking, "_PATIENCE", 0.0)  # cancel waits for the others, which take seconds
    lease = Lease(run.path)
    lease.acquire("merge-of-a-test")
    try:
        for verb in (run.submit, run.retry, run.merge, run.cancel):
            with pytest.raises(FolderInUseError, match=r"process \d+ on .*merge-of-a-test"):
                verb()
    finally:
        lease.release()
    assert len(run.merge()) == 2


def test_a_run_whose_merge_failed_is_not_merged(tmp_path: Path) -> None:
    """A `merge` of the runner that raised is noted by `status`, until the verb has called it again."""
    run = run_of(tmp_path / "a", runner=Fussy)
    assert run.wait(600).done
    with pytest.raises(ValueError, match="no square of 0"):
        run.merge()
    status = run.status()
    assert not status.merged and "`espnet3-parallel merge` of a detached run" in status.notes[0]
    assert any("are not merged yet" in note for note in read_facts(run.path).notes)
    (tmp_path / "a/repaired").touch()
    assert len(run.merge().splitlines()) == 12
    assert run.status().merged and not run.status().notes


def frames_of(error: BaseException) -> list[str]:
    """Return the files of an error's traceback; on 3.10 two frames of ours are always there."""
    frames = traceback.extract_tb(error.__traceback__)
    return [at.filename for at in frames if sys.version_info >= (3, 11) or "errors.py" not in at.filename]


def test_a_merge_before_the_end_is_one_error_with_one_advice(tmp_path: Path) -> None:
    """What is missing and what its jobs do is said once, without an earlier error above and without our frames."""
    run = run_of(tmp_path / "a")
    run.cancel(grace=0.0)
    lines = (tmp_path / "a").rglob("split.*/results.jsonl")
    for file in [*lines, *(tmp_path / "a").rglob("shard.*/done")]:
        file.unlink()
    with pytest.raises(IncompleteRunError, match=r"12 of 12 indices .* `espnet3-parallel retry` ") as caught:
        run.merge()
    assert "Run again" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    assert set(frames_of(caught.value)) == {__file__}


def test_a_cancelled_run_leaves_no_job_that_was_just_being_started(tmp_path: Path) -> None:
    """Without a grace the supervisor is killed; a job that it has started and that holds no lease yet goes with it."""
    run = run_of(tmp_path / "a")
    run.cancel(grace=0.0)
    left = [
        each.info["cmdline"]
        for each in psutil.process_iter(["cmdline", "status"])
        if each.info["status"] != psutil.STATUS_ZOMBIE
        and any(str(run.path) in word for word in each.info["cmdline"] or ())
        and SUPERVISING not in each.info["cmdline"]  # it has given its lease back, and ends
    ]
    assert left == []
    assert not run.status().alive


def test_a_folder_that_does_not_exist_is_said_to_be_missing(tmp_path: Path) -> None:
    """DetachedRun.open says at the caller's line that a folder is not there, or holds no such run."""
    for folder, said in (
        (tmp_path / "nope", "nope does not exist: give"),
        (tmp_path, "is not the folder of a"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            DetachedRun.open(folder)
        assert set(frames_of(caught.value)) == {__file__}


def last_verb(run: DetachedRun) -> str:
    """Return the last thing that happened to a run, by its events."""
    lines = (run.path / "events.jsonl").read_text().splitlines()
    return str(json.loads(lines[-1])["event"])


def at_once(*verbs_: Callable[[], object]) -> list[BaseException | None]:
    """Call verbs at the same moment; return what each raised: nothing, or that the folder is in use."""
    start = threading.Barrier(len(verbs_))
    raised: list[BaseException | None] = [None] * len(verbs_)
    unexpected: list[BaseException] = []

    def call(place: int, verb: Callable[[], object]) -> None:
        start.wait()
        try:
            verb()
        except FolderInUseError as error:
            raised[place] = error
        except BaseException as error:
            unexpected.append(error)

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(verbs_)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not unexpected, unexpected
    return raised


def test_cancel_and_retry_in_a_race_leave_what_the_last_one_says(tmp_path: Path) -> None:
    """After `cancel` and `retry` at once the queue is empty, or `retry` was the last and knows its jobs."""
    with standin("pbs", slots=0) as queue:
        run = submit("pbs", tmp_path)
        run.cancel(grace=0.2)
        raised = at_once(lambda: run.cancel(grace=0.2), run.retry)
        assert raised[0] is None
        left = {f"{each.job}[{each.index}]" for each in queue.unfinished()}
        if last_verb(run) == "cancelled":
            assert not left
            assert run.status().counts == {JobState.CANCELLED: 3}
        else:
            assert left == {job.job_id for job in run}
        run.cancel(grace=0.2)
        assert queue.unfinished() == []


def revive(queue: StandIn, job: int, index: int) -> None:
    """Queue an ended element again, as an operator may."""
    store = Store(queue.folder)
    with store.locked():
        (element,) = store.select(job, index)
        store.save(replace(element, state="waiting", exit_code=None, ended_by=""))


def test_a_job_of_an_earlier_array_is_seen_and_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An element that is queued again after its array was replaced keeps the run alive, and is cancelled."""
    monkeypatch.setattr(asking, "LATE_FILES", -1.0)  # nothing is late: the jobs never started
    with standin("pbs", slots=0) as queue:
        run = submit("pbs", tmp_path)
        run.cancel(grace=0.2)
        run.retry()
        for job in queue.unfinished():
            Store(queue.folder).cancel(job)  # by qdel, behind the run's back
        assert run.status().counts == {JobState.LOST: 3}
        revive(queue, 1, 2)
        status = run.status()
        assert status.shards[2].state is JobState.PENDING and "job 1[2]" in status.shards[2].note
        with pytest.raises(FolderInUseError):
            run.retry()
        arrays = submitted(Layout(run.path))
        assert [[*each.cancel, *each.whole] for each in arrays] == [["qdel", "1[]"], ["qdel", "2[]"]]
        assert run.cancel(grace=0.2).counts == {JobState.CANCELLED: 3}
        assert queue.unfinished() == []
    assert not calls(tmp_path)
