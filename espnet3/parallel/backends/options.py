"""Which options a row accepts, from the live signatures of what is installed."""

from __future__ import annotations

from espnet3.parallel.backends.backend import Backend
from espnet3.parallel.backends.signatures import parameters


def has_option(row: Backend, name: str) -> bool | None:
    """Return whether a row accepts an option.

    The signatures are read outermost first and only as far as needed: `distributed.worker`, the
    largest file by far, is parsed for a name that no other signature has.

    Returns:
        None where it cannot be told, because the package is not installed.
    """
    if name in row.controlled:
        return False
    readable = True
    for reference in row.signatures:
        names = parameters(reference)
        if names is None:
            readable = False
        elif name in names:
            return True
    return False if readable else None


def allowed_options(row: Backend) -> tuple[str, ...] | None:
    """Return all options a row accepts, outermost signature first, each once.

    Returns:
        None where they cannot be told, because the package is not installed.
    """
    found: dict[str, None] = {}
    for reference in row.signatures:
        names = parameters(reference)
        if names is None:
            return None
        found.update(dict.fromkeys(names))
    return tuple(name for name in found if name not in row.controlled)
