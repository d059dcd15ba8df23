"""Each module of tests uses one real scheduler, which is started before it and stopped after."""

import contextlib
import os
import re
from pathlib import Path

import psutil
import pytest

from tests.clusters.labs import LABS, STATE
from tests.components.needed import left_out

if left_out("lightning"):
    collect_ignore = ["test_training.py"]

RUNNING = []  # the labs that the current module has started


@pytest.fixture(scope="module")
def started():
    """Return a function that starts a scheduler by name, once; all are stopped after the module.

    What it is given beside the name are variables for the scheduler's start.sh.
    """
    running = []

    def start(name, **settings):
        lab = LABS[name]
        if lab in RUNNING:  # a second start would remove the folder that the first one's daemons use
            return lab
        before = dict(os.environ)
        running.append((lab, before))
        os.environ.update(lab.start(settings))
        RUNNING.append(lab)
        return lab

    yield start
    RUNNING.clear()
    for lab, before in reversed(running):
        lab.stop()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def slurm(started):
    """Return a running SLURM."""
    return started("slurm")


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    """Start in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def ours():
    """Return the processes of this user with their command lines."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.uids().real == os.getuid():
                yield process, " ".join(process.cmdline())


# as the kernel writes addresses
LOOPBACK = re.compile(r"[0-9A-F]{6}7F|0{24}01000000|0{16}FFFF0000[0-9A-F]{6}7F")
LISTENS = "0A"


def beyond_loopback():
    """Return the addresses beyond loopback, as /proc/net has them, on which processes of this user listen.

    The kernel says whose a socket is; the open files of a process of sshd are not for its own user to see.
    """
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, uid, *_ = line.split()
            address, _, port = local.partition(":")
            if state == LISTENS and int(uid) == os.getuid() and not LOOPBACK.fullmatch(address):
                found.append((address, int(port, 16)))
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
        wait_for_no_worker()


def wait_for_no_worker():
    """Assert that workers end; one that its scheduler left alone gives up after a minute."""
    workers = [process for process, command in ours() if any(each in command for each in WORKERS)]
    assert not psutil.wait_procs(workers, timeout=90)[1]


WORKERS = ("distributed.cli.dask_worker", "distributed.cli.dask_spec", "espnet3.parallel.worker")


@pytest.fixture(scope="session", autouse=True)
def _only_here():
    """Refuse to run where a mistake would reach other machines or leave something."""
    if not STATE.is_dir() or "ESPNET3_CLUSTERS" not in os.environ:
        pytest.exit("tests on real schedulers run by `make test-clusters`", returncode=3)


def pytest_terminal_summary(terminalreporter):
    """Print what tests found out: for the tables in docs/security.md and docs/backends.md."""
    found = {
        "start-seconds": "seconds from the call to the first result",
        "listeners": "who listens, where, and what another account gets",
    }
    for name, title in found.items():
        file = STATE / "tmp" / name
        if file.is_file():
            terminalreporter.section(title)
            terminalreporter.write_line(file.read_text(encoding="utf-8").rstrip())
