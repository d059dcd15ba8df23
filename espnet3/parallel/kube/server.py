"""The API server of Kubernetes: connection, rights, and plain requests with errors in words."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from espnet3.parallel.dask_compat import close_connections
from espnet3.parallel.errors import ConfigError, ParallelError

T = TypeVar("T")

_GROUP = "kubernetes.dask.org"
_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_INSTALL = (
    "helm install --repo https://helm.dask.org --create-namespace -n dask-operator --generate-name "
    "dask-kubernetes-operator"
)
_NO_CREDENTIALS = (
    "env: kube: no credentials for a Kubernetes cluster: there is no kubeconfig (KUBECONFIG, or ~/.kube/config) that "
    "names a server, and this is not a pod with a service account. `kubectl config get-contexts` lists yours"
)
_SECONDS = 30.0  # a server that has not answered a request by then does not answer
_EVENTS = 5  # of one pod, the last ones
_LINES = 15  # at the end of a log


class RefusedError(ParallelError):
    """The API server answered a request with an error; the message is the server's own."""


class Server(AbstractContextManager["Server"]):
    """The API server of the current context, and the namespace of a run.

    A ConfigError says that there are no credentials, or none that can be used; that no server answers, or this
    user is refused.
    """

    def __init__(self, namespace: str | None = None) -> None:
        context = current_context()
        self.place = "env: kube: the API server" + (f" of context {context!r}" if context else "")
        self._loop = asyncio.new_event_loop()
        self._api: Any = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="espnet3-kube", daemon=True)
        self._thread.start()
        try:
            told, own = self._sync(self._connect())
        except BaseException:
            self.close()
            raise
        self.namespace: str = namespace or own or "default"
        # some servers say no number
        major, minor = ("".join(filter(str.isdigit, told.get(part, ""))) for part in ("major", "minor"))
        self.version = int(major or 1), int(minor or 0)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and end the thread that talks to the server."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(close_connections(self._api), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def require_operator(self) -> None:
        """Raise unless the server knows what dask-kubernetes creates."""
        groups = {group["name"] for group in (self.get("/apis") or {}).get("groups", [])}
        if _GROUP not in groups:
            raise ConfigError(
                f"{self.place} does not know {_GROUP}: the operator of dask-kubernetes, which makes pods of a "
                f"DaskCluster, is not installed there. An administrator can: {_INSTALL}"
            )

    def require_rights(self) -> None:
        """Raise unless this user may create and delete clusters.

        kr8s asks again with a fresh connection when it is refused, and closes one that it is using meanwhile: its own
        error need not say what was refused.
        """
        missing = [verb for verb in ("get", "create", "delete") if not self.may(verb, _GROUP, "daskclusters")]
        if missing:
            raise ConfigError(
                f"{self.place}: this user may not {', '.join(missing)} daskclusters ({_GROUP}) in the namespace "
                f"{self.namespace!r}; `espnet3-parallel doctor` lists every right that a run needs"
            )

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Return whether this user has a right in the namespace."""
        name, _, part = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": name, "subresource": part}
        spec = {"resourceAttributes": {"namespace": self.namespace, **asked}}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
        return bool(self.post(_REVIEW, review)["status"].get("allowed"))

    def path(self, group: str, kind: str, name: str = "") -> str:
        """Return the path of a kind of objects in the run's namespace, or of one of them."""
        base = "/api" if group == "v1" else "/apis"
        return f"{base}/{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def get(self, path: str, **query: str) -> Any:
        """Return the object at a path; None where there is none."""
        return self._json("GET", path, query)

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return the objects of a list."""
        found: list[dict[str, Any]] = (self.get(path, **query) or {}).get("items", [])
        return found

    def text(self, path: str, **query: str) -> str | None:
        """Return a text, such as a log; None where there is none."""
        answer = self._sync(self._request("GET", path, params=query))
        return None if answer is None else str(answer.text)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Create an object, or ask a question that is one."""
        return self._json("POST", path, {}, body)

    def delete(self, path: str, **query: str) -> bool:
        """Delete an object and what belongs to it; return whether it was there."""
        return self._json("DELETE", path, {"propagationPolicy": "Background", **query}) is not None

    def _json(self, method: str, path: str, query: Mapping[str, str], body: Any = None) -> Any:
        answer = self._sync(self._request(method, path, params=query, json=body))
        return None if answer is None else answer.json()

    def _sync(self, work: Coroutine[Any, Any, T]) -> T:
        import httpx
        import kr8s

        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except ValueError as error:
            if "credentials" in str(error):
                raise ConfigError(_NO_CREDENTIALS) from error
            raise ConfigError(f"env: kube: the kubeconfig cannot be used: {error}") from error
        except (httpx.HTTPError, kr8s.APITimeoutError, OSError, asyncio.TimeoutError) as error:
            request = getattr(error, "_request", None)  # `error.request` raises where there is none
            at = f" at {request.url.copy_with(path='/')}" if request is not None else ""
            raise NoAnswerError(
                f"{self.place}{at} does not answer: {str(error) or type(error).__name__}. `kubectl get nodes` asks it "
                "too; `kubectl config use-context` chooses another cluster"
            ) from error

    async def _connect(self) -> tuple[Mapping[str, Any], str]:
        import kr8s

        api: Any = await kr8s.asyncio.api()
        self._api = api
        try:
            return await api.async_version(), api.namespace
        except kr8s.ServerError as error:
            raise ConfigError(f"{self.place} refuses this user: {error}") from error

    async def _request(self, method: str, path: str, **more: Any) -> Any:
        import kr8s

        base, _, last = path.rpartition("/") if path.count("/") > 1 else (path, "", "")
        try:
            async with self._api.call_api(
                method, version="", base=base, url=last, timeout=_SECONDS, **more
            ) as answer:
                return answer
        except kr8s.ServerError as error:
            status = error.response.status_code if error.response is not None else 0
            if status == 404 and method != "POST":
                return None
            if status in (401, 403) and path == "/apis":
                raise ConfigError(f"{self.place} refuses this user: {error}") from error
            raise RefusedError(str(error)) from error


