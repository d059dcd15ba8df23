"""Runners that have one of `forward` and `batch_forward` alone.

`batch_forward` alone: its `forward` is a batch of one. `forward` alone, a batch size, and files of its own: where
`forward` says that it takes lists, an item of the run is a list of indices, as ESPnet3's layer has it. It says so by
its first parameter (annotated as a list, sequence or iterable, or called `indices`, `batch`, ...), or is one of
ESPnet3's own, or of a runner derived from one of those, which are documented to be given lists. A `forward` that says
nothing is given one index: that can never be wrong, and is the same for any batch size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from espnet3.parallel.errors import BatchLengthError
from espnet3.parallel.runner.writers.hooks import is_default, writes_files

_MADE = "_espnet3_in_batches_of_one"


def in_batches_of_one(runner: Any) -> Callable[..., Any]:
    """Return a `forward` that calls a class's `batch_forward` with a list of one.

    It is found by its name in the class, where that can be imported, and takes the same names from the env.
    """
    batch_forward = runner.batch_forward

    def forward(idx: Any, *args: Any, **env: Any) -> Any:
        results = list(batch_forward([idx], *args, **env))
        if len(results) != 1:
            raise BatchLengthError(
                f"batch_forward was given 1 index ({idx!r}) and returned {len(results)} results; "
                "it must return one result per index, in their order"
            )
        return results[0]

    forward.__module__, forward.__qualname__ = runner.__module__, f"{runner.__qualname__}.forward"
    forward.__signature__ = signature(batch_forward)  # type: ignore[attr-defined]  # what `inspect` reads
    setattr(forward, _MADE, True)
    return forward


def is_in_batches_of_one(forward: Any) -> bool:
    """Whether a `forward` was made here."""
    return getattr(forward, _MADE, False)


def takes_lists(runner: type, batch_size: int | None) -> bool:
    """Whether a runner's `forward` is given lists of indices, and not one index: the rule is above."""
    if batch_size is None or not is_default(runner, "batch_forward") or not writes_files(runner):
        return False
    forward = runner.forward  # type: ignore[attr-defined]  # a runner's class
    if any(one.__module__.startswith(_ESPNET3) for one in (forward, *runner.__mro__)):
        return True
    first = next(iter(signature(forward).parameters.values()), None)
    return first is not None and (first.name in _LISTS or bool(_LIST.search(str(first.annotation))))


_ESPNET3 = ("espnet3.systems.", "espnet3.components.")  # ours, of the same names, have a `batch_forward`
_LISTS = ("batch", "batch_indices", "idxs", "indices")
_LIST = re.compile(r"\b([Ll]ist|Sequence|Iterable|Collection)\b")


def in_lists(items: Sequence[Any], size: int) -> list[list[Any]]:
    """Cut items into lists of `size`, the last of which may be shorter."""
    return [list(items[at : at + size]) for at in range(0, len(items), size)]
