"""Ending a task on an event loop, and waiting for its end."""

from __future__ import annotations

import asyncio
from typing import Any

_AGAIN = 1.0  # seconds until a task is cancelled once more


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended.

    Before Python 3.12 `asyncio.wait_for` returns where what it waited for and the cancellation come together, and the
    task goes on; so do libraries that swallow a cancellation. Once is not enough then.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN)
