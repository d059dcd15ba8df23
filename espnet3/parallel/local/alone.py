"""What one local worker is asked for that the calling process cannot give: then it is a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# Options of `LocalCluster` that the calling process keeps anyway, and with which values; any other asks for a worker
_KEPT: dict[str, Callable[[Any], bool]] = {
    "threads_per_worker": lambda value: value == 1,  # None is as many threads as there are cores
    "memory_limit": lambda value: value in (None, 0, "auto"),
    "dashboard_address": lambda value: value is None,
    "processes": lambda value: value is False,
    "silence_logs": lambda value: True,  # about Dask's own log lines, of which there are none
}


def asks_for_a_process(options: Mapping[str, Any]) -> bool:
    """Whether a block with `env: local` and one worker wants more than the calling process can keep to.

    Args:
        options: The block's options, checked.
    """
    return any(name not in _KEPT or not _KEPT[name](value) for name, value in options.items())
