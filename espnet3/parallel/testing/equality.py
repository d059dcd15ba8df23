"""Whether two results are equal, and if not, by how much their numbers differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from espnet3.parallel.records import ItemFailure


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


def relative_difference(one: Any, other: Any) -> float | None:
    """Return the largest difference of two results' numbers, as a share of the largest; None: other things differ."""
    try:
        pairs = list(_pairs(one, other))
    except (_OtherwiseError, TypeError, ValueError):
        return None
    largest = max((abs(a) + abs(b) for a, b in pairs), default=0.0) / 2
    return max((abs(a - b) for a, b in pairs), default=0.0) / largest if largest else 0.0


class _OtherwiseError(Exception):
    """Something that is no floating-point number differs."""


def _pairs(one: Any, other: Any) -> Iterator[tuple[float, float]]:
    if type(one) is not type(other):
        raise _OtherwiseError
    if isinstance(one, float):
        yield one, other
        return
    parts, others = _parts(one), _parts(other)
    if parts is None or others is None:
        if not equal(one, other):
            raise _OtherwiseError
        return
    if len(parts) != len(others):
        raise _OtherwiseError
    for a, b in zip(parts, others, strict=True):
        yield from _pairs(a, b)


def _parts(value: Any) -> list[Any] | None:
    """Return what a container holds, with its keys; None: it is none."""
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    if hasattr(value, "tolist") and getattr(value, "shape", None):
        return [*value.shape, *value.reshape(-1).tolist()]
    return list(value) if isinstance(value, (list, tuple)) else None
