"""A nanny that is told to end does not wait for a worker that cannot connect."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from distributed import Nanny, Scheduler

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


def test_a_nanny_that_closes_does_not_wait_for_a_worker_that_cannot_connect(tmp_path: Path) -> None:
    """The worker that has not come up is killed, and the nanny closes long before its death-timeout."""

    async def close_while_starting() -> None:
        options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
        async with Scheduler(**options) as scheduler:
            nanny = Nanny(
                scheduler.address,
                death_timeout=600,
                preload_nanny=["espnet3.parallel.clusters.preload"],
                preload=["import time; time.sleep(600)"],  # never comes up
                local_directory=str(tmp_path),
            )
            starting = asyncio.ensure_future(nanny.start())
            while nanny.process is None or nanny.process.pid is None:  # noqa: ASYNC110  # Dask has no event for it
                await asyncio.sleep(0.01)
            worker = psutil.Process(nanny.process.pid)
            await asyncio.wait_for(nanny.close(), 600)
            worker.wait(600)
            with pytest.raises(Exception, match=r"Nanny failed to start"):
                await starting

    asyncio.run(close_while_starting())
