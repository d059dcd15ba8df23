"""The `detached` block of a `parallel` block: settings of detached runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from espnet3.parallel.checks import FLAG, Number, Sort, Whole, names_of, problem
from espnet3.parallel.messages import did_you_mean, shown


@dataclass(frozen=True, slots=True)
class DetachedSettings:
    """How a detached run is cut and sent."""

    shards: int | None = None  # number of shards; None: four for each worker, so that slow ones even out
    variables: tuple[str, ...] = ()  # environment variables to record at submission and to set in the jobs
    snapshot: bool = False  # copy the user's code at submission: later edits do not reach queued jobs
    # the largest index the site allows in a job array; None: the scheduler's own
    array_limit: int | None = None
    # factor by which `retry` raises the memory after an out-of-memory kill
    retry_memory_factor: float | None = None
    requeue: bool = True  # have the scheduler requeue a job that stops at its walltime or is preempted

    @classmethod
    def of(cls, block: Mapping[str, Any]) -> DetachedSettings:
        """Return the settings of a block without problems."""
        return cls(**{**block, "variables": tuple(block.get("variables") or ())})


def settings_problems(block: Any) -> list[str]:
    """Return the mistakes in a `detached` block, one string each: place, value, reason and fix."""
    if not isinstance(block, dict):
        return [f"detached = {shown(block)}: must be a mapping, such as {{shards: 100}}"]
    known = [each.name for each in fields(DetachedSettings)]
    problems = []
    for name, value in block.items():
        if name not in known:
            guess = did_you_mean(name, known)
            problems.append(f"detached.{name}: unknown key.{guess} Known: {', '.join(known)}")
        elif refusal := _KINDS[name].refusal(value):
            problems.append(problem(f"detached.{name}", value, refusal))
    return problems


_KINDS: dict[str, Sort] = {
    "shards": Whole(least=1, none="null"),
    "variables": names_of("environment variables", none="null"),
    "snapshot": FLAG,
    "array_limit": Whole(least=1, none="null"),
    "retry_memory_factor": Number(above=1, none="null", example="1.5"),
    "requeue": FLAG,
}
