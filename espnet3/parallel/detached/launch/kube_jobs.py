"""`env: kube` without a driver: Jobs whose pods see the run folder on a volume, and their states by the API server.

specs on the volume ──> noted in the run folder ──> Jobs created          (nothing created is out of cancel's reach)
a silent shard ──> its Job and pods, by the run's label ──> waiting, running, ended with a word, or truly gone
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.parallel.backends import row
from espnet3.parallel.backends.backend import require_package
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.layout import DONE, Layout, Plan, parts
from espnet3.parallel.detached.states import JobState, Queue
from espnet3.parallel.errors import ConfigError, ParallelError
from espnet3.parallel.kube import manifests as kube
from espnet3.parallel.kube import server as api
from espnet3.parallel.kube.server import RefusedError, Server
from espnet3.parallel.ledger.files import make_folder, write_json, write_whole

FOLDER = "jobs"
_PLACE = "place.json"  # holds the namespace of the Jobs
_LOOK = 0.5  # seconds between looks while cancelled pods end
_LATE = 60.0  # seconds beyond their grace that pods may take to go
_GRACE = 30.0  # of Kubernetes, for a pod that is told to end
_ALL = 100_000  # lines of a log


def _label(layout: Layout) -> str:
    return hashlib.sha256(os.fsencode(layout.home() or layout.run)).hexdigest()[:32]


def check(config: ParallelConfig) -> None:
    """Raise where the package is missing, no API server can be used, or pods would not see this run."""
    require_package(row(config.env))
    if config.options.get("custom_cluster_spec") is not None:
        raise ConfigError(
            "options.custom_cluster_spec is a cluster with a driver, and detached jobs have none: give image, "
            "volumes, volume_mounts, resources and so on as options"
        )
    if config.options.get("image") is None:
        raise ConfigError(
            "options.image is missing: detached jobs need an image that has this package and your code"
        )
    _check_mounts(config.options, "the current folder", os.getcwd())
    Server(config.options.get("namespace")).close()


def _check_mounts(options: Mapping[str, Any], what: str, path: str) -> None:
    mounts = options.get("volume_mounts") or []
    if not kube.is_mounted(path, mounts):
        places = ", ".join(str(mount.get("mountPath")) for mount in mounts) or "nothing"
        raise ConfigError(
            f"pods do not see {what} {path!r}: options.volume_mounts shows them {places}. Detached jobs read "
            "and write the run folder: mount the disk that has it, under its own path, such as volumes: "
            "[{name: data, persistentVolumeClaim: {claimName: data}}], volume_mounts: [{name: data, mountPath: /data}]"
        )


def start(layout: Layout, plan: Plan, shards: list[int], raised: dict[str, float]) -> None:
    """Create the Jobs of shards, and note them."""
    _check_mounts(plan.options, "the run folder", str(layout.run))
    folder = layout.folder / FOLDER
    make_folder(folder)
    jobs: dict[str, str] = {}
    printed(layout, range(plan.n_shards))  # while their pods are there
    with Server(plan.options.get("namespace")) as server:
        _delete(server, layout)
        write_json(folder / _PLACE, {"namespace": server.namespace})
        for factor, part, at_once in parts(shards, raised, plan.n_workers, kube.MOST):
            number, tasks = layout.write_tasks(folder, part)
            facts = kube.JobFacts(_label(layout), kube.new_name(), str(tasks), at_once, factor)
            made = kube.manifests(facts, part, plan.options, server.version)
            ids = [one["metadata"]["name"] for one in made]
            if server.version >= kube.INDEXED:
                ids = [f"{ids[0]}/{at}" for at in range(len(part))]
            write_json(folder / f"jobs.{number}.json", {"apiVersion": "v1", "kind": "List", "items": made})
            _create(server, layout, made)
            jobs |= zip(map(str, part), ids, strict=True)
    layout.note_jobs(jobs, raised)


def _create(server: Server, layout: Layout, made: list[dict[str, Any]]) -> None:
    try:
        for one in made:
            server.post(server.path("batch/v1", "jobs"), one)
    except BaseException as error:
        with contextlib.suppress(ParallelError):
            _delete(server, layout)
        if isinstance(error, RefusedError):
            raise ConfigError(f"{server.place} refused a Job of {layout.run}: {error}") from error
        raise


def query(layout: Layout, jobs: dict[str, str]) -> Queue:
    """Return the states of silent shards, by shard; the server's lists are complete: a Job they leave out is gone."""
    with _server(layout) as server:
        try:
            found = {job["metadata"]["name"]: job for job in _items(server, layout, "batch/v1", "jobs")}
            pods = _pods(server, layout)
        except RefusedError as error:
            raise OSError(str(error)) from error
        states: Queue = {}
        for shard, place in jobs.items():
            name, _, index = place.partition("/")
            own = pods.get(place, [])
            state, note = shard_state(found.get(name), index, own)
            lines = api.log_of(server, own[-1]).splitlines() if own and not state.alive else []
            end = f"; its output ends with: {lines[-1].strip()}" if lines else ""
            states[int(shard)] = state, note + end
        return states


def _server(layout: Layout) -> Server:
    return Server(layout.read(f"{FOLDER}/{_PLACE}").get("namespace"))


