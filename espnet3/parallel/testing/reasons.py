"""Why an item has another result elsewhere: trials with that item alone, again, after others, and in batches."""

from __future__ import annotations

from typing import Any

from espnet3.parallel.testing.equality import equal, relative_difference
from espnet3.parallel.testing.trials import Trials

_NEIGHBOURS = 8  # items that are tried before it, each in an env of its own
_ROUNDING = 1e-3  # a difference below this share of the largest number is taken for one of rounding
_SEED = 0


def why(
    trials: Trials, items: list[Any], at: int, one: Any, other: Any, unbatched: list[Any] | None = None
) -> str:
    """Return the likely reason in a sentence or two, with what was tried.

    Args:
        trials: The runner.
        items: All items.
        at: Where the one stands whose result differs.
        one: Its result where the runner ran first.
        other: The different one.
        unbatched: The results of all items where the runner ran first, if the other way was by `batch_forward`.
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
    _, second = trials.run([item, item])
    if not equal(alone, second):
        return (
            f"state is kept between items: called twice in one env, item {item!r} gives {alone!r:.200} and then "
            f"{second!r:.200}. {advice}"
        )
    nearest = sorted((k for k in range(len(items)) if k != at), key=lambda k: abs(k - at))[:_NEIGHBOURS]
    for k in nearest:
        _, after = trials.run([items[k], item])
        if not equal(alone, after):
            return (
                f"state is kept between items: item {item!r} gives {alone!r:.200} alone and {after!r:.200} after item "
                f"{items[k]!r}. {advice}"
            )
    for others, order in ((items[:at], "before it"), (items[:at:-1], "behind it, backwards")):
        after = trials.run([*others, item])[-1]
        if not equal(alone, after):
            return (
                f"state is kept between items: item {item!r} gives {alone!r:.200} alone and {after!r:.200} after all "
                f"those {order}. {advice}"
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
    share = relative_difference(one, other)
    if share is None or share >= _ROUNDING:
        return ""
    return f"floating-point numbers were summed in another order (they differ by {share:.1g} of the largest)"
