"""Sites whose scheduler's commands print more than usual, refuse or fail, with detached jobs."""

import json
import os
from pathlib import Path

import pytest

from espnet3.parallel import ConfigError, ParallelError, SubmissionError
from espnet3.parallel.detached.launch import job_arrays
from espnet3.parallel.detached.states import JobState
from tests.habits import rows
from tests.parallel.detached.test_standins import submit
from tests.parallel.detached.work import calls, held, hold, let_go
from tests.sites import CANCEL, habit
from tests.standins import standin
from tests.standins.place import NAMES


@pytest.mark.parametrize("env", rows([*NAMES], ("pbs",)))
def test_a_cancel_command_that_fails_cancels_nothing(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """While the queue has the jobs, `cancel` is an error that shows what was said, once, and cancels no shard."""
    monkeypatch.setattr(job_arrays, "_REFUSED", 2.0)
    monkeypatch.setattr(job_arrays, "_AGAIN", 0.5)
    with standin(env, slots=0):
        run = submit(env, tmp_path)
        with monkeypatch.context() as site:
            habit(CANCEL[env], "echo 'not today' >&2; exit 3", tmp_path, site)
            with pytest.raises(ParallelError, match=r"still lists jobs.*ended with 3: not today"):
                run.cancel(grace=0.1)
            assert run.status().counts == {JobState.PENDING: 3}
        assert capfd.readouterr().err.count("not today") == 1
        assert run.cancel(grace=0.1).counts == {JobState.CANCELLED: 3}


@pytest.mark.parametrize("env", rows([*NAMES], ("htcondor",)))
def test_jobs_that_the_scheduler_has_forgotten_are_cancelled(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the scheduler has no such job and the cancel command says so, `cancel` returns all the same."""
    monkeypatch.setattr(job_arrays, "_AGAIN", 1.0)
    with standin(env, slots=0) as queue:
        run = submit(env, tmp_path)
        queue.cancel_all()
        for file in queue.folder.glob("*.*.json"):
            file.unlink()  # it was installed anew, and has forgotten everything
        status = run.cancel(grace=0.1)
    assert status.counts == {JobState.CANCELLED: 3}


LIMITED = 'grep -q "^#PBS -J 0-[0-2]%" "$1" || { echo "qsub: would exceed the limit on jobs" >&2; exit 1; }; '


def test_a_refused_submission_is_cut_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the settings; another number of shards in the same folder then counts, as nothing has run."""
    with standin("pbs") as queue:
        habit("qsub", f'{LIMITED} exec "$OWN" "$@"', tmp_path, monkeypatch)
        with pytest.raises(SubmissionError, match="limit on jobs") as error:
            submit("pbs", tmp_path, 12, 8)
        for name in ("detached.shards", "n_workers", "detached.array_limit"):
            assert name in str(error.value)
        run = submit("pbs", tmp_path, 12, 3)
        assert len(run) == 3
        status = run.wait(150)
        assert status.done, (status, dict(run.logs()))
        assert [each["square"] for each in run.merge()] == [i * i for i in range(12)]
        assert len({each.job for each in queue.jobs()}) == 1


def test_other_shards_count_in_a_run_that_has_begun(tmp_path: Path) -> None:
    """What is left of it is cut anew, and nothing that was done is done again."""
    with standin("pbs", slots=1):
        hold(tmp_path, 8)
        run = submit("pbs", tmp_path, 12, 3)
        held(tmp_path, 8)
        run.cancel(grace=0.2)
        let_go(tmp_path, 8, dead=True)
        run = submit("pbs", tmp_path, 12, 2)
        assert len(run) == 2
        assert run.wait(150).done
        assert [each["square"] for each in run.merge()] == [i * i for i in range(12)]
    assert calls(tmp_path) == {i: 2 if i == 8 else 1 for i in range(12)}
    assert "repaired" not in (run.path / "events.jsonl").read_text()


def test_a_run_goes_on_with_the_arrays_that_a_site_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of two arrays the second is refused: the first one's shards work, and `retry` submits the others."""
    with standin("pbs") as queue:
        once = '[ -e "$MINE/one" ] && { echo "qsub: only one array" >&2; exit 1; }; touch "$MINE/one"; exec "$OWN" "$@"'
        with monkeypatch.context() as site:
            habit("qsub", once, tmp_path, site)
            run = submit("pbs", tmp_path, 12, 4, detached={"array_limit": 1}, progress=True)
            said = capfd.readouterr().err
            assert "2 of 4 shards were submitted" in said and "only one array" in said
            assert "submitted 2 shards (6 items)" in said
            counts = run.wait(150).counts
            assert counts == {JobState.DONE: 2, JobState.NEW: 2}
        run.retry()
        assert run.wait(150).done
        assert [each["square"] for each in run.merge()] == [i * i for i in range(12)]
        assert len({each.job for each in queue.jobs()}) == 2


FAKE = """
echo "$(basename "$0") ${SLURM_CLUSTERS:-none}" >>"$MINE/../called"
case $(basename "$0") in
    sbatch) echo "Submitted batch job 7 on cluster $SLURM_CLUSTERS" ;;
    squeue) echo "CLUSTER: $SLURM_CLUSTERS"; echo '7_0|PENDING|Priority|' ;;
esac
"""


def test_verbs_refuse_another_cluster_than_that_of_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where SLURM_CLUSTERS is not what it was at the submission, no command runs, and what to set is said."""
    for command in ("sbatch", "squeue", "scancel", "scontrol", "sacct"):
        habit(command, FAKE, tmp_path, monkeypatch)
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    run = submit("slurm", tmp_path, 2, 1)
    assert run.status().counts == {JobState.PENDING: 1}
    called = (tmp_path / "called").read_text()
    assert {"sbatch other", "squeue other"} <= set(called.splitlines())
    monkeypatch.setenv("SLURM_CLUSTERS", "third")
    for verb in (run.cancel, run.status):
        with pytest.raises(ConfigError, match="if that is right, set SLURM_CLUSTERS='other' here"):
            verb()
        monkeypatch.delenv("SLURM_CLUSTERS", raising=False)
    assert (tmp_path / "called").read_text() == called


def test_a_site_without_scontrol_takes_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing says how large an array may be, it is submitted all the same."""
    for command in ("sbatch", "squeue"):
        habit(command, FAKE, tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", os.pathsep.join(os.environ["PATH"].split(os.pathsep)[:2]) + ":/bin")
    monkeypatch.setenv("SLURM_CLUSTERS", "here")
    run = submit("slurm", tmp_path, 2, 1)
    assert json.loads((run.path / "detached/jobs.json").read_text())["jobs"] == {"0": "7_0"}
