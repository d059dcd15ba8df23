"""Sites whose scheduler's commands print more than usual, refuse, fail or hang, with a driver."""

import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from espnet3.parallel import WorkerSetupError, get_client, parallel_map
from espnet3.parallel.backends import row
from espnet3.parallel.clusters import keeper
from espnet3.parallel.clusters.job_cluster import plan_jobs
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.jobs import commands
from tests.habits import rows
from tests.sites import CANCEL, habit
from tests.standins import standin
from tests.standins.place import block
from tests.waiting import wait_until

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
    assert f"may be left in the queue: qdel {jobs[0]} " in caplog.text
    assert f"Cancel them with: qdel {jobs[0]}" in caplog.text
    assert said in caplog.text and all(job in caplog.text for job in jobs)


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
    here, node = tmp_path / "my runs", tmp_path / "node"
    here.mkdir()
    node.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("TMPDIR", str(node))
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
            assert len(list(node.glob("espnet3-dask-*"))) == 2
        wait_until(lambda: not queue.unfinished())
        assert not list(here.iterdir()) and not list(node.iterdir())


def test_a_job_that_is_listed_without_its_worker_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a lost node: PBS lists a job as running whose worker came and went within one look at the queue."""
    monkeypatch.setattr(keeper, "_AWAY", 2.0)
    launcher = tmp_path / "launcher"
    launcher.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\nexec sleep 1000\n')
    launcher.chmod(0o700)
    config = block("pbs", 1)
    config["options"]["python"] = str(launcher)
    slow = 'until [ -e "$MINE/gone" ]; do sleep 0.1; done; exec "$OWN" "$@"'
    with standin("pbs") as queue:
        mine = habit("qstat", slow, tmp_path, monkeypatch)
        with get_client(config) as client:
            client.wait_for_workers(1, timeout=600)
            (worker,) = client.run(os.getpid).values()
            nanny = psutil.Process(worker).parents()[0]
            for process in (nanny, psutil.Process(worker)):
                process.kill()
            wait_until(lambda: not client.scheduler_info()["workers"])
            (mine / "gone").touch()
            assert parallel_map(abs, range(-10, 0), client=client) == list(range(10, 0, -1))
            assert [each.ended_by for each in queue.jobs()] == ["cancel", ""]
    assert "runs (R), and its worker has been gone for 2 s; another one takes its place" in caplog.text


def ends_its_job() -> None:
    os.killpg(int(os.environ["JOB"]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_env_with_which_each_job_ends_is_an_error() -> None:
    """As one for which a job has too little memory, where the scheduler ends the whole job: four of them try."""
    config = block("pbs", 1, nanny=False, job_script_prologue=["export JOB=$$"])
    with standin("pbs") as queue, get_client(config, setup_fn=ends_its_job):
        said = "(?s)4 processes in a row ended while they built it; the last one, .* went with its job"
        with pytest.raises(WorkerSetupError, match=said):
            parallel_map(abs, range(-10, 0))
        assert len(queue.jobs()) in (4, 5)  # the keeper may just have submitted another one
