"""Workers as pods: the operator's KubeCluster, with its faults worked around.

options ──> spec of the DaskCluster (commands that today's dask has) ──created, never joined──> KubeCluster
"""

from __future__ import annotations

import getpass
import logging
import os
import re
import sys
import uuid
from typing import Any

from espnet3.parallel.backends import Backend, load_cluster_class
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.dask_compat import kube_create_mode
from espnet3.parallel.errors import ConfigError, NoWorkersError

logger = logging.getLogger(__name__)

_ATTEMPTS = 3  # to create a cluster, where the operator overlooks one (dask-kubernetes issue 968)
_SPEC = ("image", "resources", "env", "worker_command", "scheduler_service_type", "idle_timeout", "jupyter")

_GROUP = "kubernetes.dask.org"
_INSTALL = (
    "helm install --repo https://helm.dask.org --create-namespace -n dask-operator --generate-name "
    "dask-kubernetes-operator"
)
_NO_CREDENTIALS = (
    "env: kube: no credentials for a Kubernetes cluster: there is no kubeconfig (KUBECONFIG, or ~/.kube/config) that "
    "names a server, and this is no pod with a service account. `kubectl config get-contexts` lists yours"
)


def start_kube(row: Backend, config: ParallelConfig) -> Any:
    """Create the cluster; return without waiting for workers.

    Raises:
        ConfigError: No API server can be used, or it has no operator.
        MissingPackageError: dask-kubernetes is not installed.
        NoWorkersError: The operator did not act on the new cluster.
    """
    make = load_cluster_class(row)
    check_server()
    for attempt in range(1, _ATTEMPTS + 1):
        options = kube_options(config)
        try:
            return make(**options)
        except TimeoutError as error:
            if attempt == _ATTEMPTS:
                raise NoWorkersError(
                    f"the operator of dask-kubernetes did not act on a new cluster, {attempt} times in a row: "
                    f"{error}. Look whether it runs: "
                    "kubectl get pods -A -l app.kubernetes.io/name=dask-kubernetes-operator"
                ) from error
            logger.warning("the operator did not act on a new cluster, try %d: %s", attempt, error)
    raise AssertionError("unreachable")


def kube_options(config: ParallelConfig) -> dict[str, Any]:
    """Return what KubeCluster is made with: a spec of our own, under a name that nobody has."""
    options = dict(config.options)
    # Joining the cluster of another run by its name would delete it when this run ends.
    options["create_mode"] = kube_create_mode(options.pop("create_mode", "CREATE_ONLY"))
    if options.get("custom_cluster_spec") is None:
        options["custom_cluster_spec"] = _spec(options, config.n_workers)
    else:
        options["n_workers"] = config.n_workers
    return options


def _spec(options: dict[str, Any], n_workers: int) -> dict[str, Any]:
    """Take what belongs to the spec out of the options, and return it."""
    from dask_kubernetes.operator import make_cluster_spec

    given = {name: options.pop(name) for name in _SPEC if options.get(name) is not None}
    if "image" not in given:
        logger.warning(
            "options.image is not given: Dask's own image has neither this package nor your code, and perhaps "
            "another Python than %d.%d here; build one that has them",
            *sys.version_info[:2],
        )
    # KubeCluster's default names a script that distributed no longer has since 2026.6
    given.setdefault("worker_command", ["dask", "worker"])
    user = re.sub(r"[^a-z0-9]+", "-", getpass.getuser().lower()).strip("-") or "user"
    name = options.pop("name", None) or f"espnet3-{user[:20]}-{uuid.uuid4().hex[:8]}"
    spec: dict[str, Any] = make_cluster_spec(name=name, n_workers=n_workers, **given)
    (scheduler,) = spec["spec"]["scheduler"]["spec"]["containers"]
    if scheduler["args"][:1] == ["dask-scheduler"]:
        scheduler["args"][:1] = ["dask", "scheduler"]
    return spec


def check_server() -> None:
    """Raise unless an API server answers whoever this is, and knows what dask-kubernetes creates.

    Raises:
        ConfigError: There are no credentials, nobody answers, the server refuses them, or the operator of
            dask-kubernetes is not installed; the message names the context and what to do.
    """
    import httpx
    import kr8s

    context = _context()
    place = "env: kube: the API server" + (f" of context {context!r}" if context else "")
    try:
        groups = {version.partition("/")[0] for version in kr8s.api().api_versions()}
    except ValueError as error:
        if "credentials" in str(error):
            raise ConfigError(_NO_CREDENTIALS) from error
        raise ConfigError(f"env: kube: the kubeconfig cannot be used: {error}") from error
    except (httpx.HTTPError, kr8s.APITimeoutError, OSError) as error:
        server = (
            f" at {error.request.url.copy_with(path='/')}" if isinstance(error, httpx.RequestError) else ""
        )
        raise ConfigError(
            f"{place}{server} does not answer: {str(error) or type(error).__name__}. `kubectl get nodes` asks it too; "
            "`kubectl config use-context` chooses another cluster"
        ) from error
    except kr8s.ServerError as error:
        raise ConfigError(f"{place} refuses this user: {error}") from error
    if _GROUP not in groups:
        raise ConfigError(
            f"{place} does not know {_GROUP}: the operator of dask-kubernetes, which makes pods of a "
            f"DaskCluster, is not installed there. An administrator can: {_INSTALL}"
        )


def _context() -> str:
    """Return the name of the current context, as kubectl finds it: of the first file in KUBECONFIG that has one."""
    import yaml

    named = os.environ.get("KUBECONFIG")
    for name in named.split(os.pathsep) if named else ["~/.kube/config"]:
        try:
            with open(os.path.expanduser(name), encoding="utf-8") as file:
                config = yaml.safe_load(file)
        except (OSError, ValueError, yaml.YAMLError):  # kr8s, which reads it too, has the last word
            continue
        if isinstance(config, dict) and config.get("current-context"):
            return str(config["current-context"])
    return ""
