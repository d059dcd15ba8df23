"""All families of attacks, and the case of a seed."""

from collections.abc import Callable
from random import Random

from tests.attack.case import Case
from tests.attack.given import configs, indices
from tests.attack.happening import environments, exceptions

FAMILIES: tuple[Callable[[Random], Case], ...] = (configs, indices, exceptions, environments)


def drawn(seed: int) -> Case:
    """Return the case of a seed: the families take turns, so that any few seeds in a row try all of them."""
    return FAMILIES[seed % len(FAMILIES)](Random(seed))
