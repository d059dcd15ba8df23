"""The lab that `make test-kube` starts, for tests: its blocks, its objects, and that nothing is left of a test."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.waiting import wait_until

LAB = Path(os.environ.get("KUBE_LAB", "."))
KINDS = "daskclusters,daskworkergroups,jobs,deployments,pods,services,configmaps"
OWN = ("service/kubernetes", "configmap/kube-root-ca.crt")  # of the server, in every namespace


def kubectl(*words, given=None):
    """Run kubectl, with an object for its `-f -`, and return what it prints."""
    command = ["kubectl", "--cache-dir", str(LAB / "cache"), *words]
    told = None if given is None else json.dumps(given)
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout.strip()


def left():
    """Return everything in the namespace but what the server puts into each."""
    names = kubectl("get", KINDS, "-o", "name", "--ignore-not-found").splitlines()
    return [name for name in names if name not in OWN]


def block(n_workers=2, image="lab/espnet:1", **more):
    """Return a `parallel` block; the volume is the machine's own disk, which pods of the lab see anyway."""
    options = {
        "image": image,
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumes": [{"name": "disk", "hostPath": {"path": "/"}}],
        "volume_mounts": [{"name": "disk", "mountPath": "/"}],
        **more.pop("options", {}),
    }
    return {"env": "kube", "n_workers": n_workers, "start_timeout": 90, "options": options, **more}


@pytest.fixture(scope="session", autouse=True)
def _only_here():
    """Refuse to run where there is no lab."""
    if "KUBE_LAB" not in os.environ:
        pytest.exit("tests on Kubernetes run by `make test-kube`", returncode=3)


@pytest.fixture(autouse=True)
def _clean(request):
    """After every test the namespace is empty; a class keeps one cluster for all its tests."""
    yield
    if request.cls is None:
        wait_until(lambda: not left(), 90, every=0.3, said=lambda: kubectl("get", KINDS))


def pytest_collection_modifyitems(items):
    """The lab is older than the versions that kr8s supports, and it says so in every process."""
    for item in items:
        if "clusters/kube" in item.path.as_posix():
            item.add_marker(pytest.mark.kube)
            item.add_marker(pytest.mark.timeout(600))
            item.add_marker(pytest.mark.filterwarnings("ignore:Kubernetes version"))
