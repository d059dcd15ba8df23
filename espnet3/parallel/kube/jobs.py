"""The Jobs of detached runs, as plain data: pure functions that golden files check.

A server from 1.24 on takes one Indexed Job for all shards; an older one a plain Job for each. On both a pod that is
evicted, preempted or deleted is replaced, and an end that another attempt would not change is final.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espnet3.parallel.kube.pods import OPTIONS, RUN, more_memory, pod_fields, variables

INDEXED = (1, 24)
# a limit of attempts for each index (beta there): one bad shard does not end the others; and a pod that was told to end
# has an exit status by the time it is judged
PER_INDEX = (1, 29)
POLICIES = (1, 26)  # podFailurePolicy (beta there)
SHARD = "espnet3-shard"  # the label of a plain Job and its pod
INDEX = "batch.kubernetes.io/job-completion-index"  # the annotation of an Indexed Job's pod
OWNER = "job-name"  # the label that Kubernetes gives to a Job's pods
MOST = 5_000  # elements of an Indexed Job
AGAIN = 75  # EX_TEMPFAIL: the pod was told to end, by whoever deleted it; another one is to go on
_FINAL = (1, 2)  # what the worker ends with where another attempt would end so, too
_ATTEMPTS = 6  # pods that may end badly, for each shard, beside those that were disrupted
_KEPT = 86_400  # seconds for which a Job that has ended, and what its pods printed, can be looked at
_INDEX_VARIABLE = "$(JOB_COMPLETION_INDEX)"  # Kubernetes puts the variable's value there


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the Jobs of one submission have in common.

    Attributes:
        run: The value of their label `espnet3-run`.
        name: The beginning of their names.
        tasks: The file that lists the specs.
        python: The interpreter in the image.
        folder: Where the worker starts.
        import_path: What PYTHONPATH needs; None: the image has the package.
        n_workers: Pods at a time.
        memory_factor: How many times the memory to ask for.
    """

    run: str
    name: str
    tasks: str
    python: str
    folder: str
    import_path: str | None
    n_workers: int
    memory_factor: float = 1.0


def manifests(
    facts: JobFacts, shards: Sequence[int], options: Mapping[str, Any], version: tuple[int, int]
) -> list[dict[str, Any]]:
    """Return the Jobs of shards: one, or one for each."""
    if version < INDEXED:
        return [
            _job(
                facts,
                f"{facts.name}-{shard}",
                {"backoffLimit": _ATTEMPTS},
                _pod(facts, options, str(number), final=0),
                {SHARD: str(shard)},
            )
            for number, shard in enumerate(shards)
        ]
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": len(shards),
        "parallelism": min(facts.n_workers, len(shards)),
    }
    rules: list[dict[str, Any]] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    each = version >= PER_INDEX
    if each:
        spec["backoffLimitPerIndex"] = _ATTEMPTS
        rules.append(_by_status("Ignore", AGAIN))
        rules.append(_by_status("FailIndex", *_FINAL))
    else:
        spec["backoffLimit"] = _ATTEMPTS * len(shards)
    if version >= POLICIES:
        spec["podFailurePolicy"] = {"rules": rules}
    # where an index cannot fail alone, an end that is final counts as complete: the run folder says what it was
    pod = _pod(facts, options, _INDEX_VARIABLE, final=1 if each else 0)
    return [_job(facts, facts.name, spec, pod, {})]


def _by_status(action: str, *statuses: int) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": "In", "values": list(statuses)}}


def _job(
    facts: JobFacts, name: str, spec: dict[str, Any], pod: dict[str, Any], labels: dict[str, str]
) -> dict[str, Any]:
    labels = {RUN: facts.run, **labels}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            **spec,
            "ttlSecondsAfterFinished": _KEPT,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _pod(facts: JobFacts, options: Mapping[str, Any], index: str, final: int) -> dict[str, Any]:
    pod, container = pod_fields(**{name: options.get(name) for name in OPTIONS})
    env = variables(options.get("env"))
    if facts.import_path is not None and all(each["name"] != "PYTHONPATH" for each in env):
        env.append({"name": "PYTHONPATH", "value": facts.import_path})
    command = [facts.python, "-m", "espnet3.parallel.worker", "--final", str(final)]
    command += ["--tasks", facts.tasks, index]
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,  # a job asks Kubernetes nothing
        **pod,
        "containers": [
            {
                "name": "worker",
                **({"image": options["image"]} if options.get("image") else {}),
                **container,
                "workingDir": facts.folder,
                "command": command,
                "env": env,
                "resources": more_memory(options.get("resources"), facts.memory_factor),
            }
        ],
    }


def indices_of(text: str | None) -> set[int]:
    """Return the indices that a status lists as Kubernetes writes them: "1,3-5,7"."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
