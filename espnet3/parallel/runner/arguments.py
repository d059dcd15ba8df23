"""What a runner is given: checked before anything is done with it."""

from __future__ import annotations

import math
from typing import Any

from espnet3.parallel.errors import ConfigError


def check_provider(provider: Any) -> None:
    """Raise `ConfigError` where it is a class, or builds no env."""
    if isinstance(provider, type):
        raise ConfigError(
            f"the provider must be an object, and {provider.__qualname__} is the class: make one, "
            f"{provider.__qualname__}(config)"
        )
    if not callable(getattr(provider, "build_env_local", None)):
        raise ConfigError(f"the provider must have a method build_env_local, and {provider!r:.100} has none")


def check_number(name: str, value: Any, above_zero: bool = False) -> None:
    """Raise `ConfigError` unless it is None or a finite number, 0 or more; `above_zero` excludes 0."""
    if value is None:
        return
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < 0 or (above_zero and value == 0):
        kind = "a number above 0" if above_zero else "a number, 0 or more"
        raise ConfigError(f"{name} must be {kind}, or None, not {value!r}")


def check_whole(name: str, value: Any, least: int | None = None, or_none: bool = False) -> None:
    """Raise `ConfigError` unless it is an integer, at `least` so much; or None, where that is allowed."""
    if value is None and or_none:
        return
    if isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least):
        return
    kind = {1: "a positive integer", 0: "an integer, 0 or more", None: "an integer"}[least]
    raise ConfigError(f"{name} must be {kind}{' or None' if or_none else ''}, not {value!r}")
