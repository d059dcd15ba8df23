"""Sums of floating-point numbers without rounding: the same whatever was added first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_SCALE = 1074  # every finite double is a whole number of 2**-1074


class ExactSums:
    """One exact sum for each place of an array, as whole numbers of 2**-1074.

    Adding floats in another order gives other last bits, and how items are spread over workers is such an order.
    Whole numbers have no last bit to lose: `values` rounds once, at the end. `totals` are the sums so far.
    """

    __slots__ = ("totals",)

    def __init__(self, totals: Iterable[int] = ()) -> None:
        self.totals = list(totals)

    def add(self, values: Sequence[float] | Any) -> None:
        """Add an array of doubles, place by place; what is not finite, or another number of them, is a ValueError."""
        import numpy  # here: a driver that only merges names has no need of it

        flat = numpy.ravel(numpy.asarray(values, dtype=numpy.float64))
        if not numpy.isfinite(flat).all():
            raise ValueError("a value is not finite")
        self.merge(
            ExactSums(
                whole << (_SCALE + 1 - part.bit_length())
                for whole, part in map(float.as_integer_ratio, flat.tolist())
            )
        )

    def merge(self, other: ExactSums) -> None:
        """Add other sums, place by place; another number of them is a ValueError."""
        if self.totals and len(self.totals) != len(other.totals):
            raise ValueError(f"{len(other.totals)} values where there were {len(self.totals)} before")
        mine = self.totals or [0] * len(other.totals)
        self.totals = [one + another for one, another in zip(mine, other.totals, strict=True)]

    def values(self) -> list[float]:
        """Return the sums, each rounded once; OverflowError where one is larger than any double."""
        return [total / (1 << _SCALE) for total in self.totals]  # of whole numbers: Python rounds correctly
