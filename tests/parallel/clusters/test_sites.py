"""Sites whose scheduler's commands print more than usual, refuse, fail or hang, with a driver."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from espnet3.parallel import ConfigError, SubmissionError, get_client, parallel_map
from espnet3.parallel.backends import row
from espnet3.parallel.clusters.job_cluster import plan_jobs
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.jobs import commands
from tests.habits import rows
from tests.parallel.clusters.test_arrays import STANDINS, block
from tests.sites import BANNER, BEFORE, CANCEL, SUBMIT, habit, somebody_elses
from tests.standins import StandIn, standin
from tests.waiting import wait_until


def others(queue: StandIn) -> list[int]:
    """Return the numbers of the jobs that wait or run."""
    return sorted({each.job for each in queue.unfinished()})


@pytest.mark.parametrize("env", rows(STANDINS, ("pbs",)))
def test_numbers_around_the_answer_are_no_jobs(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the site's submit command prints lines with numbers, the run's own jobs end with it, and no other job."""
    with standin(env) as queue:
        somebody_elses(env, tmp_path)
        habit(SUBMIT[env], BANNER, tmp_path, monkeypatch)
        with get_client(block(env, 2)) as client:
            assert parallel_map(abs, range(-10, 0), client=client) == list(range(10, 0, -1))
        wait_until(lambda: others(queue) == [1], said=queue.unfinished)
        assert len(queue.jobs()) == 3


