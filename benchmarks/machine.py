"""Where and with what a figure was taken."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def describe(packages: Iterable[str]) -> dict[str, Any]:
    """Return the machine, the interpreter and the versions of the packages that are installed."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "versions": {name: v for name in sorted(set(packages)) if (v := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
