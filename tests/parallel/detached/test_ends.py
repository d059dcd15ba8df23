"""How a job ended that could not say so itself, or only early: at its walltime, or before its worker began."""

import json
import signal
import time
from pathlib import Path

import pytest

from espnet3.parallel.detached.job.stopping import Stopping
from espnet3.parallel.detached.launch import asking
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.detached.states import JobState, LossFile, Marks
from tests.habits import rows
from tests.parallel.detached.test_standins import submit
from tests.standins import Habit, standin
from tests.standins.place import NAMES
from tests.waiting import wait_until

LATE = (Habit.LATE_LOGS,)


@pytest.mark.parametrize(
    ("name", "habits"), rows([(name, logs) for name in NAMES for logs in ((), LATE)], [("htcondor", LATE)])
)
def test_a_script_that_fails_before_its_worker_is_shown(
    name: str, habits: tuple[Habit, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logs` prints the scheduler's output file, and `status` quotes its last line, as soon as it is delivered."""
    monkeypatch.setattr(asking, "LATE_FILES", -1.0)  # the list of some does not say that it failed
    with standin(name, habits=habits):
        run = submit(
            name, tmp_path, 2, 2, job_script_prologue=["echo before; echo no python here >&2", "exit 4"]
        )
        wait_until(lambda: run.status().counts == {JobState.LOST: 2}, every=0.5, said=run.status)
        wait_until(lambda: "no python here" in run.status().shards[1].note, every=0.5, said=run.status)
        assert run.status().shards[1].note.endswith("its output ends with: no python here")
        assert {shard: text.splitlines()[:2] for shard, text in run.logs(failed=True)} == {
            0: ["before", "no python here"],
            1: ["before", "no python here"],
        }
        run.cancel(grace=0.2)


def test_an_early_end_gives_way_to_the_real_one(tmp_path: Path) -> None:
    """What a job writes before its end removes an earlier attempt's, and nothing is written once the real end comes."""
    file = tmp_path / "ended.json"
    file.write_text("{}")
    began = time.monotonic()
    Stopping(Layout(tmp_path), None, began).begin(tmp_path, Marks(tmp_path, LossFile(tmp_path)))
    assert not file.exists()
    late = Stopping(Layout(tmp_path), 1.0, began - 1.0)
    late.begin(tmp_path, Marks(tmp_path, LossFile(tmp_path)))
    late.reason()
    early = json.loads(file.read_text())
    assert (early["state"], early["early"]) == ("timeout", True)
    file.unlink()
    late.end()
    late._note(signal.SIGTERM)
    assert not file.exists()


COMMENTS = [
    ("pbs", 1, "Q: Not Running: Insufficient amount of resource: ncpus"),
    ("pbs", 64, "Q: Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 1 T: 1)"),
    ("lsf", 64, "PEND: Not enough processors to meet the job's spanning requirement: 1 host"),
    ("moab", 64, "Idle: job cannot run in partition base (insufficient procs configured: 1 < 64)"),
    ("htcondor", 64, "1: TARGET.Cpus >= 64; 1 are rejected by your job's requirements"),
]


@pytest.mark.parametrize(("name", "cores", "note"), rows(COMMENTS, (COMMENTS[-1],)))
def test_a_request_that_can_never_run_shows_the_schedulers_comment(
    name: str, cores: int, note: str, tmp_path: Path
) -> None:
    """The note of a job that waits without a reason in the list has the scheduler's own words about it."""
    with standin(name, slots=1 if cores > 1 else 0):
        run = submit(name, tmp_path, 2, 2, cores=cores)
        assert run.status().shards[0].note == note
        run.cancel(grace=0.2)
