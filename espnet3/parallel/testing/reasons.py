"""Compare two results, and find the reason of a difference: the item alone, again, after others, and in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from espnet3.parallel.records import ItemFailure
from espnet3.parallel.testing.trials import Trials

_ROUNDING = 1e-3  # a difference below this share of the largest number is taken for one of rounding
_SEED = 0


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
        if hasattr(one, "tobytes"):
            return bool(
                same_kind and (one.tobytes() == other.tobytes() or equal(one.tolist(), other.tolist()))
            )
        return bool(same_kind and equal(one.tolist(), other.tolist()))
    if callable(getattr(one, "equals", None)):  # a table: its == is a table, too
        return bool(one.equals(other))
    if isinstance(one, float) and one != one:
        return bool(other != other)
    return bool(one == other)


def why(
    trials: Trials, items: list[Any], at: int, one: Any, other: Any, unbatched: list[Any] | None = None
) -> str:
    """Return the likely reason for the two results of `items[at]`, in a sentence or two, with what was tried.

    `unbatched` are the results of all items without batches, if the other result came from `batch_forward`.
    """
    item = items[at]
    (alone,), (again,) = trials.run([item]), trials.run([item])
    if not equal(alone, again):
        return _draws(trials, item)
    return (
        _keeps_state(trials, items, at, alone)
        or (unbatched is not None and _batches(trials, item, one, other, unbatched))
        or _process(one, other)
    )


def _draws(trials: Trials, item: Any) -> str:
    alone = f"two runs of item {item!r} alone, each in a fresh env, differ as well"
    if trials.runner.seed is None:
        (one,), (other,) = (trials.run([item], seed=_SEED) for _ in range(2))
        if equal(one, other):
            return f"it draws random numbers: {alone}, and agree with seed=0. Give the runner a seed"
    return (
        f"it depends on something that changes by itself: {alone}, with a seed too. Look for the time, a file that is "
        "written, an address or a hash in the result, or random numbers where the env is built (weights that are not "
        "loaded)"
    )


def _keeps_state(trials: Trials, items: list[Any], at: int, alone: Any) -> str:
    item = items[at]
    advice = (
        "What the env holds (a model, a decoder, a generator, a counter) must be as new for each item: reset it at the "
        "beginning of forward"
    )
    tried = [([item], "in the same env"), (items[:at], "before it"), (items[:at:-1], "behind it, backwards")]
    for others, order in tried:
        after = trials.run([*others, item])[-1]
        if not equal(alone, after):
            return (
                f"state is kept between items: item {item!r} gives {alone!r:.200} alone and {after!r:.200} after "
                f"{'itself' if others == [item] else 'all those'} {order}. {advice}"
            )
    return ""


def _batches(trials: Trials, item: Any, one: Any, other: Any, unbatched: list[Any]) -> str:
    if any(equal(other, each) for each in unbatched):
        return "batch_forward returns results in another order: this is another item's"
    if rounding := _rounding(one, other):
        return f"{rounding}, which batches of another shape bring: compare with a tolerance"
    if not equal(one, trials.run([item], batch_size=1)[0]):
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
