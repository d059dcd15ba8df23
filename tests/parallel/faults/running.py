"""Runs a function over items under any policy, through the same door as runners and `parallel_map`."""

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from espnet3.parallel.engine.work import Work
from espnet3.parallel.parallel import active_config
from espnet3.parallel.pilots.protocol import RunSpec
from espnet3.parallel.records import ItemFailure, Policy, Tally
from espnet3.parallel.runner.execute import outcomes


def run(
    one: Callable[..., Any],
    items: Iterable[Any],
    policy: Policy,
    client: Any = None,
    many: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> tuple[list[Any], Tally, int]:
    """Return the results in order, the job's tally, and the number of retries; raise what stops it."""
    items = list(items)
    results: list[Any] = [None] * len(items)
    seen = [0] * len(items)
    retries = 0
    work, tally = Work(items, align=policy.batch_size or 1), Tally()
    spec = RunSpec(one, many, kwargs, policy=policy)
    with closing(outcomes(spec, work, client, active_config(), tally)) as pairs:
        for run, block in pairs:
            for position, value in enumerate(block.values, run.start):
                results[position] = value
                seen[position] += 1
            retries += block.retries
            if block.error is not None:
                raise block.error
    assert seen == [1] * len(items), "an item without a result, or with two"
    return results, tally, retries


def failures(results: list[Any]) -> list[ItemFailure]:
    return [r for r in results if isinstance(r, ItemFailure)]
