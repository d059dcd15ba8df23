"""What pods say of themselves, in words: their phase, why they wait, how they ended, and their events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espnet3.parallel.kube.server import RefusedError, Server

_EVENTS = 5  # of one pod, the last ones
_LINES = 15  # at the end of a log
_OF_OLD_POD = ("Succeeded", "Failed")


def waits_for(pod: Mapping[str, Any]) -> str:
    """Return why a pod or its container does not run: the scheduler's reason, or the node's; "": nothing is said."""
    status = pod.get("status", {})
    for container in _containers(pod):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            return _joined(waiting.get("reason"), waiting.get("message"))
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _joined(condition.get("reason"), condition.get("message"))
    return _joined(status.get("reason"), status.get("message"))


def how_it_ended(pod: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return the exit status of a pod's container, and what Kubernetes calls its end; None: it has none."""
    for container in _containers(pod):
        for state in (container.get("state", {}), container.get("lastState", {})):
            ended = state.get("terminated")
            if ended:
                return ended.get("exitCode"), _joined(ended.get("reason"), ended.get("message"))
    return None, _joined(pod.get("status", {}).get("reason"), pod.get("status", {}).get("message"))


def is_disrupted(pod: Mapping[str, Any]) -> bool:
    """Whether a pod ended because its node or its place was taken, which is nobody's fault."""
    status = pod.get("status", {})
    conditions = status.get("conditions", [])
    disrupted = any(c.get("type") == "DisruptionTarget" and c.get("status") == "True" for c in conditions)
    return disrupted or status.get("reason") in ("Evicted", "Preempting", "NodeLost", "Shutdown")


def is_going(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has been told to end, or has ended."""
    phase = pod.get("status", {}).get("phase")
    return "deletionTimestamp" in pod.get("metadata", {}) or phase in _OF_OLD_POD


def sentence(pod: Mapping[str, Any]) -> str:
    """Return the state of a pod in a few words."""
    phase = str(pod.get("status", {}).get("phase", "Unknown"))
    code, word = how_it_ended(pod)
    ended = f"its container ended with status {code} ({word})" if code is not None else ""
    why = "; ".join(part for part in (waits_for(pod), ended) if part)
    return f"{phase}: {why}" if why else phase


def events_of(server: Server, name: str) -> list[str]:
    """Return the last events of a pod, in order, a line each; none where this user may not read them."""
    selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
    try:
        found = server.items(server.path("v1", "events"), fieldSelector=selector)
    except RefusedError as error:
        return [f"(its events cannot be read: {error})"]
    found.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return [_joined(event.get("reason"), event.get("message")) for event in found[-_EVENTS:]]


def log_of(server: Server, pod: Mapping[str, Any], lines: int = _LINES) -> str:
    """Return the end of what a pod printed; "" where there is nothing to be had."""
    path = server.path("v1", "pods", pod["metadata"]["name"]) + "/log"
    for previous in (
        {},
        {"previous": "true"},
    ):  # of the container before, where one has just been started again
        try:
            text = server.text(path, tailLines=str(lines), **previous)
        except RefusedError:  # it has not begun, or never will
            continue
        if text and text.strip():
            return text.rstrip()
    return ""


def _containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod.get("status", {}).get("containerStatuses", [])
    return found


def _joined(reason: Any, message: Any) -> str:
    return ": ".join(str(part).strip() for part in (reason, message) if part)
