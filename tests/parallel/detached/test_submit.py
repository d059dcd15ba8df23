"""A detached run from its submission to the merged file."""

import json
from pathlib import Path

import pytest

from espnet3.parallel import DetachedRun, ItemError, ItemFailure, TooManyFailuresError
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.ledger.errors import FolderInUseError
from tests.parallel.detached.work import (
    Files,
    Forgets,
    Quiet,
    calls,
    espnet3,
    held,
    here,
    hold,
    let_go,
    run_of,
    status_json,
)
from tests.parallel.ledger.making import receipt_of


def test_the_merged_results_are_those_of_this_process(tmp_path: Path) -> None:
    """Detached jobs, each with its record, leave the same bytes as a run in this process and the same sequence."""
    run = run_of(tmp_path / "a", batch_size=2)
    assert run.wait(600).done
    assert len(run) == 3 and [job.job_id for job in run] == ["local.0", "local.1", "local.2"]
    first = run[0]
    assert first.spec.parent.parent == tmp_path / "a/specs"
    assert json.loads(first.spec.read_text())["items"] == {"range": [0, 4, 1]}
    assert [json.loads(line)["index"] for line in first.result.read_text().splitlines()] == [0, 1, 2, 3]
    assert run[-1] == run[2] and run[:2] == [run[0], run[1]]
    results = run.merge()
    assert (tmp_path / "a/run/results.jsonl").read_bytes() == here(tmp_path / "b", batch_size=2)
    assert list(results) == [{"square": i * i, "text": f"«{i}»"} for i in range(12)]
    assert receipt_of(tmp_path / "a/run").planned == 12


def test_paths_with_any_name_work_and_inject_nothing(tmp_path: Path) -> None:
    """Spaces, quotes, `$()`, a semicolon, a newline and non-ASCII in every path are just names."""
    name = "sp ace 'q' \"d\" $(touch injected) `touch injected`; touch injected\n«ü»"
    run = run_of(tmp_path / name, n=2, shards=1)
    assert run.wait(600).done and len(run.merge()) == 2
    assert json.loads(espnet3("status", tmp_path / name / "run", "--json", cwd=tmp_path).stdout)["merged"]
    assert not list(tmp_path.rglob("injected"))


def test_a_failed_item_is_recorded(tmp_path: Path) -> None:
    """With on_error="record" a failure takes its item's place, as text, and `retry` runs it again when asked to."""
    run = run_of(tmp_path / "a", config={"bad": [3, "raise"]}, on_error="record")
    status = run.wait(600)
    assert (status.done, status.ok, status.failed) == (True, 11, 1)
    failure = run.merge()[3]
    assert isinstance(failure, ItemFailure) and failure.error_type == "ValueError"
    # every file that a run leaves, specs included, is text, and JSON but for the logs: none is a pickle
    files = [f for f in (tmp_path / "a").rglob("*") if f.is_file() and not f.name.startswith("calls.")]
    assert len(files) > 20
    for file in files:
        text = file.read_bytes().decode("utf-8")
        if file.suffix == ".jsonl":
            assert all(json.loads(line) for line in text.splitlines())
        elif file.suffix != ".txt":
            json.loads(text)
    (tmp_path / "a/repaired").touch()
    run.retry(failed_items=True)
    assert run.wait(600).done
    assert run.merge()[3]["square"] == 9
    assert calls(tmp_path / "a") == {i: 2 if i == 3 else 1 for i in range(12)}


def test_a_merge_raises_where_the_runner_would(tmp_path: Path) -> None:
    """With on_error="raise" a run whose last item failed is complete, and its merge raises that `ItemError`."""
    run = run_of(tmp_path / "a", n=3, shards=1, config={"bad": [2, "raise"]})
    assert not run.wait(600).done
    with pytest.raises(ItemError, match="item 2 failed .* no square of 2") as caught:
        run.merge()
    assert isinstance(caught.value, ValueError)


def test_a_forgotten_return_is_a_warning_of_the_merge(tmp_path: Path) -> None:
    """Where every result of the jobs is None, the merge warns as a run in this process does."""
    run = run_of(tmp_path / "a", n=2, shards=1, runner=Forgets)
    assert run.wait(600).done
    with pytest.warns(UserWarning, match=r"Forgets returned None for all 2 items: .*`return`"):
        assert list(run.merge()) == [None] * 2


def test_an_env_that_cannot_be_built_fails_the_shard(tmp_path: Path) -> None:
    """The state says why, and the log holds the provider's traceback, but no file the secret in its error."""
    run = run_of(tmp_path / "a", config={"broken": True}, shards=1)
    (shard,) = run.wait(600).shards
    assert shard.state is JobState.FAILED and "the model is not there" in shard.note
    assert "in build_env_local" in dict(run.logs())[0]
    assert not [file for file in run.path.rglob("*") if file.is_file() and b"hunter2" in file.read_bytes()]


