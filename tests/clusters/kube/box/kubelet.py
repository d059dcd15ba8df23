"""A kubelet whose containers are processes of this machine, each pod in a network namespace of its own.

There are no images, cgroups or volumes: containers see the machine's files. An image `absent/...` cannot be pulled.
"""

import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
import tempfile
import threading
import time
import traceback
import urllib.request
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.clusters.kube.box.api import PATCH, STATE, api, get, told

NODE, GATEWAY, PORT = "processes", "10.88.0.1", 10250
PODS = {}
NUMBERS = iter(range(2, 60_000))
LOCK = threading.Lock()


def now():
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


START = now()


def sh(*words):
    subprocess.run(words, check=True, capture_output=True)


def beat():
    """Register the node, and say every ten seconds that it is there."""
    labels = {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    told("POST", "/api/v1/nodes", {"metadata": {"name": NODE, "labels": labels}})
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 10
    room = {"cpu": "16", "memory": f"{memory}Ki", "pods": "100", "ephemeral-storage": "10Gi"}
    while True:
        states = (
            ("Ready", "True"),
            ("MemoryPressure", "False"),
            ("DiskPressure", "False"),
            ("PIDPressure", "False"),
        )
        conditions = [
            {"type": kind, "status": status, "reason": "Processes", "message": ""}
            | {"lastHeartbeatTime": now(), "lastTransitionTime": START}
            for kind, status in states
        ]
        addresses = [{"type": "InternalIP", "address": GATEWAY}, {"type": "Hostname", "address": NODE}]
        status = {"capacity": room, "allocatable": room, "conditions": conditions, "addresses": addresses}
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": PORT}}
        told("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, PATCH)
        time.sleep(10)


def expand(text, env):
    return re.sub(
        r"\$\$|\$\(([^)]+)\)", lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), text
    )


class Pod:
    """One pod, from its binding to this node until it is gone."""

    def __init__(self, obj):
        meta = obj["metadata"]
        self.obj, self.uid, self.name, self.space = obj, meta["uid"], meta["name"], meta["namespace"]
        self.path = f"/api/v1/namespaces/{self.space}/pods/{self.name}"
        with LOCK:
            number = next(NUMBERS)
        self.ip, self.net = f"10.88.{2 + number // 250}.{1 + number % 250}", f"p{number}"
        self.dead, self.ready, self.restarts, self.started = False, False, 0, now()
        self.containers, self.processes, self.codes = obj["spec"]["containers"], {}, {}
        threading.Thread(target=self.main, daemon=True).start()

    def main(self):
        try:
            absent = [each for each in self.containers if each.get("image", "").startswith("absent/")]
            if absent:
                self.refuse(absent[0]["image"])
                return
            self.connect()
            for each in self.containers:
                self.spawn(each)
            self.ready = not any("readinessProbe" in each for each in self.containers)
            self.report("Running")
            while not self.dead and not self.step():
                time.sleep(0.25)
        except Exception:
            traceback.print_exc()
            self.report("Failed")

    def refuse(self, image):
        message = f'Failed to pull image "{image}": not found'
        self.report("Pending", waiting={"reason": "ErrImagePull", "message": message})
        about = {"kind": "Pod", "name": self.name, "namespace": self.space, "uid": self.uid}
        event = {
            "metadata": {"generateName": f"{self.name}.", "namespace": self.space},
            "involvedObject": about,
        }
        event |= {"reason": "Failed", "message": message, "type": "Warning", "lastTimestamp": now()}
        told("POST", f"/api/v1/namespaces/{self.space}/events", event)

    def connect(self):
        inside = ("ip", "-n", self.net)
        sh("ip", "netns", "add", self.net)
        sh("ip", "link", "add", f"v{self.net}", "type", "veth", "peer", "name", "eth0", "netns", self.net)
        sh("ip", "link", "set", f"v{self.net}", "master", "kube0", "up")
        sh(*inside, "link", "set", "lo", "up")
        sh(*inside, "address", "add", f"{self.ip}/16", "dev", "eth0")
        sh(*inside, "link", "set", "eth0", "up")
        sh(*inside, "route", "add", "default", "via", GATEWAY)

    def env(self, container):
        meta = self.obj["metadata"]
        fields = {"metadata.name": self.name, "metadata.namespace": self.space, "metadata.uid": self.uid}
        fields |= {"status.podIP": self.ip, "spec.nodeName": NODE, "status.hostIP": GATEWAY}
        fields |= {
            f"metadata.annotations['{name}']": value for name, value in meta.get("annotations", {}).items()
        }
        kept = ("PATH", "HOME", "TMPDIR", "PYTHONDONTWRITEBYTECODE")
        env = {name: os.environ[name] for name in kept} | {"HOSTNAME": self.name, "PYTHONUNBUFFERED": "1"}
        for each in container.get("env") or []:
            field = (each.get("valueFrom") or {}).get("fieldRef", {}).get("fieldPath")
            env[each["name"]] = fields.get(field, "") if field else expand(each.get("value", ""), env)
        return env

    def spawn(self, container):
        env = self.env(container)
        words = [expand(word, env) for part in ("command", "args") for word in container.get(part) or []]
        with open(STATE / "pods" / f"{self.uid}.{container['name']}.log", "ab") as log:
            self.processes[container["name"]] = subprocess.Popen(
                ["ip", "netns", "exec", self.net, *words],
                env=env,
                stdout=log,
                stderr=log,
                cwd=container.get("workingDir") or tempfile.gettempdir(),
                start_new_session=True,
            )

    def step(self):
        """Look at the processes; return whether the pod has ended."""
        policy = self.obj["spec"].get("restartPolicy", "Always")
        for each in self.containers:
            code = self.processes[each["name"]].poll()
            if code is None or each["name"] in self.codes:
                continue
            if policy == "Always" or (policy == "OnFailure" and code):
                self.restarts, self.ready = self.restarts + 1, False
                waiting = {"reason": "CrashLoopBackOff"} if self.restarts > 2 else None
                self.report("Running", waiting=waiting)
                time.sleep(min(2**self.restarts, 20))
                if not self.dead:
                    self.spawn(each)
            else:
                self.codes[each["name"]] = code if code >= 0 else 128 - code
        if len(self.codes) == len(self.containers):
            self.ready = False
            self.report("Failed" if any(self.codes.values()) else "Succeeded")
            self.kill()
            subprocess.run(["ip", "netns", "del", self.net], capture_output=True, check=False)
            return True
        ready = all(self.probe(each) for each in self.containers)
        if ready != self.ready:
            self.ready = ready
            self.report("Running")
        return False

    def probe(self, container):
        if self.processes[container["name"]].poll() is not None:
            return False
        http = (container.get("readinessProbe") or {}).get("httpGet")
        if not http:
            return True
        ports = [
            port["containerPort"] for port in container.get("ports", []) if port.get("name") == http["port"]
        ]
        address = f"http://{self.ip}:{(ports or [http['port']])[0]}{http.get('path', '/')}"
        try:
            with urllib.request.urlopen(address, timeout=2) as answer:
                return answer.status < 400
        except OSError:
            return False

    def report(self, phase, waiting=None):
        if self.dead:
            return

        def state(container):
            if container["name"] in self.codes:
                code = self.codes[container["name"]]
                ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
                return {"terminated": ended | {"startedAt": self.started, "finishedAt": now()}}
            return {"waiting": waiting} if waiting else {"running": {"startedAt": self.started}}

        ready = self.ready and phase == "Running"
        states = (("Initialized", True), ("Ready", ready), ("ContainersReady", ready), ("PodScheduled", True))
        status = {
            "phase": phase,
            "podIP": self.ip,
            "podIPs": [{"ip": self.ip}],
            "hostIP": GATEWAY,
            "startTime": self.started,
            "conditions": [{"type": t, "status": str(s), "lastTransitionTime": now()} for t, s in states],
            "containerStatuses": [
                {"name": each["name"], "image": each.get("image", ""), "imageID": "process", "ready": ready}
                | {"started": not waiting, "restartCount": self.restarts, "state": state(each)}
                for each in self.containers
            ],
        }
        told("PATCH", f"{self.path}/status", {"metadata": {"uid": self.uid}, "status": status}, PATCH)

    def stop(self, remove):
        if self.dead:
            return
        self.dead = True
        for each in self.processes.values():
            each.send_signal(signal.SIGTERM)  # to a container's first process alone, as runtimes do
        end = time.monotonic() + min(self.obj["spec"].get("terminationGracePeriodSeconds", 30), 10)
        while time.monotonic() < end and any(each.poll() is None for each in self.processes.values()):
            time.sleep(0.05)
        self.kill()
        subprocess.run(["ip", "netns", "del", self.net], capture_output=True, check=False)
        if remove:
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
            told("DELETE", self.path, body)

    def kill(self):
        for each in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)


