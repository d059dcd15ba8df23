"""From a Job and its pods to the state of a shard: a pure function, since much of it is rarely seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.parallel.detached.states import JobState
from espnet3.parallel.kube.jobs import AGAIN, indices_of
from espnet3.parallel.kube.looking import how_it_ended, is_disrupted, is_going, waits_for


def shard_state(
    job: Mapping[str, Any] | None, index: str, pods: Sequence[Mapping[str, Any]], *, has_ended: bool
) -> tuple[JobState, str]:
    """Return the state of a shard that gives no sign of life."""
    if job is None:
        if pods and not is_going(pods[-1]):
            return JobState.RUNNING, "its Job was deleted, and its pod is still there"
        return JobState.LOST, "its Job is gone: deleted, or kept no longer"
    name = job["metadata"]["name"]
    status = job.get("status", {})
    end, reason = _end(status, index)
    if end == "Complete":
        if has_ended:
            return JobState.FAILED, f"Job {name} is complete"
        return JobState.FAILED, f"Job {name} is complete, and its worker wrote no outcome"
    if end == "Failed":
        return _failure(name, pods, reason)
    return _going_on(job, pods)


def _going_on(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> tuple[JobState, str]:
    name = job["metadata"]["name"]
    if "deletionTimestamp" in job["metadata"]:
        return JobState.RUNNING, f"Job {name} is being deleted"
    if job["spec"].get("suspend"):
        return JobState.PENDING, f"Job {name} is suspended"
    if not pods:
        return JobState.PENDING, f"Job {name} has not made its pod yet"
    pod = pods[-1]
    pod_name, phase = pod["metadata"]["name"], pod.get("status", {}).get("phase")
    if is_going(pod):
        code, word = how_it_ended(pod)
        said = f" with status {code} ({word})" if code is not None else ""
        return JobState.PENDING, f"pod {pod_name} ended{said}, and another one takes its place"
    if phase == "Running":
        return JobState.RUNNING, f"pod {pod_name} runs"
    return JobState.PENDING, f"pod {pod_name} waits: {waits_for(pod) or phase}"


def _end(status: Mapping[str, Any], index: str) -> tuple[str, str]:
    """Return "Complete" or "Failed" where a Job, or the index of one, has ended, and Kubernetes' reason."""
    if index:
        if int(index) in indices_of(status.get("completedIndexes")):
            return "Complete", ""
        if int(index) in indices_of(status.get("failedIndexes")):
            return "Failed", "FailedIndexes"
    for condition in status.get("conditions") or []:
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return condition["type"], ": ".join(
                str(condition[part]) for part in ("reason", "message") if condition.get(part)
            )
    return "", ""


def _failure(name: str, pods: Sequence[Mapping[str, Any]], reason: str) -> tuple[JobState, str]:
    text = f"Job {name} failed ({reason})" if reason else f"Job {name} failed"
    if "DeadlineExceeded" in reason:
        return JobState.TIMEOUT, text
    if not pods:
        return JobState.FAILED, text
    code, word = how_it_ended(pods[-1])
    ended = f"{text}: its last pod ended with status {code} ({word})"
    if "OOMKilled" in word:
        return JobState.OUT_OF_MEMORY, ended
    if is_disrupted(pods[-1]):
        return JobState.PREEMPTED, ended
    return (JobState.UNFINISHED if code == AGAIN else JobState.FAILED), ended
