"""What is asked of a Kubernetes API server before a cluster is created, and what an answer that ends the run says."""

from pathlib import Path

from tests.parallel.contract.helpers import finish, start_script
from tests.parallel.kube.standin import kubernetes

SCRIPT = """
from espnet3.parallel import parallel_map, set_parallel
set_parallel({"env": "kube", "n_workers": 1, "options": {"image": "lab/espnet:1"}})
parallel_map(abs, [1, 2])
"""


def message(folder: Path) -> str:
    """Start a run with the kubeconfig that is in a folder, and return its error."""
    done = finish(start_script(folder, SCRIPT, KUBECONFIG=str(folder / "kubeconfig"), HOME=str(folder)))
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_no_credentials_are_an_error_that_says_where_they_are_looked_for(tmp_path: Path) -> None:
    """Without a kubeconfig the message names the variable, the file and the command that lists contexts."""
    said = message(tmp_path)
    assert said.startswith("espnet3.parallel.errors.ConfigError: env: kube: no credentials")
    assert "KUBECONFIG" in said and "~/.kube/config" in said and "kubectl config get-contexts" in said


def test_a_server_without_the_operator_says_what_to_install(tmp_path: Path) -> None:
    """Where DaskClusters are unknown, the message has the command that installs the operator."""
    with kubernetes(tmp_path) as server:
        server.groups = []
        said = message(tmp_path)
    assert "of context 'lab' does not know kubernetes.dask.org" in said
    assert "helm install --repo https://helm.dask.org" in said
