"""The launcher of each backend, and specs for the items that are left."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.parallel.backends import Kind, row
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.job_spec import items_to_json
from espnet3.parallel.detached.launch import asking, job_arrays, kube_jobs, supervisors
from espnet3.parallel.detached.layout import DONE, ENDED, MARK, Done, Layout, Plan, stretches
from espnet3.parallel.detached.states import LossFile, Queue, read_mark
from espnet3.parallel.ledger.files import make_folder, read_or_none, write_json, write_plainly
from espnet3.parallel.ledger.merge import RECEIPT
from espnet3.parallel.ledger.split import FAILED, LEFT, OK


@dataclass(frozen=True, slots=True)
class Launcher:
    """The operations of a backend on detached jobs."""

    check: Callable[[ParallelConfig], None]  # raises where a configuration cannot run detached jobs
    # queues shards, of which some ask for more memory, and notes the ids of their jobs
    start: Callable[[Layout, Plan, list[int], dict[str, float]], None]
    # the states of jobs, by shard; one that is left out is not known. Raises OSError without an answer
    query: Callable[[Layout, dict[str, str]], Queue]
    # files with what jobs printed beside their logs, by shard: before their worker began, say
    printed: Callable[[Layout, Sequence[int]], dict[int, list[Path]]]


_SUPERVISED = Launcher(supervisors.check, supervisors.start, supervisors.query, lambda layout, shards: {})
_LAUNCHERS = {
    Kind.BATCH: Launcher(job_arrays.check, job_arrays.start, asking.query, job_arrays.printed),
    Kind.KUBERNETES: Launcher(kube_jobs.check, kube_jobs.start, kube_jobs.query, kube_jobs.printed),
}


def launcher(env: str) -> Launcher:
    """Return the launcher of a backend."""
    return _LAUNCHERS.get(row(env).kind, _SUPERVISED)


def put_specs(
    layout: Layout, plan: Plan, items: Sequence[Any], state: bytearray, run_id: str, retry_failed: bool
) -> list[int]:
    """Write the specs of the shards that have items left, and mark the others as done; each mark has what is known."""
    base = layout.template()
    retry_failed = retry_failed or base.policy.on_error == "raise"  # a run in this process does so too
    make_folder(layout.spec(0).parent)
    shared = base.to_json()
    if plan.n_shards:  # jobs make theirs; the last one keeps sessions elsewhere from taking their numbers
        make_folder(layout.run / plan.outcomes(plan.n_shards - 1))
    is_new, shards = not any(layout.folder.glob("shard.*")), []
    for shard in range(plan.n_shards):
        begin, end = plan.bounds[shard], plan.bounds[shard + 1]
        part, folder = state[begin:end], layout.shard(shard)
        if retry_failed and FAILED in part:  # these are left, and their earlier losses no longer count
            LossFile(folder).forget({at for at, one in enumerate(part, begin) if one == FAILED})
            part = part.replace(bytes([FAILED]), bytes([LEFT]))
        counts = {"ok": part.count(OK), "failed": part.count(FAILED)}
        if LEFT not in part:
            if read_or_none(folder / DONE, Done) != counts:  # an item may have been repaired elsewhere
                make_folder(folder)
                write_json(folder / DONE, counts, durable=False)
            continue
        mark = read_mark(folder)
        if any(mark.get(name, 0) != n for name, n in counts.items()):
            make_folder(folder)
            write_plainly(folder / MARK, json.dumps({**mark, **counts}).encode())
        if not is_new:
            for file in (folder / DONE, folder / ENDED, layout.run / plan.outcomes(shard) / DONE):
                file.unlink(missing_ok=True)
        own = {
            "shard": shard,
            "begin": begin,
            "items": items_to_json(items[begin:end]),
            "skip": stretches(part, begin, OK),
            "failed": stretches(part, begin, FAILED),
            "retry_failed": retry_failed,
            "run_id": run_id,
        }
        # no job reads it before all are written
        write_plainly(layout.spec(shard), json.dumps({**shared, **own}).encode())
        shards.append(shard)
    layout.stop.unlink(missing_ok=True)
    if shards:  # the merged files no longer cover what the jobs will add
        (layout.run / RECEIPT).unlink(missing_ok=True)
    return shards


def hand_over(layout: Layout, plan: Plan, shards: list[int], raised: dict[str, float] | None = None) -> None:
    """Give shards to the backend and note their jobs."""
    if shards:
        memory = {**layout.jobs()["raised"], **(raised or {})}
        launcher(plan.env).start(layout, plan, shards, memory)
