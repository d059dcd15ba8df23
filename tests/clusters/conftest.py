"""Each module of tests uses one real scheduler, which is started before it and stopped after."""

import os

import psutil
import pytest

from espnet3.parallel import set_parallel
from tests.clusters.labs import LABS, STATE


@pytest.fixture(scope="module")
def started():
    """Return a function that starts a scheduler by name; all are stopped after the module."""
    running = []

    def start(name):
        lab = LABS[name]
        before = dict(os.environ)
        running.append((lab, before))
        os.environ.update(lab.start())
        return lab

    yield start
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


def beyond_loopback():
    """Return the sockets that listen on a public address, of processes of ours."""
    return [
        (psutil.Process(c.pid).cmdline() if c.pid else "?", c.laddr)
        for c in psutil.net_connections(kind="inet")
        if c.status == psutil.CONN_LISTEN and not c.laddr.ip.startswith("127.") and c.laddr.ip != "::1"
    ]


@pytest.fixture(scope="session", autouse=True)
def _only_here():
    """Refuse to run where a mistake would reach other machines or leave something."""
    if not STATE.is_dir() or "ESPNET3_CLUSTERS" not in os.environ:
        pytest.exit("tests on real schedulers run by `make test-clusters`", returncode=3)
