"""Detached runs of `env: kube` on a small API server whose pods are processes: Indexed Jobs, and plain ones."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ConfigError, set_parallel
from espnet3.parallel.detached.states import JobState
from tests.parallel.detached.work import Provider, Squares, builds, held, hold, let_go
from tests.parallel.kube.standin import Cluster, kubernetes

MATRIX = pytest.mark.matrix
SQUARES = [x * x for x in range(8)]


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """Serve the stand-in, and be in a folder that pods see."""
    version: tuple[int, int] = getattr(request, "param", (1, 31))
    (tmp_path / "lab").mkdir()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "lab" / "kubeconfig"))
    monkeypatch.chdir(tmp_path)
    with kubernetes(tmp_path / "lab", version) as found:
        yield found


def submit(
    folder: Path, config: dict[str, Any] | None = None, n_workers: int = 2, shards: int = 2, **options: Any
) -> Any:
    """Submit squares, in two shards unless a test says otherwise."""
    mounts = [{"name": "disk", "mountPath": str(folder)}]
    options = {"image": "lab/espnet:1", "volume_mounts": mounts, **options}
    set_parallel({"env": "kube", "n_workers": n_workers, "options": options, "detached": {"shards": shards}})
    runner = Squares(
        Provider({"folder": str(folder), **(config or {})}),
        output_dir=folder / "run",
        async_specs_dir=folder / "specs",
        async_mode=True,
        progress=False,
    )
    return runner(range(8))


@pytest.mark.filterwarnings("ignore:Kubernetes version")
@pytest.mark.parametrize(
    ("cluster", "jobs"), [((1, 31), 1), pytest.param((1, 20), 2, marks=MATRIX)], indirect=["cluster"]
)
def test_a_run_is_one_indexed_job_or_a_job_for_each_shard(
    cluster: Cluster, jobs: int, tmp_path: Path
) -> None:
    """By the server's version, and with the same results; a pod of an Indexed Job goes on with the shards that wait."""
    run = submit(tmp_path, n_workers=1)
    assert len(cluster.jobs) == jobs
    assert run.wait(600).done and builds(tmp_path) <= jobs
    assert [value["square"] for value in run.merge()] == SQUARES


@pytest.mark.filterwarnings("ignore:Kubernetes version")
@pytest.mark.parametrize("cluster", [(1, 31), pytest.param((1, 24), marks=MATRIX)], indirect=True)
def test_a_shard_that_fails_is_final_and_keeps_its_reason(cluster: Cluster, tmp_path: Path) -> None:
    """An item that fails ends its index at once: no other pod would do better; `retry` goes on once it is mended."""
    run = submit(tmp_path, {"bad": [5, "raise"]})
    status = run.wait(600)
    assert status.shards[1].state is JobState.FAILED and "no square of 5" in status.shards[1].note
    assert len(cluster.pods) == 2
    (tmp_path / "repaired").touch()
    run.retry()
    assert run.wait(600).done and [value["square"] for value in run.merge()] == SQUARES
    assert len(cluster.jobs) == 1  # the one before is deleted


def test_a_pod_that_dies_is_replaced(cluster: Cluster, tmp_path: Path) -> None:
    """A crash is charged to its item, and another pod goes on with the rest of the shard."""
    run = submit(tmp_path, {"bad": [5, "die"]})
    status = run.wait(600)
    assert len(cluster.pods) > 2 and status.shards[0].state is JobState.DONE
    assert "5" in str(status.shards[1].note)


ATTEMPTS = "espnet3.parallel.kube.manifests._ATTEMPTS"


def evicted_three_times(cluster: Cluster, folder: Path) -> Any:
    """Submit squares, and take the pod of the first shard away in each of its first three items."""
    for item in (0, 1, 2, 4):
        hold(folder, item)
    run = submit(folder)
    held(folder, 4)  # the other pod takes no shard that is not begun
    for item in range(3):
        held(folder, item)
        if item == 0:
            let_go(folder, 4)
        cluster.take(0, "EvictionByEvictionAPI", lambda item=item: let_go(folder, item, dead=True))
    return run


