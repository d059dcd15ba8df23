"""`same_answer`: run a runner in several ways and compare the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from espnet3.parallel.testing.reasons import equal, why
from espnet3.parallel.testing.trials import Trials


def same_answer(
    runner: Any,
    indices: Sequence[Any],
    n_workers: Sequence[int] = (1, 2, 3),
    batch_sizes: Sequence[int | None] = (None, 1, 7),
    detached: bool = False,
) -> list[Any]:
    """Check that a runner gives equal results wherever it runs, and return them.

    It is run in this process (twice, and with the items in reverse order), on 2 and 3 local workers, with several
    batch sizes, and as detached jobs if asked. That finds models that keep state between items, random numbers without
    `seed=`, batches whose padding leaks into their items, and results that depend on the order.

    Args:
        runner: A `BaseRunner`, which is afterwards as before. With an `output_dir` each run goes to a temporary folder
            of its own, so that none is resumed.
        indices: Indices to run.
        n_workers: Worker counts to try; 1 is this process.
        batch_sizes: Batch sizes to try.
        detached: Try detached jobs of this machine as well; the classes must be in files, as for any detached run.

    Raises:
        AssertionError: Names the first index whose result differs, both results, where, and the likely reason.
    """
    items = list(indices)
    results, difference = first_difference(runner, items, n_workers, batch_sizes, detached)
    if difference is not None:
        raise AssertionError(difference)
    return results


def first_difference(
    runner: Any,
    items: list[Any],
    n_workers: Sequence[int],
    batch_sizes: Sequence[int | None],
    detached: bool,
) -> tuple[list[Any], str | None]:
    """Return the results of the first way of running, and a sentence about the first that another way has not."""
    with Trials(runner) as trials:
        ways = _ways(trials, items, n_workers, batch_sizes, detached)
        where, reference, _ = next(ways)
        for here, results, batched in ways:
            for at, (one, other) in enumerate(zip(reference, results, strict=True)):
                if not equal(one, other):
                    reason = why(trials, items, at, one, other, reference if batched else None)
                    return reference, (
                        f"item {items[at]!r} differs: {one!r:.300} with {where}, {other!r:.300} with {here}; {reason}"
                    )
    return reference, None


def _ways(
    trials: Trials,
    items: list[Any],
    n_workers: Sequence[int],
    batch_sizes: Sequence[int | None],
    detached: bool,
) -> Iterator[tuple[str, list[Any], bool]]:
    """Run the items in one way after the other: how, the results, and whether by `batch_forward`."""
    first = True
    for n in n_workers:
        for size in batch_sizes:
            here = f"{n} worker{'s' if n > 1 else ''}, batch_size={size}"
            batched = size is not None and trials.has_batches
            yield here, trials.run(items, n, size), batched
            if first:
                yield f"{here}, again", trials.run(items, n, size), batched
                yield f"{here}, backwards", trials.run(items[::-1], n, size)[::-1], batched
            first = False
    if detached:
        yield "detached jobs", trials.detached(items), False
