"""The process that deletes a DaskCluster when its driver is gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.parallel.kube.guard import Guard
from tests.parallel.kube.standin import kubernetes

LABELS = {"espnet3-run": "ours"}


@pytest.mark.parametrize(("labels", "stays"), [(LABELS, False), ({"espnet3-run": "theirs"}, True)])
def test_a_cluster_is_deleted_where_its_driver_left_it(
    labels: dict[str, str], stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes where the guard's parent is not the driver any more; a guard that is released deletes none."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with kubernetes(tmp_path) as server:
        server.clusters["mine"] = {"metadata": {"name": "mine", "labels": labels}}
        guard = Guard("default", "mine", "ours")
        guard.release()
        assert "mine" in server.clusters
        words = ["-m", "espnet3.parallel.kube.guard", "default", "mine", "ours", "0"]
        subprocess.run([sys.executable, *words], timeout=600, check=True)
        assert ("mine" in server.clusters) is stays


DRIVER = """
import os, signal, time
from espnet3.parallel.kube.guard import Guard

Guard("default", "mine", "ours")
if os.fork() == 0:
    print("forked", flush=True)
    time.sleep(600)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_that_outlives_the_driver_does_not_keep_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that the driver forked lives on: the guard sees that its parent is gone."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with kubernetes(tmp_path) as server:
        server.clusters["mine"] = {"metadata": {"name": "mine", "labels": LABELS}}
        with subprocess.Popen(
            [sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, start_new_session=True
        ) as driver:
            try:
                driver.wait(600)
                server.deleted.wait(600)
                assert "mine" not in server.clusters
            finally:
                os.killpg(driver.pid, signal.SIGKILL)  # the child