def test_the_same_run_twice_is_refused_while_it_lives(tmp_path: Path) -> None:
    """A second submission, a retry and a call in this process are refused; when it is over it resumes."""
    folder = tmp_path / "a"
    hold(folder, 5)
    run_of(folder)
    held(folder, 5)
    for again in (lambda: run_of(folder), lambda: run_of(folder, async_mode=False)):
        with pytest.raises(FolderInUseError, match=r"in use by detached jobs \(.*running.*-parallel cancel"):
            again()
    assert "FolderInUseError" in espnet3("retry", folder / "run", cwd=tmp_path, ok=False).stderr
    let_go(folder, 5)
    assert DetachedRun.open(folder / "run").wait(600).done
    again = run_of(folder)
    assert again.status().done and len(again.merge()) == 12
    assert len(run_of(folder, async_mode=False)) == 12
    assert set(calls(folder).values()) == {1}


def test_jobs_go_on_where_a_call_in_this_process_stopped(tmp_path: Path) -> None:
    """What it has computed is not computed again, and the item that stopped it runs again."""
    bad = {"config": {"bad": [5, "raise"]}}
    with pytest.raises(ItemError, match="item 5 failed"):
        run_of(tmp_path / "a", async_mode=False, workers=1, **bad)
    assert set(calls(tmp_path / "a")) == set(range(6))
    (tmp_path / "a/repaired").touch()
    run = run_of(tmp_path / "a", **bad)
    assert run.wait(600).done and len(run.merge()) == 12
    assert calls(tmp_path / "a") == {i: 2 if i == 5 else 1 for i in range(12)}
    # failures that it has recorded stay, and are counted as such before the jobs have begun
    bad = {"config": {"bad": [4, "every"]}, "on_error": "record"}
    with pytest.raises(TooManyFailuresError):
        run_of(tmp_path / "b", async_mode=False, workers=1, max_failures=1, **bad)
    run = run_of(tmp_path / "b", **bad)
    known, status = run.status(), run.wait(600)
    assert known.failed >= 2 and (status.ok, status.failed) == (9, 3)


def test_cancel_leaves_nothing_and_retry_goes_on(tmp_path: Path) -> None:
    """`cancel` ends what runs and what waits; `retry` computes the rest, none of what was done again."""
    folder = tmp_path / "a"
    hold(folder, 8)
    run = run_of(folder, workers=1)
    held(folder, 8)
    assert "cancelled" in espnet3("cancel", folder / "run", "--grace", 0.2, cwd=tmp_path).stdout
    status = run.status()
    assert not status.alive
    states = [shard.state for shard in status.shards]
    assert states == [JobState.DONE, JobState.CANCELLED, JobState.CANCELLED]
    assert status_json(folder / "run", tmp_path)["states"] == {"done": 1, "cancelled": 2}
    let_go(folder, 8, dead=True)
    run.retry()
    assert run.wait(600).done and len(run.merge()) == 12
    assert calls(folder) == {i: 2 if i == 8 else 1 for i in range(12)}


def test_the_command_says_what_was_merged_where_the_runners_merge_returns_nothing(tmp_path: Path) -> None:
    """A count and the folder, in place of None."""
    run = run_of(tmp_path / "a", n=3, shards=1, runner=Quiet)
    assert run.wait(600).done
    printed = espnet3("merge", tmp_path / "a/run", cwd=tmp_path).stdout
    assert printed == f"merged 3 items, none failed, in {tmp_path / 'a/run'}\n"


def test_a_runner_with_writers_gives_the_same_files(tmp_path: Path) -> None:
    """Hooks run for each shard, and `merge` gets the folders, also in a process that only has the run folder."""
    run = run_of(tmp_path / "a", n=6, runner=Files, shards=6)
    assert run.wait(600).done
    text = "".join(f"{i} {i * i}\n" for i in range(6))
    assert run.merge() == text
    assert DetachedRun.open(tmp_path / "a/run").merge() == text
    assert espnet3("merge", tmp_path / "a/run", cwd=tmp_path).stdout == text + "\n"
    run_of(tmp_path / "b", n=6, runner=Files, async_mode=False)
    assert (tmp_path / "a/run/results.jsonl").read_bytes() == (tmp_path / "b/run/results.jsonl").read_bytes()
    assert (tmp_path / "a/run/split.2/text").read_bytes() == (tmp_path / "b/run/split.2/text").read_bytes()


def test_a_run_without_output_dir_gets_a_folder(tmp_path: Path) -> None:
    """Its folder is a new one under `async_result_dir`, named after the runner."""
    run = run_of(tmp_path / "a", n=2, shards=1, output_dir=None, async_result_dir=tmp_path / "results")
    assert run.path.parent == tmp_path / "results" and run.path.name.startswith("Squares-")
    assert run.wait(600).done and len(run.merge()) == 2
