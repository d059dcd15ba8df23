"""Sums that do not depend on who added what first."""

from __future__ import annotations

import math

import numpy
import pytest

from espnet3.components.data.exact_sums import ExactSums


def awkward(rows: int = 300, places: int = 5) -> numpy.ndarray:
    """Return values of 60 orders of magnitude, of both signs."""
    draw = numpy.random.default_rng(7)
    return draw.normal(size=(rows, places)) * 10.0 ** draw.integers(-30, 30, size=(rows, places))


def total(values: numpy.ndarray) -> list[float]:
    sums = ExactSums()
    for row in values:
        sums.add(row)
    return sums.values()


def test_a_sum_is_the_true_sum_rounded_once() -> None:
    """Each place equals the correctly rounded sum of the standard library, where numpy's own does not."""
    values = awkward()
    assert total(values) == [math.fsum(values[:, k]) for k in range(values.shape[1])]
    assert list(values.sum(axis=0)) != total(values)


def test_neither_order_nor_parts_change_a_bit() -> None:
    """Rows in another order, and parts merged in another order, give the same bits."""
    values = awkward()
    expected = total(values)
    assert total(values[::-1]) == expected
    parts = []
    for begin in (200, 0, 70):
        part = ExactSums()
        for row in values[begin : {200: 300, 0: 70, 70: 200}[begin]]:
            part.add(row)
        parts.append(part)
    whole = ExactSums()
    for part in parts:
        whole.merge(ExactSums([int(f"{each:x}", 16) for each in part.totals]))  # as a shard's file has them
    assert whole.values() == expected


def test_the_smallest_and_the_largest_doubles_are_kept() -> None:
    """Numbers below the normal ones are not lost beside those near the end of the range."""
    sums = ExactSums()
    sums.add([5e-324, -1.5e-323, 1.7e308, -0.0])
    assert sums.values() == [5e-324, -1.5e-323, 1.7e308, 0.0]
    sums.add([5e-324, 0.0, -1.7e308, 3.0])
    assert sums.values() == [1e-323, -1.5e-323, 0.0, 3.0]


def test_what_has_no_sum_is_refused() -> None:
    """A value without a place among the numbers, and another number of values, are errors, and no wrong sums."""
    sums = ExactSums()
    sums.add([1.0, 2.0])
    with pytest.raises(ValueError, match="not finite"):
        sums.add([1.0, math.nan])
    with pytest.raises(ValueError, match="3 values where there were 2 before"):
        sums.add([1.0, 2.0, 3.0])
