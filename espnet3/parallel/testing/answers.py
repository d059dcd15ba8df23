"""Whether a runner gives the same answer wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from espnet3.parallel.parallel import get_client
from espnet3.parallel.records import ItemFailure


def same_answer(
    runner: Any,
    indices: Sequence[Any],
    n_workers: Sequence[int] = (1, 2, 3),
    batch_sizes: Sequence[int | None] = (None, 1, 7),
) -> list[Any]:
    """Check that a runner gives equal results wherever it runs, and return them.

    It is run in this process (once with the items in reverse order), on 2 and 3 local workers, and with several
    batch sizes. That finds models that keep state between items, random numbers without `seed=`, batches whose
    padding leaks into their items, and results that depend on the order.

    Args:
        runner: A `BaseRunner`; its `batch_size` and `output_dir` are put back afterwards. With an
            `output_dir` each run goes to a temporary folder of its own, so that none is resumed.
        indices: What to run.
        n_workers: Worker counts to try; 1 is this process.
        batch_sizes: Batch sizes to try.

    Raises:
        AssertionError: Names the first index whose result differs, both results, and where.
    """
    items = list(indices)
    before = runner.batch_size, runner.progress, runner.output_dir
    reference: list[Any] | None = None
    where = ""
    try:
        runner.progress = False
        for n in n_workers:
            for size in batch_sizes:
                runner.batch_size = size
                results = _run(runner, items, n)
                here = f"{n} worker{'s' if n > 1 else ''}, batch_size={size}"
                if reference is None:
                    reference, where = results, here
                    results, here = _run(runner, items[::-1], n)[::-1], f"{here}, backwards"
                _compare(items, reference, where, results, here)
    finally:
        runner.batch_size, runner.progress, runner.output_dir = before
    return reference or []


def _compare(items: list[Any], one: list[Any], where: str, other: list[Any], here: str) -> None:
    for index, a, b in zip(items, one, other, strict=True):
        if not equal(a, b):
            raise AssertionError(f"item {index!r} differs: {a!r:.300} with {where}, {b!r:.300} with {here}")


def _run(runner: Any, items: list[Any], n_workers: int) -> list[Any]:
    if runner.output_dir is None:
        return _run_on(runner, items, n_workers)
    with TemporaryDirectory(prefix="espnet3-same-answer-") as folder:
        runner.output_dir = Path(folder)
        return _run_on(runner, items, n_workers)


def _run_on(runner: Any, items: list[Any], n_workers: int) -> list[Any]:
    if n_workers == 1:
        from espnet3.parallel.parallel import get_parallel_config, set_parallel

        config = get_parallel_config()
        set_parallel(None)
        try:
            return list(runner(items))
        finally:
            set_parallel(config)
    with get_client({"env": "local", "n_workers": n_workers}):
        return list(runner(items))


def equal(one: Any, other: Any) -> bool:
    """Compare two results: arrays by value, nan equal to nan, failures by index and type."""
    if isinstance(one, ItemFailure) and isinstance(other, ItemFailure):
        return (one.index, one.error_type) == (other.index, other.error_type)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(v, other[k]) for k, v in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if hasattr(one, "dtype") and hasattr(one, "tobytes"):  # numpy, without importing it
        same_kind = one.dtype == other.dtype and one.shape == other.shape
        return bool(same_kind and one.tobytes() == other.tobytes())
    if isinstance(one, float) and one != one:
        return bool(other != other)
    return bool(one == other)