def _items(server: Server, layout: Layout, group: str, kind: str) -> list[dict[str, Any]]:
    return server.items(server.path(group, kind), labelSelector=f"{kube.RUN}={_label(layout)}")


def _pods(server: Server, layout: Layout) -> dict[str, list[dict[str, Any]]]:
    # by the id of their shard's job
    found: dict[str, list[dict[str, Any]]] = {}
    every = _items(server, layout, "v1", "pods")
    for pod in sorted(every, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
        labels, notes = (pod["metadata"].get(part) or {} for part in ("labels", "annotations"))
        owner, index = labels.get(kube.OWNER, ""), notes.get(kube.INDEX)
        found.setdefault(f"{owner}/{index}" if index else owner, []).append(pod)
    return found


def cancel(layout: Layout, grace: float) -> None:
    """Delete every Job of a run, and wait until its pods are gone."""
    if not (layout.folder / FOLDER / _PLACE).exists():
        return
    with _server(layout) as server:
        _delete(server, layout)
        end = time.monotonic() + max(grace, _GRACE) + _LATE
        while left := [pod["metadata"]["name"] for pod in _items(server, layout, "v1", "pods")]:
            if time.monotonic() > end:
                raise ParallelError(
                    f"pods of the cancelled run are still there: {', '.join(left[:5])}. "
                    f"kubectl -n {server.namespace} delete pod --force removes one whose node is lost"
                )
            time.sleep(_LOOK)


def _delete(server: Server, layout: Layout) -> None:
    for name in sorted(job["metadata"]["name"] for job in _items(server, layout, "batch/v1", "jobs")):
        server.delete(server.path("batch/v1", "jobs", name))


def printed(layout: Layout, shards: Sequence[int]) -> dict[int, list[Path]]:
    """Return files with what the pods of shards printed: copies, which stay when the pods are gone."""
    folder, ids = layout.folder / FOLDER, layout.jobs()["jobs"]
    silent = [s for s in shards if str(s) in ids and not (layout.shard(s) / DONE).exists()]
    if silent and (folder / _PLACE).exists():
        # copies of earlier are there all the same
        with contextlib.suppress(ParallelError), _server(layout) as server:
            pods = _pods(server, layout)
            for shard in silent:
                for pod in pods.get(ids[str(shard)], []):
                    if text := api.log_of(server, pod, _ALL):
                        file = folder / f"printed.{shard}.{pod['metadata']['name']}.txt"
                        write_whole(file, f"{text}\n".encode())
    return {shard: sorted(folder.glob(f"printed.{shard}.*.txt")) for shard in shards}


def shard_state(
    job: Mapping[str, Any] | None, index: str, pods: Sequence[Mapping[str, Any]]
) -> tuple[JobState, str]:
    """Return the state of a shard that gives no sign of life; what its worker wrote at its end counts before it."""
    if job is None:
        if pods and not api.is_going(pods[-1]):
            return JobState.RUNNING, "its Job was deleted, and its pod is still there"
        return JobState.LOST, "its Job is gone: deleted, or kept no longer"
    name = job["metadata"]["name"]
    end, reason = _end(job.get("status", {}), index)
    if end == "Complete":
        return JobState.FAILED, f"Job {name} is complete, and its worker wrote no outcome"
    if end == "Failed":
        return _failure(name, pods, reason)
    if "deletionTimestamp" in job["metadata"]:
        return JobState.RUNNING, f"Job {name} is being deleted"
    if job["spec"].get("suspend"):
        return JobState.PENDING, f"Job {name} is suspended"
    if not pods:
        return JobState.PENDING, f"Job {name} has not made its pod yet"
    pod = pods[-1]
    note = f"pod {pod['metadata']['name']}: {api.sentence(pod)}"
    if api.is_going(pod):
        return JobState.PENDING, f"{note}; another one takes its place"
    runs = pod.get("status", {}).get("phase") == "Running"
    return JobState.RUNNING if runs else JobState.PENDING, note


def _end(status: Mapping[str, Any], index: str) -> tuple[str, str]:
    if index:
        if int(index) in kube.indices_of(status.get("completedIndexes")):
            return "Complete", ""
        if int(index) in kube.indices_of(status.get("failedIndexes")):
            return "Failed", "FailedIndexes"
    condition = api.holding(status, "Complete", "Failed")
    return ("", "") if condition is None else (condition["type"], api.joined(condition))


def _failure(name: str, pods: Sequence[Mapping[str, Any]], reason: str) -> tuple[JobState, str]:
    text = f"Job {name} failed ({reason})" if reason else f"Job {name} failed"
    if "DeadlineExceeded" in reason:
        return JobState.TIMEOUT, text
    if not pods:
        return JobState.FAILED, text
    code, word = api.how_it_ended(pods[-1])
    ended = f"{text}: its last pod ended with status {code} ({word})"
    if "OOMKilled" in word:
        return JobState.OUT_OF_MEMORY, ended
    if api.is_disrupted(pods[-1]):
        return JobState.PREEMPTED, ended
    return (JobState.UNFINISHED if code == kube.AGAIN else JobState.FAILED), ended
