"""All families of attacks: the fixed cases, and one drawn from a seed."""

from __future__ import annotations

from random import Random
from types import ModuleType

from tests.attack import (
    configs,
    environments,
    exceptions,
    faults,
    indices,
    long_items,
    results,
    resumes,
)
from tests.attack.case import Case

FAMILIES: tuple[ModuleType, ...] = (
    configs,
    indices,
    results,
    exceptions,
    environments,
    resumes,
    long_items,
    faults,
)
FIXED: dict[str, Case] = {case.name: case for family in FAMILIES for case in family.FIXED}


def drawn(seed: int) -> Case:
    """Return the case of a seed: the families take turns, so that any few seeds in a row try all of them."""
    case: Case = FAMILIES[seed % len(FAMILIES)].draw(Random(seed))
    return case
