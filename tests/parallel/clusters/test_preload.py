"""Nannies leave no semaphore behind, however their jobs end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Nanny, Scheduler

from espnet3.parallel import get_client, parallel_map
from espnet3.parallel.backends import row
from espnet3.parallel.clusters.job_cluster import plan_jobs
from espnet3.parallel.config import ParallelConfig
from tests.habits import rows
from tests.parallel.clusters.ssh_server import ssh_server
from tests.standins import standin
from tests.waiting import wait_until


def mapped(pid: int) -> set[str]:
    """Return the semaphores that a process has open."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[5] for line in lines if "/dev/shm/sem." in line}  # where glibc puts them


def on_pbs(folder: Path) -> Any:
    """Return a block of jobs."""
    options = {"cores": 1, "memory": "1GB", "interface": "lo", "walltime": "10m"}
    return {"env": "pbs", "n_workers": 1, "options": options}


def over_ssh(folder: Path, connect: dict[str, Any]) -> Any:
    """Return a block of hosts."""
    options = {
        "hosts": ["127.0.0.1", "127.0.0.2"],
        "connect_options": connect,
        "scheduler_options": {"host": "127.0.0.1", "port": 0},
        "worker_options": {"host": "127.0.0.1", "nthreads": 1},
    }
    return {"env": "ssh", "n_workers": 1, "start_timeout": 600, "options": options}


@pytest.fixture
def block(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the block of an env that has nannies."""
    monkeypatch.chdir(tmp_path)
    if request.param == "pbs":
        with standin("pbs"):
            yield on_pbs(tmp_path)
    else:
        with ssh_server(tmp_path) as connect:
            yield over_ssh(tmp_path, connect)


def pids(client: Any) -> set[int]:
    """Return the processes of the workers that answer."""
    return set(client.run(os.getpid, on_error="ignore").values())


def nannies(client: Any) -> list[psutil.Process]:
    """Return the parents of the workers."""
    return [psutil.Process(psutil.Process(pid).ppid()) for pid in pids(client)]


@pytest.mark.parametrize("block", rows(["pbs", "ssh"], ("pbs",)), indirect=True)
def test_nannies_have_no_semaphore(block: Any) -> None:
    """Neither a nanny nor its worker has one open, so there is none to leave, and a killed worker comes back."""
    with get_client(block) as client:
        client.wait_for_workers(1, timeout=600)
        assert parallel_map(abs, [-1, -2]) == [1, 2]
        (nanny,) = nannies(client)
        (worker,) = pids(client)
        assert not mapped(nanny.pid) and not mapped(worker)
        os.kill(worker, signal.SIGKILL)
        # while its connection closes, a worker cannot be asked
        wait_until(lambda: pids(client) - {worker}, every=0.1)
        assert nannies(client) == [nanny]
        assert parallel_map(abs, [-1, -2]) == [1, 2]


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
