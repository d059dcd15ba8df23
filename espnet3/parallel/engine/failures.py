"""An item's failure as a record, from its exception."""

from __future__ import annotations

import traceback
from typing import Any

from espnet3.parallel.records import ItemFailure


def describe_error(error: BaseException) -> tuple[str, str, str]:
    """Return an exception's type name, message and traceback text."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = str(error)
    except Exception as wrong:  # user classes may raise anything here
        text = f"(its text cannot be had: {type(wrong).__name__} in its __str__)"
    return name, text, "".join(traceback.format_exception(kind, error, error.__traceback__))


def failure_of(
    error: BaseException,
    index: Any,
    attempts: int,
    worker: str,
    cause: str = "error",
    seconds: float | None = None,
) -> ItemFailure:
    """Make the record of a failed item from its exception."""
    name, message, text = describe_error(error)
    return ItemFailure(index, name, message, text, attempts, worker, cause, seconds)
