"""Workers as pods: the operator's KubeCluster, with its faults worked around.

options ──> spec of the DaskCluster ──guard started──> created, never joined ──pods watched──> KubeCluster
        (kube/spec.py)             (kube/guard.py)                     └──not up in time──> deleted; their events
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import ExitStack
from typing import Any

from espnet3.parallel.backends import Backend, load_cluster_class
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.dask_compat.clusters import StartsInTime
from espnet3.parallel.errors import ConfigError, NoWorkersError, ParallelError
from espnet3.parallel.kube.guard import Guard, delete_cluster
from espnet3.parallel.kube.manifests import RUN
from espnet3.parallel.kube.server import Server, events_of, holding, log_of, sentence
from espnet3.parallel.kube.spec import cluster_spec, owner_of
from espnet3.parallel.pilots.worker_cluster import WorkerCluster, listed, not_there

logger = logging.getLogger(__name__)

_ATTEMPTS = 3  # to create a cluster, where the operator overlooks one (dask-kubernetes issue 968)
_SHARE = 4  # of `start_timeout`, which one such attempt may take
_DELETION = 60.0  # seconds that the operator has to let go of a deleted cluster
_SHOWN = 3  # pods that a message describes one by one


def start_kube(row: Backend, config: ParallelConfig) -> Any:
    """Create the cluster; return when its scheduler runs, without waiting for workers."""
    make = load_cluster_class(row)
    server = Server(config.options.get("namespace"))
    late: BaseException | None = None
    with ExitStack() as undo:
        undo.callback(server.close)
        server.require_operator()
        server.require_rights()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                cluster = _create(make, config, server)
            except (TimeoutError, asyncio.TimeoutError) as error:  # two classes on Python 3.10
                logger.warning("the operator did not act on a new cluster, try %d: %s", attempt, error)
                late = error
            else:
                undo.pop_all()
                return cluster
    raise NoWorkersError(
        f"the operator of dask-kubernetes did not act on a new cluster, {_ATTEMPTS} times in a row: {late}. "
        "Look whether it runs: kubectl get pods -A -l app.kubernetes.io/name=dask-kubernetes-operator"
    ) from late


def _create(make: Any, config: ParallelConfig, server: Server) -> Any:
    run = uuid.uuid4().hex
    options = kube_options(config)
    options["namespace"] = server.namespace
    metadata = options["custom_cluster_spec"]["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), RUN: run}
    if (owner := owner_of(server)) is not None:  # the driver is a pod
        metadata["ownerReferences"] = [*(metadata.get("ownerReferences") or []), owner]
    name = metadata["name"]
    guard = Guard(server.namespace, name, run)
    facts = {"server": server, "guard": guard, "start_timeout": config.start_timeout}
    try:
        return type("PodCluster", (_Pods, make), facts)(**options)
    except BaseException as error:
        try:
            delete_cluster(server, name, run)
        except ParallelError as left:  # the guard goes on with it
            logger.warning("%s", left)
            raise error from None
        guard.release()
        import kr8s

        answer = error.response if isinstance(error, kr8s.ServerError) else None
        if answer is not None and answer.is_client_error:
            raise ConfigError(f"{server.place} refused what a cluster needs: {error}") from error
        raise


def kube_options(config: ParallelConfig) -> dict[str, Any]:
    """Return what KubeCluster is made with: a spec of our own, under a new name."""
    from dask_kubernetes.operator.kubecluster.kubecluster import CreateMode

    options = dict(config.options)
    # Joining the cluster of another run by its name would delete it when this run ends.
    options["create_mode"] = CreateMode(options.get("create_mode", "CREATE_ONLY"))
    options["custom_cluster_spec"] = cluster_spec(options, config)
    if options.get("resource_timeout") is None:
        options["resource_timeout"] = max(1, round(config.start_timeout / _SHARE))
    options.setdefault("quiet", True)  # its drawing of the start is not for logs
    return options


class _Pods(StartsInTime, WorkerCluster):
    # mixed into a KubeCluster
    server: Server
    guard: Guard
    name: str
    status: Any

    def missing(self) -> str:
        # the pods that do not run, or run without being ready, with their events and logs
        server, selector = self.server, f"dask.org/cluster-name={self.name}"
        try:
            pods = server.items(server.path("v1", "pods"), labelSelector=selector)
            waiting = [pod for pod in pods if holding(pod.get("status", {}), "Ready") is None]
            shown = []
            for pod in waiting[:_SHOWN]:
                own = pod["metadata"]["name"]
                look = f"kubectl -n {server.namespace} describe pod {own}"
                detail = "\n".join([*events_of(server, own), log_of(server, pod)]).strip()
                shown.append(not_there(f"pod {own}", sentence(pod), look, detail))
        except ParallelError as error:
            return listed([], no_answer=str(error))
        if not pods:
            look = f"kubectl -n {server.namespace} get events"
            return not_there(f"DaskCluster {self.name}", "has no pod: a quota may be used up", look)
        return listed(shown, len(waiting) - len(shown))

    async def too_late(self) -> None:
        missing = await asyncio.to_thread(self.missing)
        raise NoWorkersError(
            f"the scheduler of cluster {self.name} did not start within start_timeout = {self.start_timeout:g} s, and "
            f"the cluster is deleted; see to what its pods say, or raise start_timeout\n{missing}".rstrip()
        )

    def close(self, timeout: float = _DELETION) -> None:
        if self.status.name == "closed":
            return
        try:
            super().close(timeout=timeout)  # type: ignore[misc]  # mixed into one that has it
        except BaseException:  # the guard goes on with it when this process ends
            logger.warning("cluster %s is left to its guard, which deletes it", self.name)
            raise
        self.guard.release()
        self.server.close()
