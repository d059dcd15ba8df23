"""From the options of `env: kube` to parts of a pod, as plain data: pure functions that golden files check."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from espnet3.parallel.backends.queue_answers import submitter
from espnet3.parallel.errors import ConfigError

RUN = "espnet3-run"  # the label by which everything that belongs to a run is found
_UNITS = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[A-Za-z]*)")


def pod_fields(
    *,
    volumes: list[dict[str, Any]] | None = None,
    volume_mounts: list[dict[str, Any]] | None = None,
    tolerations: list[dict[str, Any]] | None = None,
    node_selector: Mapping[str, str] | None = None,
    service_account: str | None = None,
    image_pull_secrets: list[str] | None = None,
    image_pull_policy: str | None = None,
    security_context: Mapping[str, Any] | None = None,
    python: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what options beside KubeCluster's own put into a pod: its fields, and those of its container.

    The parameters are the options; `espnet3.parallel.backends` reads their names here.
    """
    secrets = [{"name": name} for name in image_pull_secrets or []]
    pod = {
        "volumes": volumes,
        "tolerations": tolerations,
        "nodeSelector": None if node_selector is None else dict(node_selector),
        "serviceAccountName": service_account,
        "imagePullSecrets": secrets,
        "securityContext": None if security_context is None else dict(security_context),
    }
    container = {
        "volumeMounts": volume_mounts,
        "imagePullPolicy": image_pull_policy,
        "workingDir": working_folder(volume_mounts or []),
    }
    return (
        {name: value for name, value in pod.items() if value},
        {name: value for name, value in container.items() if value},
    )


OPTIONS = tuple(pod_fields.__kwdefaults__ or ())


def is_mounted(path: str, mounts: list[dict[str, Any]]) -> bool:
    """Whether a folder of this machine is shown to pods, under its own path, by one of the volume mounts."""
    return any(
        PurePosixPath(os.path.abspath(path)).is_relative_to(str(mount.get("mountPath", "")) or "none")
        for mount in mounts
    )


def working_folder(mounts: list[dict[str, Any]]) -> str | None:
    """Return the current folder where pods have it too: there they start in it, so that relative paths agree."""
    here = os.getcwd()
    return here if is_mounted(here, mounts) else None


def variables(env: Mapping[str, Any] | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return `options.env` as Kubernetes writes variables; their values are text."""
    if isinstance(env, Mapping):
        return [{"name": name, "value": str(value)} for name, value in env.items()]
    return list(env or [])


def more_memory(resources: Mapping[str, Any] | None, factor: float) -> dict[str, Any]:
    """Return resources with so many times the memory; amounts are text, as Kubernetes writes them."""
    found: dict[str, Any] = {
        kind: {name: str(amount) for name, amount in each.items()} for kind, each in (resources or {}).items()
    }
    for each in found.values():
        parts = _UNITS.fullmatch(str(each.get("memory", "")))
        if parts is not None and factor != 1.0:
            each["memory"] = f"{round(float(parts['number']) * factor * 1024)}{_smaller(parts['unit'])}"
    return found


def _smaller(unit: str) -> str:
    """Return the unit that a quantity in 1024ths of another has, so that no fraction of it is lost."""
    below = {"Gi": "Mi", "Mi": "Ki", "Ti": "Gi", "Ki": ""}
    if unit not in below:
        raise ConfigError(
            f"a memory of unit {unit!r} cannot be raised: write options.resources in Mi or Gi, such as memory: 16Gi"
        )
    return below[unit]


def without_devices(resources: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return resources without nvidia.com/gpu and its like: Dask's scheduler needs none, and would keep it busy."""
    found = {
        kind: {name: amount for name, amount in each.items() if "/" not in name}
        for kind, each in (resources or {}).items()
    }
    return {kind: each for kind, each in found.items() if each}


def new_name() -> str:
    """Return a name for a cluster or Job that nobody has."""
    user = re.sub(r"[^a-z0-9]+", "-", submitter().lower()).strip("-") or "user"
    return f"espnet3-{user[:20].rstrip('-')}-{uuid.uuid4().hex[:8]}"
