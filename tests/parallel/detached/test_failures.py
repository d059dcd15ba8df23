"""`max_failures` over all jobs of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel.detached.states import JobState
from tests.parallel.detached.work import Files, Squares, calls, run_of


class Failing(Squares):
    """Fails at every fourth item, until the file `repaired` is there."""

    @staticmethod
    def forward(idx: int, folder: Path, bad: Any) -> dict[str, Any]:
        """Return the square, or fail."""
        return Squares.forward(idx, folder, (idx - idx % 4, "raise"))


class FailingFiles(Files):
    """The same, with files of its own."""

    @staticmethod
    def forward(idx: int, folder: Path, bad: Any) -> int:
        """Return the square, or fail."""
        Squares.forward(idx, folder, (idx - idx % 4, "raise"))
        return idx * idx


@pytest.mark.parametrize(
    ("runner", "n", "limit", "n_failed"), [(Failing, 16, 0.15, 3), (FailingFiles, 6, 1, 2)]
)
def test_failures_of_all_shards_count(
    tmp_path: Path, runner: Any, n: int, limit: float, n_failed: int
) -> None:
    """No shard fails too often, but the run does: the job that passes the limit stops it, and says so."""
    folder = tmp_path / "a"
    options = {"on_error": "record", "max_failures": limit, "runner": runner}
    run = run_of(folder, n=n, shards=4, workers=1, **options)
    status = run.wait(600)
    failed = [shard for shard in status.shards if shard.state is JobState.FAILED]
    assert [shard.note for shard in failed] == [
        f"{n_failed} of {n} items failed, and max_failures is {limit:g}"
    ], (status, dict(run.logs()))
    assert not status.done and n - 1 not in calls(folder)
    (folder / "repaired").touch()
    run.retry(failed_items=True)
    assert run.wait(600).done
    assert run.status().failed == 0


def test_failures_below_the_limit_are_recorded(tmp_path: Path) -> None:
    """A run with as many failures as the limit allows is complete."""
    run = run_of(tmp_path / "a", n=12, runner=Failing, on_error="record", max_failures=3)
    status = run.wait(600)
    assert (status.done, status.ok, status.failed) == (True, 9, 3), (status, dict(run.logs()))
