"""Runs items in the calling process, without Dask and other processes, through the loop of a worker."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from espnet3.parallel.engine.loop import run_items
from espnet3.parallel.engine.settling import Block, to_lines
from espnet3.parallel.engine.steps import Call
from espnet3.parallel.engine.work import KEEP, Chunk, Work
from espnet3.parallel.env.injection import bind
from espnet3.parallel.env.store import (
    SetupFn,
    SetupWatch,
    TimeUp,
    build_env,
    setup_stack,
    setup_timeout_message,
)
from espnet3.parallel.errors import WorkerSetupError
from espnet3.parallel.records import THIS_PROCESS, Tally

if TYPE_CHECKING:
    from espnet3.parallel.pilots.protocol import RunSpec

_SLICE = 0.1  # seconds of work between two looks at the progress bar
_MOST_ITEMS = 1 << 18  # per chunk: the list of its results is this process's memory


def build_here(build: SetupFn, timeout: float | None) -> dict[str, object]:
    """Build an env in this process, within `timeout` seconds if given."""
    try:
        with _alarm(timeout):
            return build_env(build)
    except TimeUp as late:
        raise WorkerSetupError(setup_timeout_message(timeout or 0.0, late.stack)) from None


@contextmanager
def _alarm(timeout: float | None) -> Iterator[None]:
    """Raise in the main thread after `timeout` seconds; no other thread can be interrupted."""
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
    spec: RunSpec, work: Work, build: SetupFn | None, env: dict[str, Any], tally: Tally
) -> Generator[tuple[Chunk, Block], None, None]:
    """Run all work in this thread; `build` makes the env, without it `env` is taken."""
    tally.joined = time.perf_counter()
    if build is not None:
        env = build_here(build, spec.setup_timeout)
    if spec.check is not None:
        spec.check(env)
    many = bind(spec.many, env, spec.kwargs) if spec.many is not None else None
    call = Call(bind(spec.one, env, spec.kwargs), many)
    tally.ready = ready = time.perf_counter()
    tally.env = ready - tally.joined
    tally.came.append((THIS_PROCESS, time.time(), 0.0, tally.env))
    size = 1
    seconds, keep = (KEEP, KEEP) if spec.as_lines else (_SLICE, float("inf"))
    while (chunk := work.take(float(size), work.cap(_MOST_ITEMS, 1))) is not None:
        block = run_items(chunk.items, call, spec.policy, THIS_PROCESS, seconds, keep=keep)
        if spec.as_lines:
            to_lines(block, work.positions(chunk), chunk.items, spec.policy, THIS_PROCESS)
        done = len(block.values)
        if done < len(chunk.items) and block.error is None:
            work.put_back(Chunk(chunk.start + done, chunk.items[done:]))
        size = min(_MOST_ITEMS, size * 2) if block.seconds < seconds / 2 else max(1, done)
        tally.busy += block.seconds
        tally.cpu += block.cpu
        tally.halved += block.halved
        tally.present = time.perf_counter() - ready
        tally.warm = True
        spec.check_loaded("this process")  # of modules that the items have imported
        yield chunk, block
    work.raise_broken()
