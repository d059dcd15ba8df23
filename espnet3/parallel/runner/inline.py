"""No Dask, no processes: the driver runs the items itself, through the same loop as a worker."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from espnet3.parallel.engine.loop import run_items
from espnet3.parallel.engine.settling import Block, to_lines
from espnet3.parallel.engine.steps import Call
from espnet3.parallel.engine.work import KEEP, Chunk, Work
from espnet3.parallel.env.store import (
    SetupFn,
    SetupWatch,
    TimeUp,
    build_env,
    setup_stack,
    setup_timeout_message,
)
from espnet3.parallel.errors import WorkerSetupError
from espnet3.parallel.records import THIS_PROCESS, Policy

_SLICE = 0.1  # seconds of work after which the progress bar is looked at
_MOST_ITEMS = 1 << 18  # per chunk: the list of its results is this process's memory


def build_here(build: SetupFn, timeout: float | None) -> dict[str, object]:
    """Build an env in this process, within `timeout` seconds where one is set."""
    try:
        with _alarm(timeout):
            return build_env(build)
    except TimeUp as late:
        raise WorkerSetupError(setup_timeout_message(timeout or 0.0, late.stack)) from None


@contextmanager
def _alarm(timeout: float | None) -> Iterator[None]:
    """Raise in the main thread after `timeout` seconds.

    Elsewhere nothing can interrupt a running thread, and the timeout cannot be kept.
    """
    if timeout is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_alarm(signum: int, frame: FrameType | None) -> None:
        raise TimeUp(setup_stack(frame))

    before, here = signal.signal(signal.SIGALRM, on_alarm), threading.get_ident()
    try:
        with SetupWatch(timeout, lambda _: signal.pthread_kill(here, signal.SIGALRM)):
            yield
    finally:
        signal.signal(signal.SIGALRM, before)


def run_inline(
    work: Work, call: Call, policy: Policy, as_lines: bool = False
) -> Iterator[tuple[Chunk, Block]]:
    """Run all work here."""
    size = 1
    seconds, keep = (KEEP, KEEP) if as_lines else (_SLICE, float("inf"))
    while True:
        chunk = work.take(float(size), work.cap(_MOST_ITEMS, 1))
        if chunk is None:
            work.raise_broken()
            return
        block = run_items(chunk.items, call, policy, THIS_PROCESS, seconds, keep=keep)
        if as_lines:
            to_lines(block, work.positions(chunk), chunk.items, policy, THIS_PROCESS)
        done = len(block.values)
        if done < len(chunk.items) and block.error is None:
            work.put_back(Chunk(chunk.start + done, chunk.items[done:]))
        size = min(_MOST_ITEMS, size * 2) if block.seconds < seconds / 2 else max(1, done)
        yield chunk, block
