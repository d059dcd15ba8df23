"""Sums of floating-point numbers without rounding: the same whatever was added first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_SCALE = 1074  # every finite double is a whole number of 2**-1074
_MANTISSA = 53


class ExactSums:
    """One exact sum for each place of an array, as whole numbers of 2**-1074.

    Adding floats in another order gives other last bits, and how items are spread over workers is such an order.
    Whole numbers have no last bit to lose: `values` rounds once, at the end.

    Args:
        totals: The sums so far, in the unit above; empty for none yet.
    """

    __slots__ = ("totals",)

    def __init__(self, totals: Iterable[int] = ()) -> None:
        self.totals = list(totals)

    def add(self, values: Sequence[float] | Any) -> None:
        """Add an array of doubles, place by place.

        Raises:
            ValueError: It has another number of places than those before, or a value that is not finite.
        """
        import numpy  # here: a driver that only merges names has no need of it

        flat = numpy.ravel(numpy.asarray(values, dtype=numpy.float64))
        if not numpy.isfinite(flat).all():
            raise ValueError("a value is not finite")
        fractions, exponents = numpy.frexp(flat)
        wholes = numpy.ldexp(fractions, _MANTISSA).astype(numpy.int64).tolist()
        shifts = (exponents.astype(numpy.int64) - _MANTISSA + _SCALE).tolist()
        self.merge(
            # a number below the normal ones has zeros at its end, so that nothing is lost by a shift to the right
            ExactSums(
                whole << shift if shift >= 0 else whole >> -shift
                for whole, shift in zip(wholes, shifts, strict=True)
            )
        )

    def merge(self, other: ExactSums) -> None:
        """Add other sums, place by place.

        Raises:
            ValueError: They have another number of places.
        """
        if not self.totals:
            self.totals = list(other.totals)
        elif len(self.totals) != len(other.totals):
            raise ValueError(f"{len(other.totals)} values where there were {len(self.totals)} before")
        else:
            self.totals = [mine + theirs for mine, theirs in zip(self.totals, other.totals, strict=True)]

    def values(self) -> list[float]:
        """Return the sums, each rounded once.

        Raises:
            OverflowError: One is larger than any double.
        """
        return [
            total / (1 << _SCALE) for total in self.totals
        ]  # Python's division of whole numbers rounds correctly
