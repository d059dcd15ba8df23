"""The rules of Kubernetes' controller of Jobs, as its pages describe them: refusals, attempts, and the end of a Job."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

_LONGEST = 63  # letters of a host's name, which is that of an Indexed Job with its index
_RULES = 20  # of a podFailurePolicy, at most


@dataclass(slots=True)
class Course:
    """How far a Job has come, by index; a plain Job has the index 0 alone."""

    spec: dict[str, Any]
    complete: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)  # not tried again
    attempts: Counter[int] = field(default_factory=Counter)  # pods that count as failures
    over: str = ""  # why the whole Job has failed

    @property
    def is_indexed(self) -> bool:
        return self.spec.get("completionMode") == "Indexed"

    def ended(self, index: int, code: int, conditions: Collection[str]) -> None:
        """Judge a pod by the exit status of its container and the conditions that it has."""
        action = "Complete" if code == 0 else self._action(code, conditions)
        if action == "Complete":
            self.complete.add(index)
        elif action == "FailIndex":
            self.failed.add(index)
        elif action == "Count":
            self._count(index)

    def _action(self, code: int, conditions: Collection[str]) -> str:
        for rule in self.spec.get("podFailurePolicy", {}).get("rules", []):
            by_status = code in rule.get("onExitCodes", {}).get("values", [])
            if by_status or any(each["type"] in conditions for each in rule.get("onPodConditions", [])):
                return str(rule["action"])
        return "Count"

    def _count(self, index: int) -> None:
        self.attempts[index] += 1
        limit = self.spec.get("backoffLimitPerIndex")
        if limit is not None:
            if self.attempts[index] > limit:
                self.failed.add(index)
        elif self.attempts.total() > self.spec["backoffLimit"]:
            self.over = "BackoffLimitExceeded"

    def wanted(self, alive: Collection[int]) -> list[int]:
        """Return the indices that are to have a pod now, beside those that have one."""
        if self.over:
            return []
        settled = self.complete | self.failed
        waiting = [i for i in range(self.spec.get("completions", 1)) if i not in settled and i not in alive]
        return waiting[: max(0, self.spec.get("parallelism", 1) - len(alive))]

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.is_indexed:
            found["completedIndexes"] = stretches(self.complete)
        if "backoffLimitPerIndex" in self.spec:
            found["failedIndexes"] = stretches(self.failed)
        if self.over:
            found["conditions"] = [{"type": "Failed", "status": "True", "reason": self.over}]
        elif len(self.complete | self.failed) == self.spec.get("completions", 1):
            reason = {"reason": "FailedIndexes"} if self.failed else {}
            kind = "Failed" if self.failed else "Complete"
            found["conditions"] = [{"type": kind, "status": "True", **reason}]
        return found


def stretches(indices: Collection[int]) -> str:
    """Return indices as Kubernetes writes them: "1,3-5"."""
    parts = []
    for _, group in groupby(enumerate(sorted(indices)), lambda pair: pair[1] - pair[0]):
        found = [index for _, index in group]
        between = "" if len(found) == 1 else "," if len(found) == 2 else "-"
        parts.append(str(found[0]) if not between else f"{found[0]}{between}{found[-1]}")
    return ",".join(parts)


def refusals(job: dict[str, Any]) -> list[str]:
    """Return what the API server would refuse in a Job whose fields are all known to it."""
    spec, said = job["spec"], []
    if spec.get("completionMode") == "Indexed":
        if not spec.get("completions"):
            said.append("spec.completions: Required value: when completion mode is Indexed")
        elif len(f"{job['metadata']['name']}-{spec['completions'] - 1}") > _LONGEST:
            said.append("metadata.name: Invalid value: no host name with the largest index")
    rules = spec.get("podFailurePolicy", {}).get("rules", [])
    never = spec["template"]["spec"].get("restartPolicy") == "Never"
    if (rules or "backoffLimitPerIndex" in spec) and not never:
        said.append("spec.template.spec.restartPolicy: Invalid value: only Never is supported")
    if len(rules) > _RULES:
        said.append(f"spec.podFailurePolicy.rules: Too many: must have at most {_RULES}")
    for rule in rules:
        if ("onExitCodes" in rule) == ("onPodConditions" in rule):
            said.append("spec.podFailurePolicy.rules: one of onExitCodes and onPodConditions is required")
        values = rule.get("onExitCodes", {"values": [1]})["values"]
        if not values or values != sorted(set(values)) or 0 in values:
            said.append(f"onExitCodes.values: Invalid value: {values}: ordered, each once, and without 0")
        if rule["action"] == "FailIndex" and "backoffLimitPerIndex" not in spec:
            said.append("action: Invalid value: FailIndex requires spec.backoffLimitPerIndex")
    return said
