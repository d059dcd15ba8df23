"""The one way from a call to a launcher: chooses where the items run, and yields their outcomes.

Items of this process go through the loop of a worker, without Dask and other processes.
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from espnet3.parallel.backends.backend import interrupts_wait, require
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.engine.inside import inside_item, refuse_in_import
from espnet3.parallel.engine.loop import KEEP, Block, Loop, run_items, to_lines
from espnet3.parallel.engine.work import MAX_ITEMS, Chunk, Work
from espnet3.parallel.env.store import SetupFn, TimeUp, build_env, setup_timeout_message, setup_watch
from espnet3.parallel.errors import WorkerSetupError
from espnet3.parallel.local.fork_server import ForkServer, alone, begun_with, own_processes, without_dask
from espnet3.parallel.pilots.protocol import RunSpec
from espnet3.parallel.records import THIS_PROCESS, Tally
from espnet3.parallel.runner.progress import say

if TYPE_CHECKING:
    from espnet3.parallel.clusters.client import EnvClient

Pairs = Generator[tuple[Chunk, Block], None, None]
_SLICE = 0.1  # seconds of work in this process between two looks at the progress bar


def runs_here(config: ParallelConfig) -> bool:
    """Return whether a configuration means this process: one local worker, no more options; or a run inside an item."""
    return alone(config) or inside_item()


def start_client(config: ParallelConfig, *, default: bool = False) -> EnvClient:
    """Start the cluster of a configuration and connect to it; `default` as for `EnvClient`.

    An error in its `with` block kills its workers. The fork server of local workers is started first: it imports
    `distributed` while this process does the same.
    """
    refuse_in_import()
    require("distributed", "dask", f"a client, or env {config.env!r} with these options, needs distributed")
    dask = config.options.get("processes", True) is not False  # its workers are threads of this process else
    with begun_with(ForkServer(dask=dask)) if own_processes(config) else nullcontext():
        with interrupts_wait():
            from espnet3.parallel.clusters.client import open_client
        return open_client(config, default=default)


def outcomes(
    spec: RunSpec,
    work: Work,
    client: Any,
    config: ParallelConfig,
    tally: Tally | None = None,
    *,
    here: SetupFn | None = None,
    may_take: Callable[[], bool] = lambda: True,
    killable: bool = False,
    show_dashboard: bool = False,
) -> Pairs:
    """Run a spec's items where the client, or the configuration, says, and yield their outcomes chunk by chunk.

    Closing the generator gives the slots back, and ends the cluster that was opened for it. In this process `here`
    builds the env, in place of the spec's `setup`; `killable` work never runs in it: an item within an item may have to
    be killed (a shard's with a time limit).
    """
    tally = tally if tally is not None else Tally()
    config = getattr(client, "espnet3_config", config)  # of a client of ours
    if spec.setup_timeout is None:
        spec = replace(spec, setup_timeout=config.setup_timeout)
    if not killable and client is None and runs_here(config):
        yield from run_inline(spec, work, here or spec.setup, tally)
        return
    if spec.setup is not None:
        spec = replace(spec, env_key=f"run-{uuid.uuid4().hex}")
    elif client is not None:
        from espnet3.parallel.clusters.client import env_of

        if (plugin := env_of(client)) is not None:
            spec = replace(spec, env_key=plugin.key, setup=plugin.setup_fn, env_stays=True)
    # of a client that is not ours, or adapts, the number is unknown
    known = client is None or (hasattr(client, "espnet3_config") and config.adapt is None)
    tally.asked = config.n_workers if known else 0
    if client is None and without_dask(config):
        from espnet3.parallel.local.workers import OwnWorkers, on_own_workers

        def run(workers: OwnWorkers) -> Pairs:
            tally.asked = workers.most
            from espnet3.parallel.pilots.driver import PilotRun  # while the processes start

            yield from PilotRun(workers, work, spec, config, may_take, False, tally)

        of_folder = ("espnet3.parallel.ledger.lines", "espnet3.parallel.ledger.identity")
        yield from on_own_workers(config, work.total, run, of_folder if spec.loaded is not None else ())
        return
    with start_client(config) if client is None else nullcontext(client) as opened:
        from espnet3.parallel.clusters.client import dashboard_of
        from espnet3.parallel.pilots.dask.pools import ClientSlots
        from espnet3.parallel.pilots.driver import PilotRun

        if show_dashboard and (address := dashboard_of(opened)) is not None:
            say(f"dashboard: {address}")
        yield from PilotRun(ClientSlots(opened), work, spec, config, may_take, client is not None, tally)


def build_here(build: SetupFn, timeout: float | None) -> dict[str, object]:
    """Build an env in this process, within `timeout` seconds if given, and this is the main thread."""
    if timeout is None or threading.current_thread() is not threading.main_thread():
        return build_env(build)

    def on_alarm(signum: int, frame: FrameType | None) -> None:
        raise TimeUp(setup_timeout_message(timeout, frame))

    before, here = signal.signal(signal.SIGALRM, on_alarm), threading.get_ident()
    try:
        with setup_watch(timeout, lambda _: signal.pthread_kill(here, signal.SIGALRM)):
            return build_env(build)
    except TimeUp as late:
        raise WorkerSetupError(str(late)) from None
    finally:
        signal.signal(signal.SIGALRM, before)


def run_inline(spec: RunSpec, work: Work, build: SetupFn | None, tally: Tally) -> Pairs:
    """Run all work in this thread; `build` makes the env."""
    tally.joined = time.perf_counter()
    spec.check_loaded()  # what the env changes is noticed, also where it fails
    call = spec.bound(build_here(build, spec.setup_timeout) if build is not None else {})
    tally.ready = ready = time.perf_counter()
    tally.env_seconds = ready - tally.joined
    tally.came.append((THIS_PROCESS, time.time(), 0.0, tally.env_seconds))
    size = 1
    seconds, keep = (KEEP, KEEP) if spec.as_lines else (_SLICE, float("inf"))
    while (chunk := work.take(float(size), work.cap(MAX_ITEMS, 1))) is not None:
        block = run_items(Loop(chunk.items, call, spec.policy, THIS_PROCESS, seconds, keep=keep))
        if spec.as_lines:
            to_lines(block, work.positions(chunk), chunk.items, spec.policy)
        done = len(block.values)
        if done < len(chunk.items) and block.error is None:
            work.put_back(chunk.part(done))
        size = min(MAX_ITEMS, size * 2) if block.seconds < seconds / 2 else max(1, done)
        tally.busy_seconds += block.seconds
        tally.slot_seconds = time.perf_counter() - ready
        tally.warm = True
        spec.check_loaded()  # of modules that the items have imported
        yield chunk, block
    work.raise_broken()
