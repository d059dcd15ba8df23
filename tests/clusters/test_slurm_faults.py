"""Nodes, jobs and the controller itself fail in the middle of a run, on real SLURM."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from espnet3.parallel import get_client, parallel_map
from tests.clusters.counted import Counted
from tests.clusters.labs import HOME, SLURM
from tests.clusters.work import trouble
from tests.waiting import wait_until

pytestmark = [pytest.mark.clusters, pytest.mark.usefixtures("slurm")]


@pytest.fixture(autouse=True)
def _nothing_stays():
    """After each test all nodes are up and the queue is empty."""
    yield
    down = subprocess.run(
        ["sinfo", "-h", "-t", "down", "-o", "%N"], capture_output=True, text=True, check=True
    )
    if nodes := down.stdout.strip():
        scontrol("update", f"nodename={nodes.splitlines()[0]}", "state=resume")
    SLURM.wait_for_empty_queue()


def scontrol(*words):
    subprocess.run(["scontrol", *words], check=True)


def jobs(state="R"):
    """Return (id, node) of the jobs in a state."""
    done = subprocess.run(
        ["squeue", "-h", "-t", state, "-o", "%i|%N"], capture_output=True, text=True, check=True
    )
    return [line.split("|") for line in done.stdout.splitlines()]


def test_a_node_goes_down(tmp_path):
    """What a lost node had in hand is done elsewhere; all results come, nobody is blamed."""
    run = Counted(tmp_path, 120, 0.1)
    with get_client(SLURM.block(3)) as client:
        client.wait_for_workers(3, timeout=600)
        node = jobs()[0][1]
        results = run.meanwhile(
            lambda: scontrol("update", f"nodename={node}", "state=down", "reason=test"), after=20
        )
    run.check(results, killed=1)


def test_an_item_costs_its_process_alone(tmp_path):
    """A lock held for a minute, a crash and a lack of memory lose nothing; Dask's workers and their jobs live on."""
    with get_client(SLURM.block(2, memory="1GB")) as client:
        client.wait_for_workers(2, timeout=600)
        before, running = client.run(os.getpid), jobs()
        done = parallel_map(trouble, range(60), folder=str(tmp_path))
        assert [x for x, _ in done] == list(range(60))
        assert (client.run(os.getpid), jobs()) == (before, running)
    assert not {pid for _, pid in done} & set(before.values())
    assert len(list(tmp_path.iterdir())) == 2


def test_a_preempted_job_is_requeued_and_comes_back(tmp_path):
    """A job of a higher partition takes a node; the preempted worker's items are not lost, it is not replaced."""
    run = Counted(tmp_path, 150, 0.1)
    with get_client(SLURM.block(2, cores=4)) as client:
        client.wait_for_workers(2, timeout=600)
        (victim, node), _ = jobs()

        def preempt():
            script = "sleep 2"
            subprocess.run(
                ["sbatch", "-p", "high", "-n1", "-c4", "-w", node, "-o", "/dev/null", "--wrap", script],
                check=True,
                capture_output=True,
            )
            wait_until(lambda: victim in dict(jobs("PD")), every=0.1)
            scontrol("update", f"jobid={victim}", "StartTime=now")

        results = run.meanwhile(preempt, after=20)
        assert victim in dict(jobs("R,PD,CF,CG"))
    run.check(results, killed=1)


@pytest.mark.timeout(400)
def test_work_that_is_longer_than_the_walltime(tmp_path):
    """Four minutes of work in jobs of one minute: workers end in time, and new ones go on."""
    run = Counted(tmp_path, 240, 1.0)
    with get_client(SLURM.block(4, walltime="00:01:00")) as client:
        client.wait_for_workers(4, timeout=600)
        results = run.runner(range(run.n))
    run.check(results)
    assert len({job for _, job, _ in results}) > 4
    assert max(run.begun().values()) == 1, "an item was lost at the end of a worker's time"


def test_jobs_in_the_place_of_others_may_wait_for_long(tmp_path):
    """Once a worker has come, a run goes on without any for longer than `start_timeout`, while a job is queued."""
    run = Counted(tmp_path, 60, 0.1)

    def end_job():
        scontrol("update", "partitionname=debug", "state=down")
        try:
            subprocess.run(["scancel", jobs()[0][0]], check=True)
            wait_until(lambda: jobs("PD"), every=0.2)
            time.sleep(45)  # the fault itself: for so long no job begins
        finally:
            scontrol("update", "partitionname=debug", "state=up")

    with get_client({**SLURM.block(1), "start_timeout": 40}) as client:
        client.wait_for_workers(1, timeout=600)
        results = run.meanwhile(end_job, after=10)
    run.check(results, killed=1)


def test_the_controller_restarts(tmp_path):
    """slurmctld goes away for a moment in the middle of a run: the run goes on."""
    run = Counted(tmp_path, 120, 0.1)
    pid_file = HOME / "slurm" / "pid" / "slurmctld.pid"

    def restart():
        pid = int(pid_file.read_text())
        os.kill(pid, 15)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), every=0.05)
        time.sleep(1)  # the fault itself: for so long there is none
        subprocess.run(["/usr/sbin/slurmctld"], check=True)

    with get_client(SLURM.block(2)) as client:
        client.wait_for_workers(2, timeout=600)
        results = run.meanwhile(restart, after=20)
    run.check(results)


def test_a_node_where_jobs_die_is_avoided(tmp_path):
    """A node that lets jobs die at their start gets no second one."""
    bad = 'test "$SLURMD_NODENAME" != n2 || { echo this node is broken >&2; exit 9; }'
    run = Counted(tmp_path, 100, 0.1)
    # two of four cpus each: with LLN the four jobs go to four nodes
    with get_client(SLURM.block(4, cores=2, job_script_prologue=[bad])) as client:
        client.wait_for_workers(4, timeout=600)
        results = run.runner(range(run.n))
    run.check(results)
    assert "n2" not in {node for _, _, node in results}
