"""A runner that has only `batch_forward`: its `forward` is a batch of one."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from espnet3.parallel.errors import BatchLengthError

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
