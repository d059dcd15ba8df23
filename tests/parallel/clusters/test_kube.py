"""What Kubernetes would be asked for: the real spec of dask-kubernetes, without a cluster."""

import json
import sys
from pathlib import Path

import pytest

from espnet3.parallel import ConfigError, NoWorkersError
from espnet3.parallel.backends import row
from espnet3.parallel.clusters import pod_cluster as kube
from espnet3.parallel.clusters.pod_cluster import kube_options, start_kube
from espnet3.parallel.config import ParallelConfig

ROOT = Path(__file__).resolve().parents[3]


def config(n_workers=3, **options):
    return ParallelConfig.parse({"env": "kube", "n_workers": n_workers, "options": options})


def containers(options):
    spec = options["custom_cluster_spec"]["spec"]
    (scheduler,), (worker,) = spec["scheduler"]["spec"]["containers"], spec["worker"]["spec"]["containers"]
    return scheduler, worker


def test_options_of_the_pods_go_into_the_spec_and_others_to_the_cluster():
    """Image, resources, variables and the number of workers are in the spec; the namespace is not."""
    resources = {"limits": {"memory": "16Gi"}}
    made = kube_options(
        config(5, image="lab/espnet:1", resources=resources, env={"A": "b"}, namespace="lab", quiet=True)
    )
    scheduler, worker = containers(made)
    # newer versions of distributed have no dask-scheduler and no dask-worker
    assert scheduler["args"][:2] == ["dask", "scheduler"] and worker["args"][:2] == ["dask", "worker"]
    assert scheduler["image"] == worker["image"] == "lab/espnet:1"
    assert made["custom_cluster_spec"]["spec"]["worker"]["replicas"] == 5
    assert scheduler["resources"] == worker["resources"] == resources
    assert worker["env"] == [{"name": "A", "value": "b"}]
    assert set(made) == {"custom_cluster_spec", "create_mode", "namespace", "quiet", "resource_timeout"}
    assert made["namespace"] == "lab"
    mounts = [{"name": "code", "mountPath": str(ROOT)}]
    scheduler, worker = containers(kube_options(config(image="i", volume_mounts=mounts)))
    assert scheduler["env"] == worker["env"] == [{"name": "PYTHONPATH", "value": str(ROOT)}]


def test_a_cluster_is_created_under_a_name_of_its_own_and_none_is_joined():
    """Two runs do not share a cluster, which the first to end would delete."""
    first, second = (kube_options(config(image="i")) for _ in range(2))
    names = {each["custom_cluster_spec"]["metadata"]["name"] for each in (first, second)}
    assert len(names) == 2 and all(name.startswith("espnet3-") for name in names)
    assert first["create_mode"].value == "CREATE_ONLY"
    joined = kube_options(config(image="i", name="mine", create_mode="CREATE_OR_CONNECT"))
    assert joined["create_mode"].value == "CREATE_OR_CONNECT"
    assert joined["custom_cluster_spec"]["metadata"]["name"] == "mine"


def test_a_missing_image_is_reported_with_the_python_it_needs(caplog):
    """Dask's own image lacks the package: that is said before pods crash."""
    kube_options(config())
    assert "options.image is not given" in caplog.text
    assert f"{sys.version_info.major}.{sys.version_info.minor} here" in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"resources": {"memory": "4Gi"}}, "must be such as resources: {requests: {cpu: 1}"),
        ({"volume_mounts": {"name": "data"}}, "must be a list of mappings, as in a pod: volume_mounts:"),
        ({"imagee": "x"}, "Did you mean 'image'?"),
        ({"memory_limit": "4GB"}, "belongs to local, local_gpu, not to kube"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_created(options, said):
    """Names, resources and mounts are checked with the block."""
    with pytest.raises(ConfigError) as error:
        config(**options)
    assert said in str(error.value)


def test_a_spec_of_the_users_own_is_taken_with_the_number_of_workers(tmp_path):
    """As a mapping or the path of one; the caller's object stays as it is."""
    own = kube_options(config(image="i", name="mine"))["custom_cluster_spec"]
    (tmp_path / "own.yaml").write_text(json.dumps(own))
    for given in (own, str(tmp_path / "own.yaml")):
        made = kube_options(config(5, custom_cluster_spec=given))["custom_cluster_spec"]
        assert made["metadata"]["name"] == "mine" and made["spec"]["worker"]["replicas"] == 5
    assert own["spec"]["worker"]["replicas"] == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"custom_cluster_spec": {"kind": "DaskCluster"}},
            "is no DaskCluster: 'metadata' is missing or wrong",
        ),
        ({"custom_cluster_spec": "nowhere.yaml"}, "cannot be read: .*No such file"),
        ({"custom_cluster_spec": {}, "image": "i", "volumes": []}, "options image beside it have no effect"),
    ],
    ids=["wrong", "missing", "beside"],
)
def test_a_spec_that_cannot_be_used_is_refused(options, said):
    """What is missing in it, or stands beside it without effect, is named."""
    with pytest.raises(ConfigError, match=said):
        kube_options(config(**options))


class NoServer:
    def __init__(self, namespace):
        self.namespace = namespace

    def close(self):
        pass

    def require_operator(self):
        pass

    def require_rights(self):
        pass


def test_an_operator_that_overlooks_a_cluster_is_asked_again(monkeypatch, caplog):
    """Creation is tried three times, each with a new name; then the message says where to look."""
    names = []

    def overlooked(**options):
        names.append(options["custom_cluster_spec"]["metadata"]["name"])
        if len(names) == until:
            return "cluster"
        raise TimeoutError("resource not actioned after 60 seconds")

    monkeypatch.setattr(kube, "load_cluster_class", lambda row: overlooked)
    monkeypatch.setattr(kube, "Server", NoServer)
    monkeypatch.setattr(kube, "_create", lambda make, block, server: make(**kube_options(block)))
    until = 2
    assert start_kube(row("kube"), config(image="i")) == "cluster"
    assert len(set(names)) == 2 and "did not act" in caplog.text
    until = 9
    with pytest.raises(NoWorkersError, match="3 times in a row: resource not actioned.*kubectl get pods"):
        start_kube(row("kube"), config(image="i"))
    assert len(names) == 5
