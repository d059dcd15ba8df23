"""Runs with a driver on a real control plane of Kubernetes, whose pods are processes."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import ConfigError, NoWorkersError, get_client, parallel_map, set_parallel
from espnet3.parallel.testing import BackendContract
from tests.clusters.counted import Counted
from tests.clusters.kube.conftest import KINDS, LAB, block, kubectl, left
from tests.clusters.work import square
from tests.egs3.submitted import recognised
from tests.parallel.detached.work import program
from tests.waiting import wait_until

WORKERS = "dask.org/component=worker"
CUT = ("test_sets.prompts.at_most=12", f"data_dir={os.environ.get('ESPNET3_CORPUS')}")
DRIVER = """
import json, sys
from espnet3.parallel import get_client, parallel_map
from tests.clusters.work import square

with get_client(json.loads(sys.argv[1])):
    print(parallel_map(square, range(3)), flush=True)
    sys.stdin.readline()
"""


class TestContract(BackendContract):
    """Kubernetes 1.20, the operator, one node of processes."""

    config = block()

    @classmethod
    def teardown_class(cls) -> None:
        """Close the cluster; its pods go with it."""
        super().teardown_class()
        with open(LAB / "tmp" / "start-seconds", "a") as file:
            file.write(f"kube {cls.start_seconds:.1f}\n")
        wait_until(lambda: not left(), 90, every=0.3, said=lambda: kubectl("get", KINDS))


def test_the_text_file_is_the_same_to_the_byte(tmp_path: Path) -> None:
    """`text` of the prompts by two pods is byte-identical to that of one process here."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (there / "parallel.yaml").write_text(json.dumps({"parallel": block()}))  # JSON is YAML
    by_pods = recognised(there, "--parallel_config", "parallel.yaml", *CUT)
    assert by_pods == recognised(here, *CUT) and len(by_pods.splitlines()) == 12


def test_pods_that_are_deleted_cost_no_result(tmp_path: Path) -> None:
    """All worker pods are deleted in the middle of a run: every result is there, and no finished item ran again."""
    run = Counted(tmp_path, 40, 0.05)
    with get_client(block()):
        results = run.meanwhile(
            lambda: kubectl("delete", "pod", "-l", WORKERS, "--wait=false"), after=10, workers=3
        )
    run.check(results)


def test_a_host_that_is_gone_without_a_word_costs_no_result(tmp_path: Path) -> None:
    """A worker's network is cut in the middle of a run, so that no packet says so: its items go to the other one."""
    run = Counted(tmp_path, 40, 0.05)

    def cut() -> None:
        pods: list[Any] = json.loads(kubectl("get", "pods", "-l", WORKERS, "-o", "json"))["items"]
        *_, tens, ones = pods[0]["status"]["podIP"].split(".")
        link = f"vp{(int(tens) - 2) * 250 + int(ones) - 1}"  # as the lab's kubelet names it
        subprocess.run(["ip", "link", "set", link, "down"], check=True)

    with get_client(block()):
        results = run.meanwhile(cut, after=10, workers=2)
    assert [value for value, _, _ in results] == [idx * idx for idx in range(run.n)]
    assert run.runner.summary.deaths == 1


def test_an_image_that_is_absent_is_an_error_with_the_events_of_the_pod() -> None:
    """The run ends within its limit, names the image, and leaves nothing."""
    set_parallel({**block(image="absent/espnet:1"), "start_timeout": 12})
    with pytest.raises(NoWorkersError) as error:
        parallel_map(square, range(2))
    said = str(error.value)
    assert "did not start within start_timeout = 12 s" in said
    assert 'ErrImagePull: Failed to pull image "absent/espnet:1": not found' in said
    assert "kubectl -n default describe pod" in said


def test_a_request_that_no_node_can_meet_is_an_error_with_the_reason() -> None:
    """The scheduler's own words are in the message: which resource no node has."""
    resources = {"requests": {"cpu": "640"}}
    set_parallel({**block(options={"resources": resources}), "start_timeout": 12})
    with pytest.raises(NoWorkersError) as error:
        parallel_map(square, range(2))
    assert "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu" in str(error.value)


def test_workers_that_cannot_start_are_described_by_the_end_of_their_log() -> None:
    """Where the scheduler runs and no worker does, the message has what the workers printed."""
    options = {"worker_command": ["python", "-c", "raise SystemExit('no such model')"]}
    set_parallel({**block(1, options=options), "start_timeout": 25})
    with pytest.raises(NoWorkersError) as error:
        parallel_map(square, range(2))
    assert "no worker connected within" in str(error.value) and "no such model" in str(error.value)


def test_a_driver_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """SIGKILL of a driver with an open cluster: its pods, services and the DaskCluster go all the same."""
    with program("-c", DRIVER, json.dumps(block()), cwd=tmp_path) as process:
        assert process.stdout.readline() == "[0, 1, 4]\n"
        assert "daskcluster" in " ".join(left())
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not left(), 90, every=0.3, said=lambda: kubectl("get", KINDS))


def workers() -> int:
    """Return how many worker pods there are that are not on their way out."""
    pods: list[Any] = json.loads(kubectl("get", "pods", "-l", WORKERS, "-o", "json"))["items"]
    return sum("deletionTimestamp" not in pod["metadata"] for pod in pods)


def test_the_number_of_pods_follows_the_work() -> None:
    """With `adapt` there is no worker before there is work, and none half a minute after it."""
    with get_client({**block(), "adapt": {"minimum": 0, "maximum": 2}}):
        assert workers() == 0
        assert parallel_map(square, range(50)) == [x * x for x in range(50)]
        assert 1 <= workers() <= 2
        wait_until(lambda: not workers(), 120, every=0.5)


def test_a_user_without_rights_is_told_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights are asked for before anything is created; the message names those that are missing."""
    monkeypatch.setenv("KUBECONFIG", str(LAB / "nobody.conf"))
    set_parallel(block())
    with pytest.raises(ConfigError, match="may not get, create, delete daskclusters .* namespace 'default'"):
        parallel_map(square, range(2))
