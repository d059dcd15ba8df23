"""A run that one item, or a signal, stops: what is said of the shards that it stops in their middle, or before."""

import json
import os
import signal
from pathlib import Path

import pytest

from espnet3.parallel import ConfigError, ItemFailure
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.detached.looking.detached_run import DetachedRun
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.ledger.errors import IncompleteRunError
from tests.habits import rows
from tests.parallel.detached.test_jobs import worker
from tests.parallel.detached.work import (
    Deaf,
    Files,
    Squares,
    calls,
    espnet3,
    gone,
    held,
    hold,
    let_go,
    run_of,
    supervisor,
)

STOPPED = "shard 0 stopped the run: item 0 failed: ValueError: no square of 0"


def test_a_job_that_starts_after_the_stop_has_not_begun(tmp_path: Path) -> None:
    """A scheduler starts queued jobs of a stopped run: each ends at once, as not started, with the reason."""
    run = run_of(tmp_path / "a", n=4, shards=2, workers=1, config={"bad": [0, "raise"]})
    assert not run.wait(600).alive
    ended = Layout(run.path).shard(1) / "ended.json"
    ended.unlink()
    worker(run[1].spec)
    assert json.loads(ended.read_text())["why"] == STOPPED
    assert run.status().shards[1].state is JobState.NOT_STARTED


def test_a_supervisor_that_is_told_to_end_says_so(tmp_path: Path) -> None:
    """SIGTERM, as at the shutdown of a host, leaves no shard `lost`: each has a state and a reason."""
    folder = tmp_path / "a"
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


@pytest.mark.parametrize(
    ("runner", "said"),
    [
        (Squares, ", and was killed before it could end in order"),
        pytest.param(
            Deaf,
            "; killed 10 s after it was asked to end, in the middle of an item",
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_an_item_that_does_not_end_is_excused(runner: type[Squares], said: str, tmp_path: Path) -> None:
    """Of a job killed after the grace because the run was stopped it is said which shard stopped it; no item is blamed.

    The job itself says so as soon as it is asked to end; of one that hears nothing its supervisor does.
    """
    folder = tmp_path / "a"
    hold(folder, 0)
    hold(folder, 1)
    run = run_of(folder, n=2, shards=2, workers=2, config={"bad": [0, "raise"]}, runner=runner)
    held(folder, 0)  # until the other job has begun: a run that is stopped before would not start it
    held(folder, 1)
    let_go(folder, 0)
    shard = run.wait(600).shards[1]
    let_go(folder, 1, dead=True)
    assert shard.state is JobState.UNFINISHED, shard
    assert shard.note == STOPPED + said
    assert json.loads((Layout(run.path).shard(1) / "mark.json").read_text())["stopping"]
    assert DetachedRun.open(run.path).status().shards[1].note == shard.note


def test_a_retry_that_stops_again_says_so_and_can_record(tmp_path: Path) -> None:
    """The state names the item that stopped the run again; `--on-error record` keeps its failure and goes on."""
    run = run_of(tmp_path / "a", shards=2, config={"bad": [5, "raise"]}, workers=1)
    assert any(f"retry {run.path} --on-error record" in note for note in run.wait(600).notes)
    espnet3("retry", run.path, cwd=tmp_path)
    status = run.wait(600)
    assert status.shards[0].note == "item 5 failed again: ValueError: no square of 5"
    espnet3("retry", run.path, "--on-error", "record", cwd=tmp_path)
    status = run.wait(600)
    assert (status.done, status.ok, status.failed, status.notes) == (True, 11, 1, ())
    results = DetachedRun.open(run.path).merge()
    assert isinstance(results[5], ItemFailure) and results[6]["square"] == 36
    assert calls(tmp_path / "a") == {i: 2 if i == 5 else 1 for i in range(12)}


def test_writers_stop_the_run_too(tmp_path: Path) -> None:
    """The same holds for a runner with writers, whose other shards have not started."""
    run = run_of(tmp_path / "a", n=6, workers=1, runner=Files, config={"bad": [0, "raise"]})
    first, *others = run.wait(600).shards
    assert (first.state, first.note) == (JobState.FAILED, STOPPED.partition(": ")[2])
    assert {(shard.state, shard.note) for shard in others} == {(JobState.NOT_STARTED, STOPPED)}
    assert "no square of 0" in dict(run.logs(failed=True))[0]
    with pytest.raises(IncompleteRunError, match=r"1 failed.*item 0 failed.*espnet3-parallel retry"):
        run.merge()
    run.retry()
    assert run.wait(600).shards[0].note == "item 0 failed again: ValueError: no square of 0"
    run.retry(on_error="record")
    assert run.wait(600).done


@pytest.mark.parametrize(
    ("on_error", "warned"), rows([("raise", True), ("record", False)], [("raise", True)])
)
def test_a_submission_says_that_one_item_will_stop_it(
    on_error: str, warned: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where one bad item would end the whole run, that is said when it is submitted."""
    run = run_of(tmp_path / "a", n=2, shards=1, on_error=on_error, progress=True)
    assert run.wait(600).done
    assert ('With on_error="record" its failure is recorded' in capfd.readouterr().err) is warned


def test_a_verb_that_has_nothing_to_do_says_so(tmp_path: Path) -> None:
    """retry of a run that is complete, and cancel of one that has ended, say so; a wrong word is refused."""
    run = run_of(tmp_path / "a", n=2, shards=1)
    assert run.wait(600).done
    assert "nothing was submitted: every item has an outcome" in run.retry().notes
    note = "nothing was submitted: every shard was before; `espnet3-parallel retry "
    assert run.submit().notes[-1].startswith(note)
    assert "no job was queued or at work: there was nothing to cancel" in run.cancel().notes
    with pytest.raises(ConfigError, match=r"\"raise\" or \"record\" \(did you mean 'record'\?\)"):
        run.retry(on_error="recrod")
    assert run.status().done
