"""`espnet3-parallel plan` and `espnet3-parallel doctor` for Kubernetes, on a small API server."""

import pytest
import yaml
from click.testing import CliRunner

from espnet3_parallel.configs import plan
from espnet3_parallel.doctor import doctor
from tests.parallel.kube.standin import kubernetes

OPTIONS = """image: "lab/espnet:1", resources: {limits: {memory: 4Gi, nvidia.com/gpu: 1}},
    volumes: [{name: data, persistentVolumeClaim: {claimName: data}}],
    volume_mounts: [{name: data, mountPath: /data}]"""


def test_plan_prints_the_manifests_of_both_kinds_of_runs(conf):
    """A DaskCluster and a Job, whose pods have the options' image, volumes and devices; no server is asked."""
    done = CliRunner().invoke(plan, [conf("kube", OPTIONS, 2)])
    assert done.exit_code == 0, done.output
    cluster, job = yaml.safe_load_all(done.output)
    assert (cluster["kind"], job["kind"]) == ("DaskCluster", "Job")
    worker, scheduler = cluster["spec"]["worker"]["spec"], cluster["spec"]["scheduler"]["spec"]
    pod = job["spec"]["template"]["spec"]
    for each in (worker, scheduler, pod):
        assert each["volumes"][0]["persistentVolumeClaim"] == {"claimName": "data"}
        assert each["containers"][0]["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
        assert each["containers"][0]["image"] == "lab/espnet:1"
    assert "nvidia.com/gpu" in worker["containers"][0]["resources"]["limits"]
    assert scheduler["containers"][0]["resources"] == {"limits": {"memory": "4Gi"}}
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (8, 2)


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        (True, ["ok  rights for runs with a driver", "ok  rights for runs detached"]),
        (False, ["WRONG  runs detached: this user may not create jobs, list jobs, delete jobs, list pods"]),
    ],
    ids=["all", "none"],
)
def test_doctor_asks_the_server(allowed, said, conf, tmp_path, monkeypatch):
    """Version, namespace, operator, rights and volume claims are asked for; what was not tried is said."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with kubernetes(tmp_path) as server:
        server.allowed = allowed
        output = CliRunner().invoke(doctor, [conf("kube", OPTIONS, 2)]).output
    said += ["ok  the API server of context 'lab' answers: Kubernetes 1.31, namespace default"]
    said += ["ok  the operator's resources are known", "WRONG  claim data of volume data is not there"]
    said += ["not checked  that nodes can pull lab/espnet:1"]
    for line in said:
        assert line in output


def test_doctor_says_that_no_server_answers(conf, tmp_path, monkeypatch):
    """Without one the other checks go on, and the command fails."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with kubernetes(tmp_path):
        pass
    done = CliRunner().invoke(doctor, [conf("kube", OPTIONS, 2)])
    assert done.exit_code == 1 and "of context 'lab' at http://127.0.0.1" in done.output
    assert "does not answer" in done.output
