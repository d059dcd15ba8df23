"""The one way from a call to a launcher: chooses where the items run, and yields their outcomes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from espnet3.parallel.backends.loading import installed, interrupts_wait
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.engine.inside import inside_item, refuse_in_import
from espnet3.parallel.engine.settling import Block
from espnet3.parallel.engine.work import Chunk, Work
from espnet3.parallel.env.store import ENVS, SetupFn
from espnet3.parallel.env.worker_id import named_here
from espnet3.parallel.errors import MissingPackageError
from espnet3.parallel.local.fork_server import ForkServer, alone, own_processes, without_dask
from espnet3.parallel.pilots.protocol import RunSpec
from espnet3.parallel.records import Tally
from espnet3.parallel.runner.inline import run_inline
from espnet3.parallel.runner.progress import say

if TYPE_CHECKING:
    from espnet3.parallel.clusters.client import EnvClient

Pairs = Generator[tuple[Chunk, Block], None, None]


def runs_here(config: ParallelConfig) -> bool:
    """Whether a configuration means this process: one local worker, no further options; or a run inside an item."""
    return alone(config) or inside_item()


def start_client(config: ParallelConfig, *, default: bool = False) -> EnvClient:
    """Start the cluster of a configuration and connect to it; `default` as for `EnvClient`.

    The fork server of local workers is started first: it imports `distributed` while this
    process does the same.
    """
    refuse_in_import()
    if not installed("distributed"):
        raise MissingPackageError(
            f"a client, and env {config.env!r} with these options, need Dask, and distributed is not installed: "
            "pip install 'distributed>=2024.8'",
            name="distributed",
        )
    server: ForkServer | None = None
    if own_processes(config) and config.options.get("processes", True):
        server = ForkServer()
    try:
        with interrupts_wait():
            from espnet3.parallel.clusters.client import open_client
        return open_client(config, lambda: server or ForkServer(), default=default)
    except BaseException:
        if server is not None:
            server.close()
        raise


@contextmanager
def owned_client(config: ParallelConfig, *, default: bool = False) -> Iterator[EnvClient]:
    """Open a client for a block of code; an error kills its workers."""
    client = start_client(config, default=default)
    from espnet3.parallel.clusters.client import abort  # here: at the program's end nothing can be imported

    try:
        yield client
    except BaseException:
        abort(client)
        raise
    finally:
        client.close()


def config_of(client: Any, config: ParallelConfig) -> ParallelConfig:
    """Return the configuration of a client of ours; for any other client, the registered one."""
    return getattr(client, "espnet3_config", config)


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
    config = config_of(client, config)
    env = (
        getattr(client, "espnet3_env", None) or ""
    )  # the key of the client's env; "" means its workers' default
    if spec.setup_timeout is None:
        spec = replace(spec, setup_timeout=config.setup_timeout)
    killable = killable or spec.policy.item_timeout is not None
    in_thread = not killable and client is not None and inside_item() and _has_threads(client)
    if in_thread or (not killable and client is None and runs_here(config)):
        with named_here():
            ready = ENVS.get(env or ENVS.default) if in_thread else {}
            yield from run_inline(spec, work, here or spec.setup, ready, tally)
        return
    spec = replace(spec, env_key=f"run-{uuid.uuid4().hex}" if spec.setup is not None else env)
    tally.asked = config.n_workers if client is None else _asked_of(client)
    if client is not None:
        yield from _on_client(spec, work, client, config, may_take, tally, True, show_dashboard)
    elif without_dask(config):
        yield from _on_own_workers(spec, work, config, may_take, tally)
    else:
        with owned_client(config) as opened:
            yield from _on_client(spec, work, opened, config, may_take, tally, False, show_dashboard)


def _on_client(
    spec: RunSpec,
    work: Work,
    client: Any,
    config: ParallelConfig,
    may_take: Callable[[], bool],
    tally: Tally,
    shared: bool,
    show_dashboard: bool,
) -> Pairs:
    from espnet3.parallel.clusters.client import dashboard_of
    from espnet3.parallel.pilots.dask.pools import ClientSlots
    from espnet3.parallel.pilots.driver import PilotRun
    from espnet3.parallel.pilots.worker_cluster import cluster_of

    if show_dashboard and (address := dashboard_of(client)) is not None:
        say(f"dashboard: {address}")
    slots, cluster = ClientSlots(client), cluster_of(client)
    timeouts = config.start_timeout, config.frozen_timeout
    yield from PilotRun(slots, work, spec, cluster, *timeouts, may_take, shared, tally)


def _on_own_workers(
    spec: RunSpec, work: Work, config: ParallelConfig, may_take: Callable[[], bool], tally: Tally
) -> Pairs:
    from espnet3.parallel.local.workers import borrowed

    with borrowed(config, work.total) as workers:
        tally.asked = len(workers)
        from espnet3.parallel.pilots.driver import PilotRun  # while the processes start

        timeouts = config.start_timeout, config.frozen_timeout
        yield from PilotRun(workers, work, spec, workers, *timeouts, may_take, False, tally)


def _has_threads(client: Any) -> bool:
    """Whether a client's workers are threads of this process.

    Such a worker's item must not wait for the others, which may all be in such items: it would wait for ever.
    """
    from espnet3.parallel.pilots.dask.pools import check_client

    check_client(client)
    return str(client.scheduler.address).startswith("inproc")


def _asked_of(client: Any) -> int:
    """Return the wanted number of workers of an open client; 0 if that varies, or the client is not ours."""
    config = getattr(client, "espnet3_config", None)
    return config.n_workers if config is not None and config.adapt is None else 0
