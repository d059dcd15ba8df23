"""What is asked of a Kubernetes API server before a cluster is created, on servers that answer as its pages say."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = """
from espnet3.parallel import parallel_map, set_parallel
set_parallel({"env": "kube", "n_workers": 1, "options": {"image": "lab/espnet:1"}})
parallel_map(abs, [1, 2])
"""


@contextmanager
def api_server(answers: dict[str, tuple[int, object]]) -> Iterator[str]:
    """Serve answers by path, and 404 for others; yield the server's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(
                self.path.partition("?")[0].rstrip("/"), (404, {"message": "not found"})
            )
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def message(tmp_path: Path) -> Callable[[str | None], str]:
    """Return a function that starts a run with a kubeconfig for a server (None: without one), and returns its error."""

    def start(server: str | None) -> str:
        config = tmp_path / "kubeconfig"
        if server is not None:
            config.write_text(
                json.dumps(
                    {
                        "apiVersion": "v1",
                        "kind": "Config",
                        "clusters": [{"name": "c", "cluster": {"server": server}}],
                        "users": [{"name": "u", "user": {"token": "t"}}],
                        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
                        "current-context": "lab",
                    }
                )
            )
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"KUBECONFIG": str(config), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 1
        return done.stderr.splitlines()[-1]

    return start


VERSION = {"major": "1", "minor": "31", "gitVersion": "v1.31.0"}
GROUPS: dict[str, object] = {"kind": "APIGroupList", "groups": []}


def test_no_credentials_are_an_error_that_says_where_they_are_looked_for(
    message: Callable[[str | None], str],
) -> None:
    """Without a kubeconfig the message names the variable, the file and the command that lists contexts."""
    said = message(None)
    assert said.startswith("espnet3.parallel.errors.ConfigError: env: kube: no credentials")
    assert "KUBECONFIG" in said and "~/.kube/config" in said and "kubectl config get-contexts" in said


@pytest.mark.matrix
def test_a_server_that_nobody_runs_is_named_with_its_context(message: Callable[[str | None], str]) -> None:
    """A refused connection names the address, the context and what asks it too."""
    with api_server({}) as gone:
        pass
    said = message(gone)
    assert f"the API server of context 'lab' at {gone}/ does not answer" in said
    assert "kubectl get nodes" in said


@pytest.mark.matrix
def test_a_server_that_refuses_the_user_is_quoted(message: Callable[[str | None], str]) -> None:
    """What the server says to a user without rights is in the message."""
    refusal = (403, {"kind": "Status", "status": "Failure", "message": "forbidden: user u", "code": 403})
    with api_server({"/version": (200, VERSION), "/api": refusal, "/apis": refusal}) as server:
        said = message(server)
    assert "the API server of context 'lab' refuses this user" in said and "forbidden: user u" in said


def test_a_server_without_the_operator_says_what_to_install(message: Callable[[str | None], str]) -> None:
    """Where DaskClusters are unknown, the message has the command that installs the operator."""
    answers = {"/version": (200, VERSION), "/api": (200, {"versions": ["v1"]}), "/apis": (200, GROUPS)}
    with api_server(answers) as server:
        said = message(server)
    assert "of context 'lab' does not know kubernetes.dask.org" in said
    assert "helm install --repo https://helm.dask.org" in said
