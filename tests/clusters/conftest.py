"""Each module of tests uses one real scheduler, which is started before it and stopped after."""

import contextlib
import os

import psutil
import pytest

from espnet3.parallel import set_parallel
from tests.clusters.labs import LABS, STATE

RUNNING = []  # the labs that the current module has started


@pytest.fixture(scope="module")
def started():
    """Return a function that starts a scheduler by name; all are stopped after the module."""
    running = []

    def start(name):
        lab = LABS[name]
        before = dict(os.environ)
        running.append((lab, before))
        os.environ.update(lab.start())
        RUNNING.append(lab)
        return lab

    yield start
    RUNNING.clear()
    for lab, before in reversed(running):
        lab.stop()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    """Start from the default configuration, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    set_parallel(None)
    yield
    set_parallel(None)


def ours():
    """Return the processes of this user with their command lines."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.uids().real == os.getuid():
                yield process, " ".join(process.cmdline())


def beyond_loopback():
    """Return the sockets of this user's processes that listen on more than loopback."""
    found = []
    for process, command in ours():
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in process.net_connections(kind="inet"):
                listens = each.status == psutil.CONN_LISTEN
                if listens and not each.laddr.ip.startswith("127.") and each.laddr.ip != "::1":
                    found.append((command, each.laddr))
    return found


@pytest.fixture(autouse=True)
def _clean(request):
    """After every test the queues are empty, no worker runs, and nothing of ours listens beyond loopback.

    A class keeps one cluster for all its tests, and looks at the queue when it is closed.
    """
    yield
    assert not beyond_loopback()
    if request.cls is None:
        for lab in RUNNING:
            lab.wait_for_empty_queue()
        workers = [process for process, command in ours() if any(each in command for each in WORKERS)]
        assert not psutil.wait_procs(workers, timeout=60)[1]


WORKERS = ("distributed.cli.dask_worker", "distributed.cli.dask_spec", "espnet3.parallel.worker")


@pytest.fixture(scope="session", autouse=True)
def _only_here():
    """Refuse to run where a mistake would reach other machines or leave something."""
    if not STATE.is_dir() or "ESPNET3_CLUSTERS" not in os.environ:
        pytest.exit("tests on real schedulers run by `make test-clusters`", returncode=3)
