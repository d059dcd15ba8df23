"""Where and with what a figure was taken."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def describe(packages: Iterable[str]) -> dict[str, Any]:
    """Return the machine, the interpreter and the versions of the packages that are installed."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": cpus(),
        "load_average": load(),
        "versions": {name: v for name in sorted(set(packages)) if (v := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