def see(kind, obj):
    """Do what a change of a pod asks for."""
    meta = obj["metadata"]
    pod = PODS.get(meta["uid"])
    if kind == "DELETED":
        if pod:
            threading.Thread(target=pod.stop, args=(False,), daemon=True).start()
    elif "deletionTimestamp" in meta:
        if pod:
            threading.Thread(target=pod.stop, args=(True,), daemon=True).start()
        else:
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            told("DELETE", path, {"gracePeriodSeconds": 0})
    elif not pod and obj.get("status", {}).get("phase") in (None, "Pending"):
        PODS[meta["uid"]] = Pod(obj)


def watch():
    mine = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}"
    while True:
        try:
            listed = get(mine)
            for obj in listed["items"]:
                see("ADDED", obj)
            version = listed["metadata"]["resourceVersion"]
            with api(
                "GET", f"{mine}&watch=1&timeoutSeconds=120&resourceVersion={version}", timeout=150
            ) as lines:
                for line in lines:
                    event = json.loads(line)
                    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                        see(event["type"], event["object"])
        except OSError as error:
            print("watch", repr(error), flush=True)
            time.sleep(0.5)


class Logs(BaseHTTPRequestHandler):
    """What the API server asks a kubelet for when somebody wants a pod's log."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        path, _, query = self.path.partition("?")
        parts = path.strip("/").split("/")
        place = tuple(parts[1:3])
        found = [pod for pod in PODS.values() if (pod.space, pod.name) == place]
        file = STATE / "pods" / f"{found[-1].uid}.{parts[3]}.log" if found and len(parts) == 4 else None
        there = file is not None and file.exists()
        self.send_response(200 if there else 404)
        self.end_headers()
        if there:
            lines = file.read_bytes().splitlines(keepends=True)
            tail = re.search(r"tailLines=(\d+)", query)
            self.wfile.write(b"".join(lines[-int(tail[1]) :] if tail else lines))


def serve_logs():
    server = ThreadingHTTPServer(("0.0.0.0", PORT), Logs)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(STATE / "certs" / "api.crt", STATE / "certs" / "api.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    for each in (beat, serve_logs):
        threading.Thread(target=each, daemon=True).start()
    watch()
