"""Sums that lose nothing; that they are rounded once, in any order, is seen in the statistics of a dataset."""

import math

import pytest

from espnet3.components.data.exact_sums import ExactSums


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