@pytest.mark.filterwarnings("ignore:Kubernetes version")
@pytest.mark.parametrize("cluster", [(1, 31), pytest.param((1, 27), marks=MATRIX)], indirect=True)
def test_a_pod_that_is_evicted_costs_no_attempt(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evicted and killed at three items, where two failures of its own would end it, a shard is done all the same."""
    monkeypatch.setattr(ATTEMPTS, 1)
    run = evicted_three_times(cluster, tmp_path)
    assert run.wait(600).done and [value["square"] for value in run.merge()] == SQUARES
    assert not any(course.attempts for course in cluster.courses.values())


@MATRIX
@pytest.mark.filterwarnings("ignore:Kubernetes version")
@pytest.mark.parametrize("cluster", [(1, 24)], indirect=True)
def test_a_server_that_knows_no_evictions_counts_them_and_retry_goes_on(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 1.26 an eviction is a failure as any other: the Job ends by them, and a new one computes what is left."""
    monkeypatch.setattr(ATTEMPTS, 1)
    run = evicted_three_times(cluster, tmp_path)  # once more than two shards may fail together
    shard = run.wait(600).shards[0]
    assert shard.state is JobState.FAILED and "BackoffLimitExceeded" in shard.note
    run.retry()
    assert run.wait(600).done and [value["square"] for value in run.merge()] == SQUARES


DIES_AS_FIRST = """#!/bin/sh
for index; do :; done
[ -e mended ] || [ "$index" != 0 ] || kill -KILL $$
exec {python} "$@"
"""


@pytest.mark.filterwarnings("ignore:Kubernetes version")
@pytest.mark.parametrize(
    ("cluster", "reason"),
    [((1, 31), "FailedIndexes"), pytest.param((1, 27), "BackoffLimitExceeded", marks=MATRIX)],
    indirect=["cluster"],
)
def test_a_shard_whose_pods_die_at_once_uses_up_its_attempts(
    cluster: Cluster, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is failed with the status of its last pod; `retry` makes a Job of what is left, when that is mended."""
    monkeypatch.setattr(ATTEMPTS, 1)
    python = tmp_path / "python"
    python.write_text(
        DIES_AS_FIRST.replace("{python}", sys.executable).replace("mended", str(tmp_path / "mended"))
    )
    python.chmod(0o755)
    run = submit(tmp_path, shards=1, python=str(python))  # of two, the other one's pod would take it
    shard = run.wait(600).shards[0]
    assert shard.state is JobState.FAILED and reason in shard.note and "status 137" in shard.note
    (tmp_path / "mended").touch()
    run.retry()
    assert run.wait(600).done and [value["square"] for value in run.merge()] == SQUARES


def test_no_more_pods_run_than_there_are_workers(cluster: Cluster, tmp_path: Path) -> None:
    """Of three shards for one worker the second begins when the first has ended."""
    hold(tmp_path, 1)
    run = submit(tmp_path, n_workers=1, shards=3)
    held(tmp_path, 1)
    assert len(cluster.pods) == 1
    let_go(tmp_path, 1)
    assert run.wait(600).done and [value["square"] for value in run.merge()] == SQUARES


def test_what_waits_says_why_and_cancel_removes_it(cluster: Cluster, tmp_path: Path) -> None:
    """A pod without its image is pending, with the reason; `cancel` leaves neither Job nor pod."""
    cluster.runs = False
    run = submit(tmp_path)
    assert {shard.state for shard in run.status().shards} == {JobState.PENDING}
    assert "Pending: ErrImagePull: not found" in run.status().shards[0].note
    status = run.cancel()
    assert not cluster.jobs and not cluster.pods
    assert {shard.state for shard in status.shards} == {JobState.CANCELLED}


def test_a_job_is_lost_only_where_the_server_has_none(cluster: Cluster, tmp_path: Path) -> None:
    """A Job that somebody deleted is gone for good; a server that does not answer makes nothing lost."""
    cluster.runs = False
    run = submit(tmp_path)
    config = tmp_path / "lab" / "kubeconfig"
    kept = config.read_text()
    config.write_text(re.sub(r"127.0.0.1:\d+", "127.0.0.1:9", kept))
    status = run.status()
    assert status.counts == {JobState.UNKNOWN: 2} and "does not answer" in status.notes[0]
    config.write_text(kept)
    cluster.delete(*cluster.jobs)
    assert run.status().counts == {JobState.LOST: 2}


def test_logs_come_through_the_api(cluster: Cluster, tmp_path: Path) -> None:
    """What a pod printed before its worker began is kept as a file of the run; one list of pods is for all shards."""
    run = submit(tmp_path, python="echo")
    run.wait(600)
    cluster.asked.clear()
    assert len(dict(run.logs())) == 2
    assert cluster.asked["/api/v1/namespaces/default/pods"] == 1
    assert "-m espnet3.parallel.worker --final 1 --tasks" in dict(run.logs())[0]
    assert "its output ends with: -m espnet3.parallel.worker" in run.status().shards[0].note


def test_a_job_that_is_refused_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """A quota that is used up is an error with the server's words, and no Job stays."""
    cluster.refuses = (403, "jobs.batch is forbidden: exceeded quota: lab")
    with pytest.raises(ConfigError, match="of context 'lab' refused a Job of .*: .*exceeded quota: lab"):
        submit(tmp_path)
    assert not cluster.jobs


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"volume_mounts": None},
            "pods do not see the current folder '.*': .*volume_mounts shows them nothing",
        ),
        ({"image": None}, "options.image is missing: detached jobs need an image"),
        ({"custom_cluster_spec": {"kind": "DaskCluster"}}, "with a driver, and detached jobs have none"),
    ],
    ids=["volume", "image", "spec"],
)
def test_what_no_pod_could_do_is_refused_before_anything_is_written(
    cluster: Cluster, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """An option that is missing, or means nothing here, is named together with what to write."""
    with pytest.raises(ConfigError, match=said):
        submit(tmp_path, **options)
    assert not (tmp_path / "run").exists() and not cluster.jobs
