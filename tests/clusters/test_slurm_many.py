"""Two hundred workers on a real SLURM: one command starts them, and each is watched and replaced by itself."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from espnet3.parallel import get_client, parallel_map
from tests.clusters.conftest import STATE
from tests.clusters.counted import Counted
from tests.clusters.labs import SLURM
from tests.clusters.work import nap
from tests.waiting import wait_until

pytestmark = [pytest.mark.clusters, pytest.mark.timeout(600)]
WORKERS = 200


@pytest.fixture(scope="module", autouse=True)
def slurm(started):
    """Start nodes that believe they have room for all of them."""
    return started("slurm", LAB_CPUS=str(WORKERS // 4 + 10), LAB_MEMORY="20000", LAB_LOOK="300")


@pytest.fixture
def submissions(tmp_path, monkeypatch):
    """Return a function that tells how often `sbatch` was called."""
    log, real = tmp_path / "submissions", shutil.which("sbatch")
    counting = tmp_path / "bin" / "sbatch"
    counting.parent.mkdir()
    counting.write_text(f'#!/bin/sh\necho "$*" >>"{log}"\nexec "{real}" "$@"\n')
    counting.chmod(0o755)
    monkeypatch.setenv("PATH", f"{counting.parent}:{os.environ['PATH']}")
    return lambda: log.read_text().count("\n") if log.exists() else 0


def elements(*states):
    """Return the elements of job arrays in the queue: 12_3."""
    command = ["squeue", "-h", "-r", "-o", "%i", "-t", ",".join(states)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_two_hundred_workers_are_one_submission(submissions, tmp_path):
    """All come and work; one that is cancelled is replaced by itself, and all end with the client."""
    run = Counted(tmp_path, 5 * WORKERS, 0.05)
    begin = time.perf_counter()
    # this machine has two cores for all of them: the driver comes first, as it does where jobs have nodes of their own,
    # and workers do no more than they must
    gentle = {
        "worker_extra_args": ["--no-nanny"],
        "death_timeout": 400,
        "job_script_prologue": [
            "renice -n 19 $$",
            "export DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=false",
            "export DASK_DISTRIBUTED__WORKER__MEMORY__MONITOR_INTERVAL=60s",
            "export DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL=10s",
            "export DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL=60s",
        ],
    }
    block = {**SLURM.block(WORKERS, memory="150MB", **gentle), "start_timeout": 500}
    with get_client(block) as client:
        assert parallel_map(nap, range(10)) == list(range(10))
        first = time.perf_counter() - begin
        client.wait_for_workers(WORKERS, timeout=500)
        every = time.perf_counter() - begin
        assert submissions() == 1
        assert len(elements("R")) == WORKERS
        victim = elements("R")[17]

        def strike():
            subprocess.run(["scancel", victim], check=True)
            wait_until(
                lambda: submissions() == 2 and len({*elements("R")} - {victim}) == WORKERS, 120, every=0.5
            )

        results = run.meanwhile(strike, after=WORKERS)
    # a node that two cores are too busy to answer for may be taken for lost, and its worker with it
    run.check(results, killed=max(1, run.runner.summary.deaths))
    said = f"slurm, {WORKERS} workers: first result {first:.1f}, all there {every:.1f}, by 1 sbatch\n"
    with open(Path(STATE) / "tmp" / "start-seconds", "a", encoding="utf-8") as file:
        file.write(said)
