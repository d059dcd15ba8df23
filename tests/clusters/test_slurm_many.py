"""Two hundred workers on a real SLURM: one command starts them, and each is watched and replaced by itself."""

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

# every wait in it ends after ten minutes
pytestmark = [pytest.mark.clusters, pytest.mark.timeout(2400)]
WORKERS = 200


@pytest.fixture(scope="module", autouse=True)
def slurm(started):
    """Start nodes that believe they have room for all of them."""
    return started("slurm", LAB_CPUS=str(WORKERS // 4 + 10), LAB_MEMORY="20000", LAB_LOOK="300")


def job_ids(client):
    """Return the ids of the jobs that the client's cluster has now: 12_3 is the element 3 of the array 12."""
    return {job.job_id for job in list(client.cluster.workers.values())}


def test_two_hundred_workers_are_one_submission(tmp_path):
    """All are elements of one array and work; one that is cancelled is replaced by itself."""
    run = Counted(tmp_path, 5 * WORKERS, 0.05)
    seconds = []
    begin = time.perf_counter()
    # this machine has two cores for all of them: the driver comes first, as it does where jobs have nodes of their own,
    # and workers do no more than they must
    gentle = {
        "walltime": "01:00:00",
        "worker_extra_args": ["--no-nanny"],
        "death_timeout": 2400,
        "job_script_prologue": [
            "renice -n 19 $$",
            "export DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=false",
            "export DASK_DISTRIBUTED__WORKER__MEMORY__MONITOR_INTERVAL=60s",
            "export DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL=10s",
            "export DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL=60s",
        ],
    }
    block = {**SLURM.block(WORKERS, memory="150MB", **gentle), "start_timeout": 600}
    with get_client(block) as client:
        first = job_ids(client)
        assert len(first) == WORKERS
        assert len({job.partition("_")[0] for job in first}) == 1
        assert parallel_map(nap, range(10)) == list(range(10))
        seconds.append(time.perf_counter() - begin)

        # a node that two cores are too busy to answer for is taken for lost, and its workers are replaced while there
        # is work: so all of them are waited for in the middle of a run, and the array keeps some of them at least
        def strike():
            wait_until(lambda: len(run.workers()) >= WORKERS, every=0.2)
            seconds.append(time.perf_counter() - begin)
            victim = next(iter(first & job_ids(client)))
            subprocess.run(["scancel", victim], check=True)
            wait_until(lambda: victim not in (now := job_ids(client)) and len(now) == WORKERS, every=0.2)
            assert first & job_ids(client)

        results = run.meanwhile(strike, after=10)
    run.check(results, killed=max(1, run.runner.summary.deaths))
    said = f"slurm, {WORKERS} workers: first result %.1f, all there %.1f, by 1 sbatch\n" % tuple(seconds)
    with open(Path(STATE) / "tmp" / "start-seconds", "a", encoding="utf-8") as file:
        file.write(said)
