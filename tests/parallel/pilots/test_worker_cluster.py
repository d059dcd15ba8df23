"""What a cluster does for its driver: a worker is ended on its own host alone, and leaves nothing in a client."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from espnet3.parallel import get_client, parallel_map
from espnet3.parallel.pilots.worker_cluster import WorkerCluster
from tests.parallel.pilots.items import process_of


@pytest.fixture
def sleeper():
    """A process of this host that waits to be killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_worker_of_another_host_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    """A pid is killed on the host it was named with, and nowhere else; one that has ended already is no error."""
    cluster = WorkerCluster()
    cluster.kill_worker("elsewhere", sleeper.pid)
    assert sleeper.poll() is None
    cluster.kill_worker(socket.gethostname(), sleeper.pid)
    assert sleeper.wait(600) == -signal.SIGKILL
    cluster.kill_worker(socket.gethostname(), sleeper.pid)


def test_workers_that_come_and_go_leave_no_descriptor_in_a_client() -> None:
    """A client that sees many workers come and go, as an autoscaled one does for days, keeps no channel of theirs."""
    rounds, descriptors = 12, []
    with get_client({"env": "local", "n_workers": 1, "start_timeout": 600}) as client:
        for _ in range(rounds):
            (worker,) = set(parallel_map(process_of, range(3), client=client))
            descriptors.append(len(os.listdir("/dev/fd")))
            os.kill(worker, signal.SIGKILL)
    # a few belong to the worker that comes or goes just now
    assert descriptors[-1] - descriptors[1] < rounds / 2, descriptors
