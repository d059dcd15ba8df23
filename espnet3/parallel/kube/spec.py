"""Builds the DaskCluster of a run from the options of `env: kube`."""

from __future__ import annotations

import copy
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import ConfigError, ParallelError
from espnet3.parallel.kube import manifests
from espnet3.parallel.kube.server import Server

logger = logging.getLogger(__name__)

_SPEC = ("image", "resources", "env", "worker_command", "scheduler_service_type", "idle_timeout", "jupyter")
_EXAMPLE = "`espnet3-parallel plan` prints one that is made of options"
_SERVICE_ACCOUNT = Path(os.sep, "var", "run", "secrets", "kubernetes.io", "serviceaccount", "namespace")


def cluster_spec(options: dict[str, Any], config: ParallelConfig) -> dict[str, Any]:
    """Move the DaskCluster's part out of the options, and return it as a spec."""
    env = manifests.variables(options)
    pod, container = manifests.pod_fields({name: options.pop(name, None) for name in manifests.OPTIONS})
    given = {name: options.pop(name) for name in _SPEC if options.get(name) is not None}
    n_workers = config.n_workers if config.adapt is None else config.adapt["minimum"]
    name = options.pop("name", None) or manifests.new_name()
    custom = options.pop("custom_cluster_spec", None)
    if custom is not None:
        beside = [each for each in (*given, *pod, *container) if each != "workingDir"]
        return _custom(custom, beside, n_workers)
    spec = _made(name, n_workers, given)
    scheduler, worker = spec["spec"]["scheduler"]["spec"], spec["spec"]["worker"]["spec"]
    for each in (scheduler, worker):
        each.update(copy.deepcopy(pod))
        each["containers"][0].update(copy.deepcopy(container))
        each["containers"][0]["env"] = copy.deepcopy(env)
    scheduler["containers"][0]["resources"] = manifests.without_devices(given.get("resources"))
    return spec


def _made(name: str, n_workers: int, given: dict[str, Any]) -> dict[str, Any]:
    from dask_kubernetes.operator import make_cluster_spec

    if "image" not in given:
        logger.warning(
            "options.image is not given: Dask's own image has neither this package nor your code, and perhaps "
            "another Python than %d.%d here; build one that has them",
            *sys.version_info[:2],
        )
    # KubeCluster's default names a script that distributed no longer has since 2026.6. One thread: an env is shared by
    # the threads of a process
    given.setdefault("worker_command", ["dask", "worker", "--nthreads", "1"])
    spec: dict[str, Any] = make_cluster_spec(name=name, n_workers=n_workers, **given)
    (scheduler,) = spec["spec"]["scheduler"]["spec"]["containers"]
    if scheduler["args"][:1] == ["dask-scheduler"]:
        scheduler["args"][:1] = ["dask", "scheduler"]
    return spec


def _custom(custom: Any, beside: list[str], n_workers: int) -> dict[str, Any]:
    import yaml

    if beside:
        raise ConfigError(
            f"options.custom_cluster_spec is the whole cluster: options {', '.join(beside)} beside it have no effect; "
            "write them into it"
        )
    if isinstance(custom, str):
        try:
            custom = yaml.safe_load(Path(custom).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"options.custom_cluster_spec cannot be read: {error}") from error
    made: dict[str, Any] = copy.deepcopy(custom)
    try:
        needed = made["metadata"]["name"], made["spec"]["scheduler"]["spec"]["containers"]
        made["spec"]["worker"]["replicas"] = n_workers
        wrong = "" if all(needed) and made["kind"] == "DaskCluster" else "its kind, name or containers"
    except (KeyError, TypeError) as error:
        wrong = str(error)
    if wrong:
        raise ConfigError(
            f"options.custom_cluster_spec is no DaskCluster: {wrong} is missing or wrong; {_EXAMPLE}"
        )
    return made


def owner_of(server: Server) -> dict[str, Any] | None:
    """Return a reference to the pod that this process runs in; None where it runs in none of the namespace."""
    try:
        if _SERVICE_ACCOUNT.read_text(encoding="utf-8").strip() != server.namespace:
            return None  # an owner must be of the same namespace
        name = socket.gethostname()
        found = server.get(server.path("v1", "pods", name))
    except (OSError, ParallelError) as error:
        logger.debug("the cluster gets no owner: %s", error)
        return None
    if found is None:
        return None
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": found["metadata"]["uid"]}
