"""The stand-ins behave as the schedulers they stand for, as far as they claim to."""

import subprocess

import pytest

from espnet3.parallel import NoWorkersError, SubmissionError, get_client, parallel_map
from espnet3.parallel.clusters import keeper
from tests.habits import pairs, rows
from tests.standins import Habit, standin
from tests.standins.place import NAMES, block
from tests.waiting import wait_until


def test_a_wrong_queue_is_said_at_once(monkeypatch, tmp_path):
    """The scheduler's own words arrive, with the command and its exit code."""
    monkeypatch.chdir(tmp_path)
    with (
        standin("pbs") as queue,
        pytest.raises(SubmissionError, match="Unknown queue") as error,
        get_client(block("pbs", queue="nosuch")),
    ):
        pass
    assert error.value.exit_code
    assert not queue.folder.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("env", rows(NAMES, ("pbs",)))
def test_jobs_that_die_at_their_start_show_their_log(env, monkeypatch, tmp_path):
    """After three such jobs the run ends, with the log's end in the message."""
    monkeypatch.chdir(tmp_path)
    prologue = ["echo the module is gone >&2", "exit 4"]
    with (
        standin(env) as queue,
        pytest.raises(NoWorkersError, match="jobs in a row ended at their start") as error,
        get_client(block(env, job_script_prologue=prologue)),
    ):
        parallel_map(square, range(4))
    assert "the module is gone" in str(error.value)
    assert not queue.folder.exists()


def square(x):
    """Return the square."""
    return x * x


@pytest.mark.parametrize(
    "answer", [pytest.param("echo cannot connect >&2; exit 1", marks=pytest.mark.matrix), "exit 0"]
)
def test_no_job_is_replaced_while_the_queue_does_not_answer(answer, monkeypatch, tmp_path):
    """Looks that fail, with or without an exit status, end no job; a job that is gone afterwards is replaced."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keeper, "_QUICK", 0.05)
    monkeypatch.setattr(keeper, "_UNKNOWN", 0.0)
    looks = tmp_path / "looks"
    looks.touch()
    with standin("pbs", slots=1) as queue, get_client(block("pbs")) as client:
        client.wait_for_workers(1, timeout=600)
        wait_until(lambda: len(queue.jobs()) == 2)
        qstat = queue.folder / "bin/qstat"
        real = qstat.read_text()
        failing = queue.folder / "bin/failing"
        failing.write_text(f"#!/bin/sh\necho . >>{looks}\n{answer}\n")
        failing.chmod(0o755)
        failing.replace(qstat)
        wait_until(lambda: len(looks.read_text().split()) > 10)
        assert len(queue.jobs()) == 2
        failing.write_text(real)
        failing.chmod(0o755)
        failing.replace(qstat)
        (waiting,) = (each for each in queue.jobs() if each.state == "waiting")
        subprocess.run(["qdel", f"{waiting.job}[{waiting.index}]"], check=True)
        wait_until(lambda: len(queue.jobs()) == 3)


@pytest.mark.parametrize(
    ("env", "habits"), pairs(["pbs", "lsf", "moab"], shift=1, together=False, alone=(Habit.PARTIAL_LISTING,))
)
def test_a_cluster_works_under_every_habit(env, habits, monkeypatch, tmp_path):
    """A driver's jobs are counted right, none is replaced without need, and all are gone at the end."""
    monkeypatch.chdir(tmp_path)
    with standin(env, habits=habits) as queue:
        with get_client(block(env)) as client:
            client.wait_for_workers(2, timeout=600)
            assert parallel_map(square, range(20)) == [x * x for x in range(20)]
        wait_until(lambda: not queue.unfinished())
        assert len(queue.jobs()) == 2
