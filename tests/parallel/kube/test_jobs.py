"""The Jobs of detached runs: golden manifests, fields that each version of Kubernetes has, states read from answers."""

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes_validate import validate
from kubernetes_validate.utils import all_versions

from espnet3.parallel.clusters.pod_cluster import kube_options
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.launch.kube_jobs import shard_state
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.kube import manifests as kube
from espnet3.parallel.kube.manifests import MOST, JobFacts, is_mounted, manifests, more_memory
from tests.parallel.kube.controller import refusals

GOLDEN = Path(__file__).parent / "golden"
TASKS = "/data/run/detached/jobs/tasks.0.json"
FACTS = JobFacts("0123abcd", "espnet3-ann-11112222", TASKS, 8)
OPTIONS = {
    "image": "lab/espnet:1",
    "resources": {
        "requests": {"cpu": "2", "memory": "4Gi"},
        "limits": {"memory": "4Gi", "nvidia.com/gpu": 1},
    },
    "env": {"OMP_NUM_THREADS": 2},
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    "volume_mounts": [{"name": "data", "mountPath": "/data"}],
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "node_selector": {"gpu": "a100"},
    "service_account": "speech",
    "image_pull_secrets": ["registry"],
    "image_pull_policy": "IfNotPresent",
    "security_context": {"runAsUser": 1000, "fsGroup": 1000},
}
VERSIONS = {"indexed": (1, 31), "policy": (1, 27), "early": (1, 24), "plain": (1, 20)}


@pytest.mark.parametrize("name", VERSIONS)
def test_the_manifests_are_the_golden_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of server is sent exactly what its file holds."""
    monkeypatch.setattr(kube, "import_path", lambda: "/data/code")
    made = manifests(FACTS, [3, 5], OPTIONS, VERSIONS[name])
    assert made == json.loads((GOLDEN / f"{name}.json").read_text())


MINORS = sorted({int(version.split(".")[1]) for version in all_versions()})


@pytest.mark.parametrize("minor", MINORS)
def test_each_version_of_kubernetes_knows_every_field(minor: int) -> None:
    """By the schemas that each version has published: names, types, and nothing that it does not have yet."""
    for version in ((1, minor), VERSIONS["plain"]):
        for each in manifests(FACTS, [3, 5], OPTIONS, version):
            validate(each, f"1.{minor}", strict=True)


@pytest.mark.parametrize("minor", [MINORS[0], MINORS[-1]])
def test_pods_of_a_cluster_have_fields_that_kubernetes_knows(minor: int) -> None:
    """The scheduler's pod and the workers', with everything that options can put into them."""
    block = ParallelConfig.parse({"env": "kube", "options": OPTIONS})
    spec = kube_options(block)["custom_cluster_spec"]["spec"]
    for pod in (spec["scheduler"]["spec"], spec["worker"]["spec"]):
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod}
        validate(made, f"1.{minor}", strict=True)


@pytest.mark.parametrize("name", VERSIONS)
def test_no_manifest_breaks_a_rule_of_the_api_server(name: str) -> None:
    """Rules that no schema holds: ordered statuses, a restart policy that a podFailurePolicy allows, short names."""
    for each in manifests(FACTS, range(MOST), OPTIONS, VERSIONS[name])[:3]:
        assert refusals(each) == []


def test_memory_is_raised_without_losing_a_fraction() -> None:
    """A factor is applied to every memory of the resources, and to nothing else."""
    raised = more_memory(OPTIONS["resources"], 1.5)
    assert raised["limits"] == {"memory": str(6 << 30), "nvidia.com/gpu": "1"}
    assert raised["requests"]["cpu"] == "2"


@pytest.mark.parametrize(
    ("path", "seen"), [("/data/run", True), ("/data", True), ("/database", False), ("/", False)]
)
def test_a_mount_shows_what_is_below_it(path: str, seen: bool) -> None:
    """A folder is seen where a mount's path is the beginning of its own, name by name."""
    assert is_mounted(path, [{"name": "d", "mountPath": "/data"}]) is seen


def job(conditions: Any = (), **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "j"},
        "spec": {},
        "status": {"conditions": [{"type": c, "status": "True"} for c in conditions], **status},
    }


def pod(phase: str, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    containers = [{"state": state}] if state else []
    return {"metadata": {"name": "p"}, "status": {"phase": phase, "containerStatuses": containers, **status}}


def died(code: int, reason: str = "Error", **status: Any) -> list[dict[str, Any]]:
    return [pod("Failed", {"terminated": {"exitCode": code, "reason": reason}}, **status)]


FULL = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
FAILED_INDEX = job(failedIndexes="0-2", completedIndexes="3")
FAILED = job(["Failed"])
CASES = {
    "gone": (None, "", [], JobState.LOST, "its Job is gone"),
    "no room": (job(), "", [pod("Pending", conditions=[FULL])], JobState.PENDING, "Unschedulable: no node"),
    "runs": (job(), "", [pod("Running")], JobState.RUNNING, "pod p: Running"),
    "replaced": (job(), "", died(137, "OOMKilled"), JobState.PENDING, "another one takes its place"),
    "memory": (FAILED, "", died(137, "OOMKilled"), JobState.OUT_OF_MEMORY, "137"),
    "evicted": (FAILED, "", died(143, conditions=[DISRUPTED]), JobState.PREEMPTED, "143"),
    "cut": (FAILED, "", died(75), JobState.UNFINISHED, "status 75"),
    "complete": (job(["Complete"]), "", [pod("Succeeded")], JobState.FAILED, "its worker wrote no outcome"),
    "index failed": (FAILED_INDEX, "1", died(1), JobState.FAILED, "FailedIndexes"),
    "index done": (FAILED_INDEX, "3", [pod("Succeeded")], JobState.FAILED, "is complete"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_shard_is_what_its_job_and_pods_say(name: str) -> None:
    """Each answer of the API has its state; a shard is lost only where its Job is gone."""
    found, index, pods, state, note = CASES[name]
    assert shard_state(found, index, pods)[0] is state
    assert note in shard_state(found, index, pods)[1]
