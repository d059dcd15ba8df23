"""From results to lines of the run folder, where the items ran: workers encode, the driver only appends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from espnet3.parallel.engine.exceptions import failure_of
from espnet3.parallel.engine.settling import Block
from espnet3.parallel.ledger.lines import encode_line
from espnet3.parallel.records import Policy
from espnet3.parallel.timing.counts import ItemTimes


def to_lines(
    block: Block, positions: Sequence[int], items: Sequence[Any], policy: Policy, worker: str
) -> None:
    """Put a line in the place of each result of a block, and sum up its times; failures stay as they are.

    A result that JSON cannot hold is a failure of its item, with the cause "result"; trying again
    would give another one like it.
    """
    block.times = ItemTimes.of_steps(block.steps)
    failed = set(block.failed)
    for k, value in enumerate(block.values):
        if k in failed:
            continue
        try:
            block.values[k] = encode_line(positions[k], items[k], value)
        except Exception as error:  # a value's class may raise anything while it is looked at
            failure = failure_of(error, items[k], 1, worker, cause="result")
            if policy.on_error == "raise":
                del block.values[k:]
                block.failed = [at for at in block.failed if at < k]
                block.error, block.stop = error, failure
                return
            block.failed.append(k)
            block.values[k] = failure
    block.failed.sort()
