"""`max_failures` over all jobs of a run."""

from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel.detached.states import JobState
from tests.habits import rows
from tests.parallel.detached.work import Files, Squares, calls, run_of


@pytest.mark.parametrize(
    ("runner", "n", "limit", "n_failed"),
    rows([(Squares, 16, 0.15, 3), (Files, 6, 1, 2)], [(Squares, 16, 0.15, 3)]),
)
def test_failures_of_all_shards_count(
    tmp_path: Path, runner: Any, n: int, limit: float, n_failed: int
) -> None:
    """No shard fails too often, but the run does: the job that passes the limit stops it, and says so."""
    folder = tmp_path / "a"
    options = {"on_error": "record", "max_failures": limit, "runner": runner, "config": {"bad": [4, "every"]}}
    run = run_of(folder, n=n, shards=4, workers=1, **options)
    status = run.wait(600)
    failed = [shard for shard in status.shards if shard.state is JobState.FAILED]
    assert [shard.note for shard in failed] == [
        f"{n_failed} of {n} items failed, and max_failures is {limit:g}"
    ], (status, dict(run.logs()))
    assert not status.done and n // 4 not in calls(folder)  # of shard 1, to which the job comes last
    (folder / "repaired").touch()
    run.retry(failed_items=True)
    assert run.wait(600).done
    assert run.status().failed == 0