class NoAnswerError(ConfigError, OSError):
    """No API server answers; also an `OSError`, as the query for a run's state expects."""


def current_context() -> str:
    """Return the name of the current context, as kubectl finds it: of the first file in KUBECONFIG that has one."""
    import yaml

    for name in (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep):
        try:
            with open(os.path.expanduser(name), encoding="utf-8") as file:
                config = yaml.safe_load(file)
        except (OSError, ValueError, yaml.YAMLError):  # kr8s, which reads it too, has the last word
            continue
        if isinstance(config, dict) and config.get("current-context"):
            return str(config["current-context"])
    return ""


def how_it_ended(pod: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return the exit status of a pod's container, and what Kubernetes calls its end; None: it has none."""
    status = pod.get("status", {})
    containers = status.get("containerStatuses", [])
    states = (each.get(when, {}) for each in containers for when in ("state", "lastState"))
    ended = next(filter(None, (state.get("terminated") for state in states)), status)
    return ended.get("exitCode"), joined(ended)


def holding(status: Mapping[str, Any], *kinds: str) -> Mapping[str, Any] | None:
    """Return the first condition of these kinds that holds by the status of a pod or a Job."""
    found = (each for each in status.get("conditions") or [] if each.get("status") == "True")
    return next((each for each in found if each.get("type") in kinds), None)


def is_disrupted(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod ended because its node or its place was taken: no fault of its own."""
    status = pod.get("status", {})
    reasons = ("Evicted", "Preempting", "NodeLost", "Shutdown")
    return holding(status, "DisruptionTarget") is not None or status.get("reason") in reasons


def is_going(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod has been told to end, or has ended."""
    phase = pod.get("status", {}).get("phase")
    return "deletionTimestamp" in pod.get("metadata", {}) or phase in ("Succeeded", "Failed")


def sentence(pod: Mapping[str, Any]) -> str:
    """Return the state of a pod in a few words, and why it does not run: the scheduler's reason, or the node's."""
    status = pod.get("status", {})
    phase = str(status.get("phase", "Unknown"))
    waits = [each.get("state", {}).get("waiting") for each in status.get("containerStatuses", [])]
    placed = (each for each in status.get("conditions", []) if each.get("type") == "PodScheduled")
    waits += [each for each in placed if each.get("status") == "False"]
    code, word = how_it_ended(pod)
    ended = f"its container ended with status {code} ({word})" if code is not None else ""
    why = "; ".join(part for part in (joined(next(filter(None, waits), status)), ended) if part)
    return f"{phase}: {why}" if why else phase


def events_of(server: Server, name: str) -> list[str]:
    """Return the last events of a pod, in order, a line each; none where this user may not read them."""
    selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
    try:
        found = server.items(server.path("v1", "events"), fieldSelector=selector)
    except RefusedError as error:
        return [f"(its events cannot be read: {error})"]
    found.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return list(map(joined, found[-_EVENTS:]))


def log_of(server: Server, pod: Mapping[str, Any], lines: int = _LINES) -> str:
    """Return the end of what a pod printed; "" where there is nothing to be had."""
    path = server.path("v1", "pods", pod["metadata"]["name"]) + "/log"
    # the second: of the container before, where one has just been started again
    for previous in ({}, {"previous": "true"}):
        try:
            text = server.text(path, tailLines=str(lines), **previous)
        except RefusedError:  # it has not begun, or never will
            continue
        if text and text.strip():
            return text.rstrip()
    return ""


def joined(what: Mapping[str, Any]) -> str:
    """Return the reason and the message of a state, condition or event in one line."""
    return ": ".join(str(part).strip() for part in map(what.get, ("reason", "message")) if part)
