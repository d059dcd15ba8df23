"""A small API server: it keeps Jobs by the rules of `controller`, and runs their pods as processes of this machine.

It is not Kubernetes: it schedules at once, knows no images, and answers only what this package asks.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.parallel.kube.controller import Course, refusals

CONDITIONS = (1, 26)  # a pod that is evicted or preempted says so from there on
GRACE = 1.0  # seconds that a pod has, once it is told to end
LIVING = ("Pending", "Running")
INDEX = "batch.kubernetes.io/job-completion-index"
PATH = re.compile(r"/apis?(?:/[a-z.]+)?/v1/namespaces/default/(jobs|pods|daskclusters)(?:/([^/]+))?(/log)?")


class Cluster:
    """What it holds, by name."""

    def __init__(self, version: tuple[int, int], folder: Path) -> None:
        self.version, self.folder = version, folder
        self.jobs: dict[str, Any] = {}
        self.pods: dict[str, Any] = {}
        self.clusters: dict[str, Any] = {}
        self.courses: dict[str, Course] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.runs, self.allowed = True, True
        self.groups, self.forbids = ["kubernetes.dask.org", "batch"], ""
        self.refuses: tuple[int, str] | None = None
        self.asked: Counter[str] = Counter()
        self.lock = threading.RLock()
        self.deleted = threading.Event()
        self.count = 0

    def create(self, job: dict[str, Any]) -> None:
        """Take a Job, and start its pods."""
        name = job["metadata"]["name"]
        self.jobs[name], self.courses[name] = {**job, "status": {}}, Course(job["spec"])
        self.fill(name)

    def fill(self, job: str) -> None:
        """Start the pods that a Job is to have now."""
        course = self.courses[job]
        alive = [self.index(pod) for pod in self.pods_of(job) if pod["status"]["phase"] in LIVING]
        for index in course.wanted(alive):
            self.start(self.jobs[job], index if course.is_indexed else None)
        self.jobs[job]["status"] = course.status()

    def pods_of(self, job: str) -> list[dict[str, Any]]:
        return [pod for pod in self.pods.values() if pod["metadata"]["labels"]["job-name"] == job]

    def index(self, pod: dict[str, Any]) -> int:
        """Return the index of a pod in its Job; that of a plain Job is 0."""
        return int(pod["metadata"]["annotations"].get(INDEX, 0))

    def start(self, job: dict[str, Any], index: int | None) -> None:
        """Start a pod of a Job."""
        self.count += 1
        name = f"{job['metadata']['name']}-{self.count}"
        labels = {**job["spec"]["template"]["metadata"]["labels"], "job-name": job["metadata"]["name"]}
        notes = {} if index is None else {INDEX: str(index)}
        created = f"2026-01-01T00:{self.count // 60:02d}:{self.count % 60:02d}Z"
        meta = {"name": name, "labels": labels, "annotations": notes, "creationTimestamp": created}
        waiting = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
        status = {"phase": "Pending", "containerStatuses": [{"state": waiting}]}
        self.pods[name] = {"metadata": meta, "status": status}
        if not self.runs:
            return
        (container,) = job["spec"]["template"]["spec"]["containers"]
        words = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in container["command"]]
        words[0] = sys.executable if words[0] == "python" else words[0]
        env = {**os.environ, **{each["name"]: each["value"] for each in container["env"]}}
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                words, env=env, cwd=container["workingDir"], stdout=log, stderr=log, start_new_session=True
            )
        self.pods[name]["status"] = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}

    def look(self) -> None:
        """Note which processes have ended, and go by the rules of their Jobs."""
        for name in list(self.processes):
            pod = self.pods.get(name)
            code = self.processes[name].poll()
            if pod is None or code is None or pod["status"]["phase"] != "Running":
                continue
            code = code if code >= 0 else 128 - code
            ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
            state = {"containerStatuses": [{"state": {"terminated": ended}}]}
            kept = {part: value for part, value in pod["status"].items() if part == "conditions"}
            pod["status"] = {**kept, "phase": "Failed" if code else "Succeeded", **state}
            job = pod["metadata"]["labels"]["job-name"]
            conditions = [each["type"] for each in kept.get("conditions", [])]
            self.courses[job].ended(self.index(pod), code, conditions)
            if self.courses[job].over:
                for other in self.pods_of(job):
                    self.end(other["metadata"]["name"])
            self.fill(job)

    def end(self, pod: str, meanwhile: Callable[[], None] | None = None) -> None:
        """Tell a pod's process to end, and kill it when its time is up."""
        process = self.processes.get(pod)
        if process is None:
            return
        process.terminate()
        if meanwhile is not None:
            meanwhile()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def take(self, index: int, why: str | None, meanwhile: Callable[[], None]) -> None:
        """Take the pod of an index of the only Job away, for a reason; None: it was deleted."""
        with self.lock:
            self.look()
            running = [pod for pod in self.pods.values() if pod["status"]["phase"] == "Running"]
            (pod,) = [each for each in running if self.index(each) == index]
            if why is not None and self.version >= CONDITIONS:
                told = {"type": "DisruptionTarget", "status": "True", "reason": why}
                pod["status"]["conditions"] = [told]
            self.end(pod["metadata"]["name"], meanwhile)
            self.look()
            if why is None:
                del self.pods[pod["metadata"]["name"]]

    def delete(self, name: str) -> None:
        for pod in [each["metadata"]["name"] for each in self.pods_of(name)]:
            self.end(pod)
            del self.pods[pod]
        del self.jobs[name], self.courses[name]

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        """Return the status and the body of the answer to a request."""
        parts, query = urlsplit(url), parse_qs(urlsplit(url).query)
        path = parts.path.rstrip("/")
        self.look()
        self.asked[path] += 1
        if path == "/version":
            major, minor = self.version
            return 200, {"major": str(major), "minor": f"{minor}+", "gitVersion": f"v{major}.{minor}.0"}
        if self.forbids:
            return 403, {"kind": "Status", "status": "Failure", "message": self.forbids, "code": 403}
        if path == "/apis":
            return 200, {"kind": "APIGroupList", "groups": [{"name": name} for name in self.groups]}
        if path.endswith("selfsubjectaccessreviews"):
            return 201, {"status": {"allowed": self.allowed}}
        if method == "POST" and path.endswith("/jobs"):
            if self.refuses is not None:
                return self.refuses[0], {"message": self.refuses[1]}
            if refused := refusals(body):
                return 422, {"message": "; ".join(refused)}
            self.create(body)
            return 201, body
        return self.look_up(method, path, query)

    def look_up(self, method: str, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        """Return the answer to a question about Jobs and pods."""
        found = PATH.fullmatch(path)
        if found is None:
            return (
                (200, {"items": []}) if "namespaces/default/" in path and path.endswith("s") else (404, None)
            )
        held = {"jobs": self.jobs, "pods": self.pods, "daskclusters": self.clusters}[found[1]]
        if found[2] is None:
            label, _, value = query.get("labelSelector", [""])[0].partition("=")
            items = [each for each in held.values() if each["metadata"]["labels"].get(label) == value]
            return 200, {"items": items}
        if found[2] not in held:
            return 404, None
        if found[3]:
            file = self.folder / f"{found[2]}.log"
            return 200, file.read_text() if file.exists() else ""
        if method == "DELETE" and found[1] == "daskclusters":
            del held[found[2]]
            self.deleted.set()
        elif method == "DELETE":
            self.delete(found[2])
        return 200, held.get(found[2], {})


@contextmanager
def kubernetes(folder: Path, version: tuple[int, int] = (1, 31)) -> Iterator[Cluster]:
    """Serve a cluster on loopback, and write `kubeconfig` into a folder; what still runs at the end is killed."""
    cluster = Cluster(version, folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            with cluster.lock:
                status, said = cluster.answer(self.command, self.path, body)
            text = (
                said.encode()
                if isinstance(said, str)
                else json.dumps(said or {"message": "not found"}).encode()
            )
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815  as the base calls them

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "lab",
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    try:
        yield cluster
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for process in cluster.processes.values():
            process.kill()
            process.wait()
