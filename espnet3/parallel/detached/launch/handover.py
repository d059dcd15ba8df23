"""From the outcomes that are there to the jobs that are not: specs of what is left, and the backend."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

from espnet3.parallel.backends.queue_answers import submitter
from espnet3.parallel.detached.budget import count_failures
from espnet3.parallel.detached.launch import arrays, kube, launchers
from espnet3.parallel.detached.layout import DONE, ENDED, JOBS, Layout, Plan, write_lines, write_quickly
from espnet3.parallel.detached.losses import LossFile
from espnet3.parallel.detached.marks import excuse_dead
from espnet3.parallel.detached.spec import items_to_json
from espnet3.parallel.ledger.files import make_folder
from espnet3.parallel.ledger.folder import set_aside
from espnet3.parallel.ledger.merge import RECEIPT
from espnet3.parallel.ledger.scan import FAILED, LEFT, OK
from espnet3.parallel.runner.writers.manifest import write_manifest


def settle_in(layout: Layout, plan: Plan) -> None:
    """Make a folder that was copied or moved the home of its run: its next jobs work here, by specs of their own.

    What is noted of the jobs before is put aside: they were those of another folder.
    """
    if layout.home() is None:
        return
    raised = layout.jobs().get("raised", {})
    set_aside(layout.folder, only=(arrays.FOLDER, kube.FOLDER, JOBS))
    layout.write_jobs({"raised": raised})
    for shard in range(plan.n_shards):
        excuse_dead(layout.shard(shard))  # what was in progress went on elsewhere, or was stopped by the move
    template = layout.template()
    if plan.hooks:
        write_manifest(layout.run, template.entries["shard_subdir"], plan.bounds[:-1], layout.items())
    layout.write_template(template)


def put_specs(
    layout: Layout,
    plan: Plan,
    items: Sequence[Any],
    state: bytearray,
    run_id: str,
    retry_failed: bool = False,
    new: bool = False,
) -> list[int]:
    """Write the specs of the shards that have items left, and mark the others as done."""
    base = layout.template()
    retry_failed = retry_failed or base.policy.on_error == "raise"  # a run in this process does so too
    make_folder(layout.spec(0).parent)
    texts = {key: json.dumps(value) for key, value in base.to_json().items()}
    if plan.outcomes:  # jobs make theirs; the last one keeps sessions elsewhere from taking their numbers
        make_folder(layout.run / plan.outcomes[-1])
    settled = (OK,) if retry_failed else (OK, FAILED)
    shards = []
    for shard in range(plan.n_shards):
        begin, end = plan.bounds[shard], plan.bounds[shard + 1]
        part = state[begin:end]
        folder = layout.shard(shard)
        if base.max_failures is not None:
            count_failures(layout, shard, 0 if retry_failed else part.count(FAILED))
        left = part.count(LEFT) + (part.count(FAILED) if retry_failed else 0)
        if not left:
            counts = {"ok": part.count(OK), "failed": part.count(FAILED)}
            if not (folder / DONE).exists():
                make_folder(folder)
                write_quickly(folder / DONE, counts)
            continue
        for name in () if new else (DONE, ENDED):
            (folder / name).unlink(missing_ok=True)
        if retry_failed and FAILED in part:  # what they were given up for is settled
            again = {begin + place for place, one in enumerate(part) if one == FAILED}
            LossFile(folder).forget(again)
        own = {
            "shard": shard,
            "begin": begin,
            "items": items_to_json(items[begin:end]),
            "outcomes": plan.outcomes[shard],
            "skip": _stretches(part, begin, settled),
            "retry_failed": retry_failed,
            "run_id": run_id,
        }
        own_texts = {key: json.dumps(value) for key, value in own.items()}
        write_lines(layout.spec(shard), {**texts, **own_texts})
        if not new:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{layout.run}/{plan.outcomes[shard]}/done")
        shards.append(shard)
    layout.stop.unlink(missing_ok=True)
    if shards:
        (layout.run / RECEIPT).unlink(
            missing_ok=True
        )  # the merged files no longer cover what the jobs will add
    return shards


def _stretches(part: bytearray, begin: int, settled: tuple[int, ...]) -> list[list[int]]:
    """Return the stretches [begin, end) of positions in one of these states."""
    found: list[list[int]] = []
    if not any(state in part for state in settled):
        return found
    for position, state in enumerate(part, begin):
        if state not in settled:
            continue
        if found and found[-1][1] == position:
            found[-1][1] = position + 1
        else:
            found.append([position, position + 1])
    return found


def hand_over(layout: Layout, plan: Plan, shards: list[int], raised: dict[str, float] | None = None) -> None:
    """Give shards to the backend and note their jobs."""
    if not shards:
        return
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    by = f"{submitter()}@{socket.gethostname()}"
    before = layout.jobs()
    earlier = {**before.get("earlier", {}), **before.get("jobs", {})}
    memory = {**before.get("raised", {}), **(raised or {})}
    launchers.start(layout, plan, shards, {"submitted": now, "by": by, "raised": memory}, earlier)
