"""`same_answer`: run a runner in several ways, compare the results, and find the reason of a difference.

The reason is found by running the item alone, again, after others, and in batches.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from espnet3.parallel.base_runner import BaseRunner, call_runner
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.messages import counted
from espnet3.parallel.records import ItemFailure

_ROUNDING = 1e-3  # a difference below this share of the largest number is taken for one of rounding
_SHARDS = 2


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
    ways = _ways(runner, items, n_workers, batch_sizes, detached)
    where, reference, _ = next(ways)
    for here, results, batched in ways:
        for at, (one, other) in enumerate(zip(reference, results, strict=True)):
            if not equal(one, other):
                reason = _why(runner, items, at, one, other, reference if batched else None)
                raise AssertionError(
                    f"item {items[at]!r} differs: {one!r:.300} with {where}, {other!r:.300} with {here}; {reason}"
                )
    return reference


def _ways(
    runner: Any, items: list[Any], n_workers: Sequence[int], batch_sizes: Sequence[int | None], detached: bool
) -> Iterator[tuple[str, list[Any], bool]]:
    has_batches = type(runner).batch_forward is not BaseRunner.batch_forward
    for number, (n, size) in enumerate(product(n_workers, batch_sizes)):
        here = f"{counted(n, 'worker')}, batch_size={size}"
        batched = size is not None and has_batches
        yield here, _run(runner, items, n, size), batched
        if number == 0:
            yield f"{here}, again", _run(runner, items, n, size), batched
            yield f"{here}, backwards", _run(runner, items[::-1], n, size)[::-1], batched
    if detached:
        yield "detached jobs", _detached(runner, items), False


def _run(
    runner: Any, items: list[Any], n_workers: int = 1, batch_size: int | None = None, **changes: Any
) -> list[Any]:
    config = ParallelConfig(n_workers=n_workers)  # of the call: an open client would have its own workers
    with _copy_of(runner, batch_size=batch_size, **changes) as copied:
        return list(call_runner(copied, items, config))


def _detached(runner: Any, items: list[Any]) -> list[Any]:
    config = ParallelConfig(n_workers=_SHARDS, detached={"shards": _SHARDS})
    with _copy_of(runner, async_mode=True) as copied:
        run = call_runner(copied, items, config)
        try:
            run.wait()
            return list(run.merge())
        finally:
            run.cancel()


@contextmanager
def _copy_of(runner: Any, **changes: Any) -> Iterator[Any]:
    copied = copy.copy(runner)
    with TemporaryDirectory(prefix="espnet3-same-answer-") as folder, warnings.catch_warnings():
        # that batches are not used is meant here
        warnings.filterwarnings("ignore", ".*batch_forward", UserWarning)
        vars(copied).update(changes, progress=False, async_specs_dir=Path(folder, "specs"))
        if runner.output_dir is not None or copied.async_mode:
            copied.output_dir = Path(folder, "run")
        yield copied


def equal(one: Any, other: Any) -> bool:
    """Compare two results: arrays, tensors and tables by value, nan equal to nan, failures by index and type."""
    if isinstance(one, ItemFailure) and isinstance(other, ItemFailure):
        return (one.index, one.error_type) == (other.index, other.error_type)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(v, other[k]) for k, v in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if hasattr(one, "dtype") and hasattr(one, "shape"):  # numpy and torch, without importing them
        same_kind = one.dtype == other.dtype and one.shape == other.shape
        return bool(same_kind and equal(one.tolist(), other.tolist()))
    if callable(getattr(one, "equals", None)):  # a table: its == is a table, too
        return bool(one.equals(other))
    return bool(one == other or (one != one and other != other))


def _why(runner: Any, items: list[Any], at: int, one: Any, other: Any, unbatched: list[Any] | None) -> str:
    item = items[at]
    (alone,), (again,) = _run(runner, [item]), _run(runner, [item])
    if not equal(alone, again):
        return _draws(runner, item)
    return (
        _keeps_state(runner, items, at, alone)
        or (unbatched is not None and _batches(runner, item, one, other, unbatched))
        or _process(one, other)
    )


def _draws(runner: Any, item: Any) -> str:
    alone = f"two runs of item {item!r} alone, each in a fresh env, differ as well"
    if runner.seed is None:
        (one,), (other,) = (_run(runner, [item], seed=0) for _ in range(2))
        if equal(one, other):
            return f"it draws random numbers: {alone}, and agree with seed=0. Give the runner a seed"
    return (
        f"it depends on something that changes by itself: {alone}, with a seed too. Look for the time, a file that is "
        "written, an address or a hash in the result, or random numbers where the env is built (weights that are not "
        "loaded)"
    )


def _keeps_state(runner: Any, items: list[Any], at: int, alone: Any) -> str:
    item = items[at]
    tried = [([item], "in the same env"), (items[:at], "before it"), (items[:at:-1], "behind it, backwards")]
    for others, order in tried:
        after = _run(runner, [*others, item])[-1]
        if not equal(alone, after):
            return (
                f"state is kept between items: item {item!r} gives {alone!r:.200} alone and {after!r:.200} after "
                f"{'itself' if others == [item] else 'all those'} {order}. What the env holds (a model, a decoder, a "
                "generator, a counter) must be as new for each item: reset it at the beginning of forward"
            )
    return ""


def _batches(runner: Any, item: Any, one: Any, other: Any, unbatched: list[Any]) -> str:
    if any(equal(other, each) for each in unbatched):
        return "batch_forward returns results in another order: this is another item's"
    if rounding := _rounding(one, other):
        return f"{rounding}, which batches of another shape bring: compare with a tolerance"
    if not equal(one, _run(runner, [item], batch_size=1)[0]):
        return "batch_forward does not do what forward does: they differ for a batch of this item alone"
    return (
        "the items of a batch change each other: alone in a batch it is the same. Look at padding that is not masked, "
        "and at a normalisation over the batch"
    )


def _process(one: Any, other: Any) -> str:
    if rounding := _rounding(one, other):
        return (
            f"{rounding}: other processes may use another number of threads. Compare with a tolerance, or set "
            "OMP_NUM_THREADS and torch.set_num_threads"
        )
    return (
        "in this process it is the same alone, again and after others, so it depends on the process: an environment "
        "variable, the hash of a text (PYTHONHASHSEED), the working directory, or what was set in a module after its "
        "import"
    )


def _rounding(one: Any, other: Any) -> str:
    pairs = list(zip(_numbers(one), _numbers(other), strict=False))
    largest = max((abs(a) + abs(b) for a, b in pairs), default=0.0) / 2
    share = max((abs(a - b) for a, b in pairs), default=0.0) / (largest or 1.0)
    if not 0 < share < _ROUNDING:
        return ""
    return f"floating-point numbers were summed in another order (they differ by {share:.1g} of the largest)"


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        yield from _numbers(list(value.values()))
    elif hasattr(value, "tolist"):  # numpy and torch
        yield from _numbers(value.tolist())
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _numbers(each)
