"""A nanny that is told to end does not wait for a worker that cannot connect."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from espnet3.parallel.backends import row
from espnet3.parallel.clusters.job_cluster import plan_jobs
from espnet3.parallel.config import ParallelConfig


def test_a_job_that_is_cancelled_while_its_scheduler_is_gone_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker takes the shell's place, gets its signal, and does not wait for the death-timeout of ten minutes."""
    monkeypatch.chdir(tmp_path)
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
