"""Detached runs on a real control plane of Kubernetes, whose pods are processes; the server is one for plain Jobs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import set_parallel
from espnet3.parallel.detached.looking.detached_run import DetachedRun
from espnet3.parallel.detached.states import JobState
from espnet3.parallel.records import ItemFailure
from tests.clusters.kube.conftest import KINDS, block, kubectl, left
from tests.egs3.submitted import merged_elsewhere, recognised, submit_and_die
from tests.parallel.detached.work import Provider, Squares, held, hold, let_go
from tests.waiting import wait_until

CUT = ("test_sets.prompts.at_most=12", f"data_dir={os.environ.get('ESPNET3_CORPUS')}")


@pytest.fixture(autouse=True)
def _clean() -> Any:
    """Jobs that have ended stay for a day, with what their pods printed: only they may, and they are removed."""
    yield
    assert not [name for name in left() if not name.startswith(("pod/", "job."))]
    kubectl("delete", "jobs", "--all", "--wait=false")
    wait_until(lambda: not left(), 90, every=0.3, said=lambda: kubectl("get", KINDS))


def submit(
    folder: Path, n: int = 12, bad: list[Any] | None = None, on_error: Any = "raise", **more: Any
) -> DetachedRun:
    """Submit squares from this process, of which `bad` may spoil one."""
    set_parallel({**block(2, **more), "detached": {"shards": 3}})
    folders = {"output_dir": folder / "run", "async_specs_dir": folder / "specs"}
    provider = Provider({"folder": str(folder), "bad": bad})
    return Squares(provider, **folders, async_mode=True, on_error=on_error)(range(n))  # type: ignore[no-any-return]


def finished(run: DetachedRun, seconds: float = 150) -> list[int]:
    """Wait for a run and merge it."""
    status = run.wait(seconds)
    assert status.done, (status, dict(run.logs()), kubectl("get", KINDS))
    return [value["square"] for value in run.merge()]


def test_the_text_is_the_same_after_the_submitter_was_killed(tmp_path: Path) -> None:
    """The submitter gets SIGKILL; `status`, `wait` and `merge` elsewhere leave the `text` of one process."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    run = submit_and_die(tmp_path, {**block(2), "detached": {"shards": 2}}, *CUT)
    assert merged_elsewhere(run, elsewhere) == recognised(here, *CUT)


def test_a_pod_that_is_deleted_is_replaced(tmp_path: Path) -> None:
    """The pods at work are deleted: others go on where they were, without a retry, and no item is blamed."""
    hold(tmp_path, 1)
    run = submit(tmp_path)
    jobs = json.loads(kubectl("get", "jobs", "-o", "json"))["items"]
    assert len(jobs) == 3 and len({job["metadata"]["labels"]["espnet3-run"] for job in jobs}) == 1
    held(tmp_path, 1)
    kubectl("delete", "pods", "--all", "--wait=false")
    let_go(tmp_path, 1)
    assert finished(run) == [x * x for x in range(12)]


def pods() -> list[dict[str, Any]]:
    return list(json.loads(kubectl("get", "pods", "-o", "json"))["items"])


def test_a_pod_that_is_evicted_is_replaced(tmp_path: Path) -> None:
    """Evicted through the API, as when a node is drained: others go on where the pods were, and no item is blamed."""
    hold(tmp_path, 1)
    run = submit(tmp_path)
    held(tmp_path, 1)
    for pod in pods():
        name = pod["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/default/pods/{name}/eviction"
        kubectl("create", "--raw", path, "-f", "-", given=eviction)
    let_go(tmp_path, 1)
    assert finished(run) == [x * x for x in range(12)]


URGENT = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "urgent"},
    "spec": {
        "priorityClassName": "urgent",
        "containers": [
            {
                "name": "c",
                "image": "lab/espnet:1",
                "command": ["sleep", "600"],
                "resources": {"requests": {"cpu": "15"}},
            }
        ],
    },
}


def test_pods_that_are_preempted_wait_for_room_and_go_on(tmp_path: Path) -> None:
    """A pod of higher priority takes the node: `status` says what is waited for, and all is done when it has gone."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}}
    kubectl("create", "-f", "-", given={**kind, "value": 1000})
    first = (0, 4, 8)  # of each shard
    for item in first:
        hold(tmp_path, item)
    run = submit(tmp_path, options={"resources": {"requests": {"cpu": "5"}}})
    for item in first:
        held(tmp_path, item)
    at_work = {pod["metadata"]["name"] for pod in pods()}
    kubectl("create", "-f", "-", given=URGENT)
    wait_until(
        lambda: all(
            "deletionTimestamp" in pod["metadata"] for pod in pods() if pod["metadata"]["name"] in at_work
        ),
        60,
        every=0.3,
    )
    for item in first:
        let_go(tmp_path, item)
    wait_until(lambda: "Insufficient cpu" in str(run.status()), 60, every=0.3, said=run.status)
    kubectl("delete", "pod", "urgent", "--grace-period=1")
    kubectl("delete", "priorityclass", "urgent")
    assert finished(run) == [x * x for x in range(12)]


def test_an_item_that_kills_its_pods_is_blamed_and_the_rest_is_done(tmp_path: Path) -> None:
    """Pods that crash are replaced until it is clear which item does it; every other item has its result."""
    run = submit(tmp_path, bad=[5, "die"], on_error="record")
    assert run.wait(300).done, run.status()
    results = list(run.merge())
    assert isinstance(results[5], ItemFailure) and results[5].cause == "poison"
    assert [each["square"] for each in results if each is not results[5]] == [
        x * x for x in range(12) if x != 5
    ]
    assert len(pods()) > 3


def test_cancel_removes_jobs_and_pods_and_retry_goes_on(tmp_path: Path) -> None:
    """After `cancel` the namespace is empty and every shard is cancelled or done; `retry` computes what is missing."""
    hold(tmp_path, 1)
    run = submit(tmp_path)
    held(tmp_path, 1)
    status = run.cancel(grace=1)
    assert not left()
    assert {shard.state for shard in status.shards} <= {
        JobState.CANCELLED,
        JobState.NOT_STARTED,
        JobState.DONE,
    }
    let_go(tmp_path, 1, dead=True)
    run.retry()
    assert finished(run) == [x * x for x in range(12)]


def test_a_job_that_somebody_deleted_is_over_and_only_then(tmp_path: Path) -> None:
    """A shard counts as alive until its Job is truly gone; `retry` goes on with it then."""
    hold(tmp_path, 1)
    run = submit(tmp_path)
    held(tmp_path, 1)
    assert run.status().alive
    kubectl("delete", "jobs", "--all")
    wait_until(lambda: not left(), 60, every=0.3)
    ended = {shard.state for shard in run.status().shards}
    # what its pod was told before it went is known from the run folder
    assert ended & {JobState.LOST, JobState.UNFINISHED} and not run.status().alive
    let_go(tmp_path, 1, dead=True)
    run.retry()
    assert finished(run) == [x * x for x in range(12)]
