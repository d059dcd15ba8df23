"""Deletes a run's DaskCluster when its driver is gone: a process of its own, since a killed driver cleans nothing up.

    driver ──starts──> python -m espnet3.parallel.kube.guard NAMESPACE NAME RUN PID
       └── is its parent no more ──> the cluster NAME is deleted, if it carries the label of this run

A driver that is a pod itself owns its cluster too, so that Kubernetes deletes it together with that pod.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from espnet3.parallel.errors import ParallelError
from espnet3.parallel.kube.manifests import RUN
from espnet3.parallel.kube.server import RefusedError, Server

_LOOK = 1.0  # seconds between looks for the driver: a child that it forked would hold a pipe open
_TRY = 600.0  # seconds to keep asking a server that does not answer


class Guard:
    """The driver's end of it; `run` is the value of the label `espnet3-run` that the cluster carries."""

    def __init__(self, namespace: str, name: str, run: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "espnet3.parallel.kube.guard", namespace, name, run, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))},
            start_new_session=True,
        )

    def release(self) -> None:
        """End it: the cluster is deleted. Called more than once it does nothing."""
        self._process.kill()  # a driver that ignores SIGTERM has started it so
        self._process.wait()


def main(namespace: str, name: str, run: str, driver: str) -> None:
    """Wait for the driver's end, and delete what it has left."""
    while os.getppid() == int(driver):
        time.sleep(_LOOK)
    end = time.monotonic() + _TRY
    while time.monotonic() < end:
        try:
            with suppress(RefusedError), Server(namespace) as server:
                delete_cluster(server, name, run)
            break
        except ParallelError:
            time.sleep(5)  # nothing tells when a server comes back


def delete_cluster(server: Server, name: str, run: str) -> None:
    """Delete a DaskCluster of this run; leave one of the same name that another run has made."""
    path = server.path("kubernetes.dask.org/v1", "daskclusters", name)
    found: Any = server.get(path)
    if found is not None and found["metadata"].get("labels", {}).get(RUN) == run:
        server.delete(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
