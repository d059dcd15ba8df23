"""The same crash and the same delay in every kind of run: one answer, in the same words."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ItemFailure, set_parallel
from espnet3.parallel.detached.states import LossFile, Marks, job_name, note_end
from espnet3.parallel.engine.blame import History, Loss
from espnet3.parallel.ledger.merge import Results
from espnet3.parallel.records import Policy, ProcessEnd
from tests.habits import rows
from tests.parallel.detached.work import Files, Provider, Squares, calls, run_of

N, BAD = 12, 5
LEFT = ProcessEnd(exit_code=1)
SHOT = ProcessEnd(signal=signal.SIGKILL)


# --- the marks of detached jobs -----------------------------------------------------------------------------------


def test_an_unknown_end_names_nobody_at_once(tmp_path: Path) -> None:
    """Where nobody has noted how a job ended, it may have been killed: its item has failed after two."""
    for deaths in (0, 1, 2):
        losses = LossFile(tmp_path)
        marks = Marks(tmp_path, losses)
        history = History(Policy(poison_after=1), losses.losses)
        assert list(history.failed) == ([BAD] if deaths == 2 else [])
        marks.note(in_flight=(BAD, BAD + 1))
    assert history.failure(BAD, BAD, "w").message.startswith("its worker process ended, ")


def test_the_end_of_one_job_is_not_noted_for_another(tmp_path: Path) -> None:
    """A job that ends without the shard leaves the mark of the one that is at work alone."""
    marks = Marks(tmp_path, LossFile(tmp_path))
    marks.note(in_flight=(3, 9))
    before = (tmp_path / "mark.json").read_bytes()
    assert not note_end(tmp_path, job_name(os.getsid(0) + 1), LEFT)
    assert (tmp_path / "mark.json").read_bytes() == before


def test_a_death_is_counted_once(tmp_path: Path) -> None:
    """Whoever takes up the mark of a dead worker notes its loss, and the next one does not again."""
    Marks(tmp_path, LossFile(tmp_path)).note(in_flight=(3, 9))
    note_end(tmp_path, job_name(os.getsid(0)), LEFT)
    for _ in range(3):
        Marks(tmp_path, LossFile(tmp_path)).close()
        assert LossFile(tmp_path).losses == [Loss(3, 6, LEFT)]


# --- the four ways to run a runner, with real processes -------------------------------------------------------------


def detached(folder: Path, cls: type, bad: str, **options: Any) -> Path:
    """Run a runner to its end as one job, whose second shard has the bad item; return its folder."""
    run = run_of(folder, N, 1, 3, runner=cls, config={"bad": [BAD, bad]}, on_error="record", **options)
    status = run.wait(600)
    assert (status.done, status.ok, status.failed) == (True, N - 1, 1), (status, dict(run.logs()))
    run.merge()
    return Path(run.path)


def attended(folder: Path, cls: type, bad: str, **options: Any) -> Path:
    """Run a runner with two workers; return its folder."""
    folder.mkdir()
    set_parallel({"env": "local", "n_workers": 2})
    config = {"folder": str(folder), "bad": [BAD, bad]}
    cls(Provider(config), progress=False, on_error="record", output_dir=folder / "run", **options)(range(N))
    return folder / "run"


WAYS: list[tuple[Callable[..., Path], type]] = [
    (attended, Squares),
    (attended, Files),
    (detached, Squares),
    (detached, Files),
]


def only_failure(run: Path) -> ItemFailure:
    """Return the one failure that a run has left on disk."""
    (failure,) = Results(run).failures
    return failure


@pytest.mark.parametrize(("bad", "deaths"), rows([("leave", 1), ("shot", 2)], [("shot", 2)]))
def test_a_crash_is_the_same_everywhere(tmp_path: Path, bad: str, deaths: int) -> None:
    """With and without writers, attended and detached: one item has failed, in one message, after as many attempts."""
    found = []
    for number, (way, cls) in enumerate(WAYS):
        failure = only_failure(way(tmp_path / str(number), cls, bad))
        found.append((failure.index, failure.cause, failure.error_type, failure.attempts, failure.message))
        assert calls(tmp_path / str(number))[BAD] >= deaths
    assert found == found[:1] * len(WAYS)
    assert found[0][:4] == (BAD, "poison", "WorkerDied", deaths)
    end = {"leave": LEFT, "shot": SHOT}[bad]
    assert found[0][4].startswith(f"its worker process {end}, ")


def test_a_hang_is_the_same_everywhere(tmp_path: Path) -> None:
    """With a retry, the item is given up after two attempts, attended and detached, in the same words."""
    found = []
    ways = [WAYS[0], WAYS[-1]]
    for number, (way, cls) in enumerate(ways):
        failure = only_failure(way(tmp_path / str(number), cls, "sleep", item_timeout=0.5, max_retries=1))
        words = re.sub(r" on .*, whose|[\d.]+ s$", "", failure.message)
        found.append((failure.index, failure.cause, failure.error_type, failure.attempts, words))
        assert calls(tmp_path / str(number))[BAD] == 2
    assert found == found[:1] * len(ways)
    assert found[0][:4] == (BAD, "timeout", "TimeoutError", 2)
