"""The manifests of `espnet3-parallel plan`, and the questions of `espnet3-parallel doctor` to the API server."""

from __future__ import annotations

import json
import os
from typing import Any

from espnet3.parallel.backends import BACKENDS, load_cluster_class
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import ParallelError
from espnet3.parallel.kube.manifests import INDEXED, PER_INDEX, JobFacts, is_mounted, manifests
from espnet3.parallel.kube.server import RefusedError, Server
from espnet3.parallel.kube.spec import cluster_spec
from espnet3_parallel.output import Tell

# needed by a run with a driver and by a detached one: verb, group, resource
_DASK, _PODS = "kubernetes.dask.org", (("list", "", "pods"), ("get", "", "pods/log"))
_RIGHTS = {
    "with a driver": (
        *(("create", _DASK, "daskclusters"), ("delete", _DASK, "daskclusters")),
        *(("patch", _DASK, "daskworkergroups"), ("list", "", "pods"), ("get", "", "services")),
        *(("list", "", "events"), ("get", "", "pods/log")),
    ),
    "detached": (*((verb, "batch", "jobs") for verb in ("create", "list", "delete")), *_PODS),
}


def planned(config: ParallelConfig, n_shards: int) -> dict[str, tuple[str, str]]:
    """Return titles and manifests: of the DaskCluster of a run with a driver, and of the Job of a detached one."""
    load_cluster_class(BACKENDS[config.env])
    options = dict(config.options)
    found = {"driver": ("a run with a driver", _text(cluster_spec(dict(options), config)))}
    if options.get("custom_cluster_spec") is None:
        facts = JobFacts(
            run="RUN",
            name="espnet3-NAME",
            tasks="RUN/detached/jobs/tasks.0.json",
            n_workers=config.n_workers,
        )
        (job,) = manifests(facts, range(n_shards), options, PER_INDEX)
        older = ".".join(map(str, INDEXED))
        head = f"a detached run in the folder RUN; a server before {older} gets a plain Job for each shard"
        found["detached"] = (head, _text(job))
    return found


def _text(manifest: dict[str, Any]) -> str:
    import yaml

    alone = json.loads(json.dumps(manifest))  # parts that are one object would be written as references
    return str(yaml.safe_dump(alone, sort_keys=False)).rstrip()


def look_at_kubernetes(config: ParallelConfig, tell: Tell) -> None:
    """Ask the API server all that needs no pod."""
    with Server(config.options.get("namespace")) as server:
        place, version = server.place.removeprefix("env: kube: "), ".".join(map(str, server.version))
        tell(True, f"{place} answers: Kubernetes {version}, namespace {server.namespace}")
        kind = "an Indexed Job" if server.version >= INDEXED else "a Job for each shard"
        tell(None, f"a detached run would be {kind}")
        for ask in (_operator, _rights, _quotas, _claims_and_secrets):
            try:
                ask(server, config.options, tell)
            except RefusedError as error:
                tell(None, f"{ask.__name__.strip('_').replace('_', ' ')}: {error}")
    here = os.getcwd()
    if is_mounted(here, config.options.get("volume_mounts") or []):
        tell(True, f"pods see {here} by options.volume_mounts")
    else:
        tell(None, f"{here} is not among options.volume_mounts: a detached run from here would be refused")


def _operator(server: Server, options: Any, tell: Tell) -> None:
    try:
        server.require_operator()
    except ParallelError as error:
        tell(False, f"{error}. Detached runs do without it")
    else:
        tell(True, "the operator's resources are known: kubernetes.dask.org")


def _rights(server: Server, options: Any, tell: Tell) -> None:
    for what, needed in _RIGHTS.items():
        asked = {f"{verb} {resource}": server.may(verb, group, resource) for verb, group, resource in needed}
        missing = ", ".join(right for right, given in asked.items() if not given)
        lacking = f"runs {what}: this user may not {missing}"
        tell(not missing, lacking if missing else f"rights for runs {what}")


def _quotas(server: Server, options: Any, tell: Tell) -> None:
    for quota in server.items(server.path("v1", "resourcequotas")):
        status, name = quota.get("status", {}), quota["metadata"]["name"]
        hard, used = status.get("hard", {}), status.get("used", {})
        full = ", ".join(f"{kind} ({used[kind]})" for kind in hard if used.get(kind) == hard[kind])
        shown = ", ".join(f"{kind} {used.get(kind, 0)} of {most}" for kind, most in hard.items())
        tell(not full, f"quota {name} is used up: {full}" if full else f"quota {name}: {shown}")


def _claims_and_secrets(server: Server, options: Any, tell: Tell) -> None:
    for volume in options.get("volumes") or []:
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim is not None:
            found = server.get(server.path("v1", "persistentvolumeclaims", claim))
            phase = "is not there" if found is None else f"is {found.get('status', {}).get('phase')}"
            tell(phase == "is Bound", f"claim {claim} of volume {volume.get('name')} {phase}")
    named = [("serviceaccounts", options.get("service_account"))]
    named += [("secrets", name) for name in options.get("image_pull_secrets") or []]
    for kind, name in named:
        if name is not None:
            there = server.get(server.path("v1", kind, name)) is not None
            tell(there, f"{kind.removesuffix('s')} {name} {'is there' if there else 'is not there'}")
