"""A scheduler's commands: a few at a time, and one that fails says what it said."""

from __future__ import annotations

import asyncio
import shlex
import weakref
from typing import Any

from espnet3.parallel.errors import SubmissionError

_AT_ONCE = 8  # commands that run at the same time on one event loop
_limits: weakref.WeakKeyDictionary[Any, asyncio.Semaphore] = weakref.WeakKeyDictionary()


def _limit() -> asyncio.Semaphore:
    return _limits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE))


async def call(command: list[str], *, shell: bool = False) -> str:
    """Run a scheduler's command and return what it printed.

    Raises:
        SubmissionError: It cannot be started, or its exit code is not 0.
    """
    # dask-jobqueue drops what bsub has to say
    words = [word.removesuffix(" 2> /dev/null") for word in command] if shell else command
    shown = " ".join(words) if shell else shlex.join(words)
    start: Any = asyncio.create_subprocess_shell if shell else asyncio.create_subprocess_exec
    async with _limit():
        try:
            process = await start(*words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        except OSError as error:
            hint = f"Is this a machine jobs are submitted from? {words[0]!r} must be on its PATH."
            raise SubmissionError(shown, None, str(error), hint) from error
        out, err = await process.communicate()
    if process.returncode != 0:
        said = err.decode(errors="replace") or out.decode(errors="replace")
        raise SubmissionError(shown, process.returncode, said)
    return str(out.decode(errors="replace"))
