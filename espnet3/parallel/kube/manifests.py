"""From the options of `env: kube` to parts of a pod and whole Jobs: pure functions that golden files check.

A server from 1.24 on takes one Indexed Job for all shards of a detached run; an older one a plain Job for each. On both
a pod that is evicted, preempted or deleted is replaced, and an end that another attempt would not change is final.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from espnet3.parallel.backends.scheduler import submitter
from espnet3.parallel.jobs.script import import_path

RUN = "espnet3-run"  # the label by which everything that belongs to a run is found
INDEXED = (1, 24)
# a limit of attempts for each index (beta there): one bad shard does not end the others; and a pod that was told to end
# has an exit status by the time it is judged
PER_INDEX = (1, 29)
POLICIES = (1, 26)  # podFailurePolicy (beta there)
SHARD = "espnet3-shard"  # the label of a plain Job and its pod
INDEX = "batch.kubernetes.io/job-completion-index"  # the annotation of an Indexed Job's pod
OWNER = "job-name"  # the label that Kubernetes gives to a Job's pods
MOST = 5_000  # elements of an Indexed Job
AGAIN = 75  # EX_TEMPFAIL: the pod was told to end, by the user who deleted it; another one is to go on
_FINAL = (1, 2)  # exit statuses of a worker whose next attempt would end so, too
_ATTEMPTS = 6  # pods that may end badly, for each shard, beside those that were disrupted
_KEPT = 86_400  # seconds for which a Job that has ended, and what its pods printed, can be looked at
_INDEX_VARIABLE = "$(JOB_COMPLETION_INDEX)"  # Kubernetes puts the variable's value there

# options beside KubeCluster's own: those that are a field of a pod, or of its container
_OF_POD = {
    "volumes": "volumes",
    "tolerations": "tolerations",
    "node_selector": "nodeSelector",
    "service_account": "serviceAccountName",
    "security_context": "securityContext",
}
_OF_CONTAINER = {"volume_mounts": "volumeMounts", "image_pull_policy": "imagePullPolicy"}
OPTIONS = (*_OF_POD, *_OF_CONTAINER, "image_pull_secrets", "python")


def pod_fields(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a pod and of its container from `OPTIONS`."""
    here = os.getcwd()  # where pods have it too they start in it, so that relative paths agree
    pod = {field: options.get(name) for name, field in _OF_POD.items()}
    pod["imagePullSecrets"] = [{"name": name} for name in options.get("image_pull_secrets") or []]
    container = {field: options.get(name) for name, field in _OF_CONTAINER.items()}
    container["workingDir"] = here if is_mounted(here, options.get("volume_mounts") or []) else None
    return (
        {name: value for name, value in pod.items() if value},
        {name: value for name, value in container.items() if value},
    )


def is_mounted(path: str, mounts: list[dict[str, Any]]) -> bool:
    """Return whether a volume mount shows pods a folder of this machine under its own path."""
    return any(
        PurePosixPath(os.path.abspath(path)).is_relative_to(str(mount.get("mountPath", "")) or "none")
        for mount in mounts
    )


def variables(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return `options.env` as Kubernetes writes variables, whose values are text, and where a mount has our code."""
    env, package = options.get("env"), import_path()
    if isinstance(env, Mapping):
        env = [{"name": name, "value": str(value)} for name, value in env.items()]
    found = list(env or [])
    is_there = package is not None and is_mounted(package, options.get("volume_mounts") or [])
    if is_there and all(each["name"] != "PYTHONPATH" for each in found):
        found.append({"name": "PYTHONPATH", "value": package})
    return found


def more_memory(resources: Mapping[str, Any] | None, factor: float) -> dict[str, Any]:
    """Return resources with so many times the memory; amounts are text, as Kubernetes writes them."""
    from dask.utils import parse_bytes

    found: dict[str, Any] = {}
    for kind, each in (resources or {}).items():
        found[kind] = {name: str(amount) for name, amount in each.items()}
        if "memory" in each and factor != 1.0:
            found[kind]["memory"] = str(round(parse_bytes(str(each["memory"])) * factor))
    return found


def without_devices(resources: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return resources without nvidia.com/gpu and its like: Dask's scheduler needs none, and would keep it busy."""
    return {
        kind: {name: amount for name, amount in each.items() if "/" not in name}
        for kind, each in (resources or {}).items()
    }


def new_name() -> str:
    """Return a new name for a cluster or Job."""
    user = re.sub(r"[^a-z0-9]+", "-", submitter().lower()).strip("-") or "user"
    return f"espnet3-{user[:20].rstrip('-')}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Facts that the Jobs of one submission share."""

    run: str  # the value of their label `espnet3-run`
    name: str  # the beginning of their names
    tasks: str  # the file that lists the shards, in the folder where the worker starts
    n_workers: int  # pods at a time
    memory_factor: float = 1.0  # how many times the memory to ask for


def manifests(
    facts: JobFacts, shards: Sequence[int], options: Mapping[str, Any], version: tuple[int, int]
) -> list[dict[str, Any]]:
    """Return the Jobs of shards: one, or one for each."""
    spec: dict[str, Any] = {"backoffLimit": _ATTEMPTS}
    if version < INDEXED:
        pods = (_pod(facts, options, str(place), final=0) for place in range(len(shards)))
        both = zip(shards, pods, strict=True)
        return [_job(facts, f"{facts.name}-{at}", spec, pod, {SHARD: str(at)}) for at, pod in both]
    spec = {
        "completionMode": "Indexed",
        "completions": len(shards),
        "parallelism": min(facts.n_workers, len(shards)),
    }
    rules: list[dict[str, Any]] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    each = version >= PER_INDEX
    if each:
        spec["backoffLimitPerIndex"] = _ATTEMPTS
        rules += [_by_status("Ignore", AGAIN), _by_status("FailIndex", *_FINAL)]
    else:
        spec["backoffLimit"] = _ATTEMPTS * len(shards)
    if version >= POLICIES:
        spec["podFailurePolicy"] = {"rules": rules}
    # where an index cannot fail alone, an end that is final counts as complete: the run folder says what it was
    pod = _pod(facts, options, _INDEX_VARIABLE, final=1 if each else 0)
    return [_job(facts, facts.name, spec, pod, {})]


def _by_status(action: str, *statuses: int) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": "In", "values": list(statuses)}}


def _job(
    facts: JobFacts, name: str, spec: dict[str, Any], pod: dict[str, Any], labels: dict[str, str]
) -> dict[str, Any]:
    labels = {RUN: facts.run, **labels}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            **spec,
            "ttlSecondsAfterFinished": _KEPT,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _pod(facts: JobFacts, options: Mapping[str, Any], index: str, final: int) -> dict[str, Any]:
    pod, container = pod_fields(options)
    python = str(options.get("python") or "python")  # the path of this one means nothing in an image
    command = [python, "-m", "espnet3.parallel.worker", "--final", str(final), "--tasks", facts.tasks, index]
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,  # a job asks Kubernetes nothing
        **pod,
        "containers": [
            {
                "name": "worker",
                **({"image": options["image"]} if options.get("image") else {}),
                **container,
                "workingDir": os.path.dirname(facts.tasks),
                "command": command,
                "env": variables(options),
                "resources": more_memory(options.get("resources"), facts.memory_factor),
            }
        ],
    }


def indices_of(text: str | None) -> set[int]:
    """Return the indices that a status lists as Kubernetes writes them: "1,3-5,7"."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
