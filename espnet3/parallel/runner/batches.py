"""Runners that have one of `forward` and `batch_forward` alone.

`batch_forward` alone: its `forward` is a batch of one. `forward` alone, a batch size, and files of its own: it is
written as ESPnet3's runners are, whose `forward` takes lists; an item of the run is then a list of indices.
"""

from __future__ import annotations

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
    return batch_size is not None and is_default(runner, "batch_forward") and writes_files(runner)


def in_lists(items: Sequence[Any], size: int) -> list[list[Any]]:
    """Cut items into lists of `size`, the last of which may be shorter."""
    return [list(items[at : at + size]) for at in range(0, len(items), size)]
