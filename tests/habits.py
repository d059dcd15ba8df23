"""Which pairs of a scheduler and its bad habits are tried by default, and which in the whole product."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.standins import Habit


def rows(names: Sequence[Any], by_default: Sequence[Any]) -> list[Any]:
    """Return names, or tuples of them, as parameters: some are tried by default, the others have the mark `matrix`."""
    return [
        pytest.param(
            *(name if isinstance(name, tuple) else (name,)),
            marks=() if name in by_default else pytest.mark.matrix,
        )
        for name in names
    ]


def pairs(
    names: Sequence[str], shift: int = 0, *, together: bool = True, alone: Sequence[Habit] = tuple(Habit)
) -> list[Any]:
    """Return the product of schedulers and habits, as parameters `name, habits`.

    By default one scheduler has all habits at once, where they come `together`, and those in `alone` come alone on
    one of them, beginning with the one at `shift`. The other pairs have the mark `matrix`.
    """
    found = [
        pytest.param(name, tuple(Habit), id=f"{name}-all", marks=() if at == shift else pytest.mark.matrix)
        for at, name in enumerate(names)
        if together
    ]
    for number, habit in enumerate(Habit):
        chosen = names[(number + shift) % len(names)]
        found += [
            pytest.param(
                name,
                (habit,),
                id=f"{name}-{habit.value}",
                marks=() if name == chosen and habit in alone else pytest.mark.matrix,
            )
            for name in names
        ]
    return found