@pytest.mark.parametrize("env", rows(STANDINS, ("moab",)))
def test_a_job_of_another_name_is_left_alone(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An id whose job the queue calls otherwise is not cancelled at the end of a run, and that is said."""
    with standin(env) as queue:
        somebody_elses(env, tmp_path)
        # an answer of the right form, with another job's number
        habit(SUBMIT[env], '"$OWN" "$@" | sed "s/2/1/g"', tmp_path, monkeypatch)
        with caplog.at_level(logging.WARNING), get_client(block(env, 1)) as client:
            client.wait_for_workers(1, timeout=600)
        assert 1 in others(queue)
        assert "is 'precious' in the queue" in caplog.text
        queue.cancel_all()


@pytest.mark.parametrize("env", rows(STANDINS, ("lsf",)))
def test_an_answer_without_an_id_is_shown(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has what the submit command printed, says that a job may be queued, and how to look for it."""
    with standin(env) as queue:
        habit(SUBMIT[env], f'"$OWN" "$@" >"$MINE/said"; {BEFORE}', tmp_path, monkeypatch)
        with pytest.raises(SubmissionError) as error, get_client(block(env, 2)):
            pass
        assert len(queue.unfinished()) == 2
    text = str(error.value)
    assert "a job may have been queued" in text and "no job was queued" not in text
    assert "MEMLIMIT set to 1 MB" in text
    assert {"pbs": "qstat", "lsf": "bjobs", "moab": "showq", "htcondor": "condor_q"}[env] in text


REFUSING = """
grep -q "^#PBS -J" "$1" && { echo "qsub: would exceed the limit on jobs per user" >&2; exit 1; }
for n in 1 2; do mkdir "$MINE/taken.$n" 2>/dev/null && exec "$OWN" "$@"; done
echo "qsub: would exceed the limit on jobs per user" >&2; exit 1
"""


def test_a_run_goes_on_with_the_jobs_that_a_site_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of four workers two are taken: the run works with them, and a warning says so and names n_workers."""
    with standin("pbs") as queue:
        habit("qsub", REFUSING, tmp_path, monkeypatch)
        with caplog.at_level(logging.WARNING), get_client(block("pbs", 4)) as client:
            assert parallel_map(abs, range(-10, 0), client=client) == list(range(10, 0, -1))
            client.wait_for_workers(2, timeout=600)
        wait_until(lambda: not queue.unfinished(), said=queue.unfinished)
        assert len(queue.jobs()) == 2
    assert "has taken 2 of 4 jobs" in caplog.text and "n_workers" in caplog.text


def test_a_submit_command_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first submission has `start_timeout`; what the command has started ends with it."""
    with standin("pbs"):
        mine = habit("qsub", 'sleep 1000 & echo $! >"$MINE/pid"; wait', tmp_path, monkeypatch)
        with (
            pytest.raises(SubmissionError, match="did not answer within 2 s"),
            get_client({**block("pbs", 2), "start_timeout": 2}),
        ):
            pass
        pid = int((mine / "pid").read_text())
        wait_until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize(
    ("code", "said"),
    rows(
        [("sleep 1000", "did not answer within"), ("echo 'not now' >&2; exit 1", "ended with 1: not now")],
        [("sleep 1000", "did not answer within")],
    ),
    ids=["hangs", "fails"],
)
def test_a_cancel_command_that_does_nothing_keeps_no_call(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A finished call returns its results though its jobs cannot be cancelled, and names them."""
    monkeypatch.setattr(commands, "AT_END", 3.0)
    with standin("pbs"), caplog.at_level(logging.WARNING), get_client(block("pbs", 1)) as client:
        assert parallel_map(abs, range(-10, 0), client=client) == list(range(10, 0, -1))
        habit(CANCEL["pbs"], code, tmp_path, monkeypatch)
        jobs = [job.job_id for job in client.cluster.workers.values()]
    assert "may be left in the queue" in caplog.text
    assert said in caplog.text and all(job in caplog.text for job in jobs)


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("slurm", {"job_extra_directives": ["--hold --clusters=a,b"]}),
        ("slurm", {"job_script_prologue": ["#SBATCH -M other"]}),
        ("pbs", {"queue": "gpu@elsewhere"}),
        ("htcondor", {"submit_command_extra": ["-name", "other"]}),
    ],
    ids=lambda each: str(next(iter(each.values()))) if isinstance(each, dict) else each,
)
def test_another_cluster_is_refused(env: str, options: dict[str, Any], tmp_path: Path) -> None:
    """An option that sends jobs where no other command looks for them is an error, before anything is submitted."""
    config = block(env, 2)
    config["options"].update(options)
    with pytest.raises(ConfigError, match="another cluster") as error, get_client(config):
        pass
    assert env != "slurm" or "SLURM_CLUSTERS" in str(error.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SBATCH_CLUSTERS", "other"), ("SLURM_CLUSTERS", "a,b")],
)
def test_variables_that_scatter_jobs_are_refused(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of sbatch alone, and several clusters at once, are refused as the directive is."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"{variable}={value} sends jobs"), get_client(block("slurm", 2)):
        pass


def test_a_job_that_is_cancelled_while_its_scheduler_is_gone_ends_at_once(tmp_path: Path) -> None:
    """The worker takes the shell's place, gets its signal, and does not wait for the death-timeout of ten minutes."""
    options = {"cores": 1, "memory": "1GB", "death_timeout": 600, "local_directory": str(tmp_path)}
    script = plan_jobs(row("pbs"), ParallelConfig.parse({"env": "pbs", "options": options})).script
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen(["sh", "-c", script.replace("tcp://SCHEDULER:PORT", address)]) as job:
            silent.accept()[0].close()  # the nanny is up
            everybody = [job, *psutil.Process(job.pid).children(recursive=True)]
            job.terminate()
            job.wait(600)
            assert not psutil.wait_procs(everybody[1:], timeout=600)[1]


def test_jobs_write_their_own_output_and_pbs_delivers_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PBS would deliver after the end, into a folder that is gone by then; in a folder with a space it is there too."""
    here = tmp_path / "my runs"
    here.mkdir()
    monkeypatch.chdir(here)
    with standin("pbs") as queue:
        with get_client(block("pbs", 2)) as client:
            client.wait_for_workers(2, timeout=600)
            assert parallel_map(abs, [-1, -2]) == [1, 2]
            (folder,) = here.glob("espnet3-pbs-*")
            jobs = queue.jobs()
            written = {path.name for path in folder.iterdir()}
            assert written == {f"{each.job}[{each.index}].out" for each in jobs}
            assert all("Start worker at" in (folder / name).read_text() for name in written)
            assert {each.output for each in jobs} | {each.error for each in jobs} == {"/dev/null"}
        wait_until(lambda: not queue.unfinished())
        assert not list(here.iterdir())
