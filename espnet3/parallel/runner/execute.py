"""Chooses where a run takes place, and hands back its outcomes: the one way from a call to a launcher."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from espnet3.parallel.backends.loading import installed, interrupts_wait
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.engine.inside import inside_item, refuse_in_import
from espnet3.parallel.engine.settling import Block
from espnet3.parallel.engine.steps import Call
from espnet3.parallel.engine.work import Chunk, Work
from espnet3.parallel.env.injection import bind
from espnet3.parallel.env.store import ENVS, SetupFn
from espnet3.parallel.env.worker_id import named_here
from espnet3.parallel.errors import MissingPackageError
from espnet3.parallel.local.alone import alone, own_processes, without_dask
from espnet3.parallel.local.fork_server import ForkServer
from espnet3.parallel.records import THIS_PROCESS, Policy, Tally
from espnet3.parallel.runner.inline import build_here, run_inline
from espnet3.parallel.runner.progress import say

if TYPE_CHECKING:
    from espnet3.parallel.clusters.client import EnvClient
    from espnet3.parallel.pilots.protocol import RunSpec
    from espnet3.parallel.provenance.record import LoadedCode


@dataclass(frozen=True, slots=True)
class Task:
    """What to run per item, before it is known where.

    Attributes:
        one: Called per item.
        many: Called per batch, or None.
        kwargs: Keywords for every item.
        setup: Builds the env in a worker process; None uses the client's own, if it has one.
        setup_here: Builds it in this process.
        policy: Errors, retries, seed, batch size.
        setup_timeout: Seconds the env may take; None uses the configuration's.
        check: Called with the env before the first item; raises what is wrong with it.
        show_progress: Whether progress is shown, and with it the dashboard's address.
        killable: Never run in this process: an item within an item may have to be killed (a shard's with a
            time limit; of a task's own items `policy.item_timeout` says so).
        as_lines: Give the lines of a run folder in place of the results.
        loaded: The code that this process has loaded, where a run folder says so.
    """

    one: Callable[..., Any]
    many: Callable[..., Any] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    setup: SetupFn | None = None
    setup_here: SetupFn | None = None
    policy: Policy = field(default_factory=Policy)
    setup_timeout: float | None = None
    check: Callable[[dict[str, Any]], None] | None = None
    show_progress: bool = False
    as_lines: bool = False
    killable: bool = False
    loaded: LoadedCode | None = None


def runs_here(config: ParallelConfig) -> bool:
    """Whether a configuration means this process: local, one worker, nothing else asked; or inside an item already."""
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
    """Open a client for a block of code; on an error its workers are killed, not asked."""
    client = start_client(config, default=default)
    from espnet3.parallel.clusters.client import abort  # here: at the program's end nothing can be imported

    try:
        yield client
    except BaseException:
        abort(client)
        raise
    finally:
        client.close()


@contextmanager
def outcomes(
    task: Task,
    work: Work,
    client: Any,
    config: ParallelConfig,
    may_take: Callable[[], bool] = lambda: True,
    tally: Tally | None = None,
) -> Iterator[tuple[Iterator[tuple[Chunk, Block]], Any]]:
    """Run a task's items; where is decided here."""
    tally = tally if tally is not None else Tally()
    with ExitStack() as stack:
        shared = client is not None
        # in this process there is no worker that could be killed: a time limit wants one
        killable = task.killable or task.policy.item_timeout is not None
        if client is None and (killable or not runs_here(config)):
            tally.asked = config.n_workers
            if without_dask(config):
                pairs = _on_own_workers(stack, task, work, config, may_take, tally)
                stack.enter_context(closing(pairs))
                yield pairs, tally
                return
            client = stack.enter_context(owned_client(config))
        if client is None:
            stack.enter_context(named_here())
            pairs = _inline(task, work, config, {}, tally)
        elif shared and not killable and inside_item() and _has_threads(client):
            pairs = _inline(task, work, config_of(client, config), _env_here(client), tally)
        else:
            if task.show_progress:
                _show_dashboard(client)
            if shared:
                tally.asked = _asked_of(client)
            pairs = _on_pilots(task, work, client, config, may_take, shared, tally)
        stack.enter_context(closing(pairs))  # gives its slots back now, not when it is collected
        yield pairs, tally


def _has_threads(client: Any) -> bool:
    """Whether a client's workers are threads of this process.

    An item in one of them that waited for the others could wait for ever: they may all be in such items.
    """
    from espnet3.parallel.pilots.dask.pools import check_client

    check_client(client)
    return str(client.scheduler.address).startswith("inproc")


def _env_here(client: Any) -> dict[str, Any]:
    """Return a client's own env, where its workers are threads of this process."""
    key = env_of(client)
    return ENVS.get(key or ENVS.default)


def _show_dashboard(client: Any) -> None:
    from espnet3.parallel.clusters.client import dashboard_of

    address = dashboard_of(client)
    if address is not None:
        say(f"dashboard: {address}")


Pairs = Generator[tuple[Chunk, Block], None, None]


def _inline(task: Task, work: Work, config: ParallelConfig, env: dict[str, Any], tally: Tally) -> Pairs:
    """Run the items in this thread; `env` is for those that bring no setup of their own."""
    tally.joined = time.perf_counter()
    timeout = task.setup_timeout if task.setup_timeout is not None else config.setup_timeout
    if task.setup_here is not None:
        env = build_here(task.setup_here, timeout)
    if task.check is not None:
        task.check(env)
    many = bind(task.many, env, task.kwargs) if task.many is not None else None
    call = Call(bind(task.one, env, task.kwargs), many)
    tally.ready = ready = time.perf_counter()
    tally.env = ready - tally.joined
    tally.came.append((THIS_PROCESS, time.time(), 0.0, tally.env))

    def counted() -> Pairs:
        for chunk, block in run_inline(work, call, task.policy, task.as_lines):
            tally.busy += block.seconds
            tally.cpu += block.cpu
            tally.halved += block.halved
            tally.present = time.perf_counter() - ready
            tally.warm = True
            if task.loaded is not None:
                task.loaded.check("this process")  # what the items have imported
            yield chunk, block

    return counted()


def _on_pilots(
    task: Task,
    work: Work,
    client: Any,
    config: ParallelConfig,
    may_take: Callable[[], bool],
    shared: bool,
    tally: Tally,
) -> Pairs:
    from espnet3.parallel.pilots.dask.pools import ClientSlots
    from espnet3.parallel.pilots.driver import PilotRun
    from espnet3.parallel.pilots.worker_cluster import cluster_of

    config = config_of(client, config)
    spec = _spec(task, config, env_of(client))
    slots, cluster = ClientSlots(client), cluster_of(client)
    timeouts = config.start_timeout, config.frozen_timeout
    return iter(PilotRun(slots, work, spec, cluster, *timeouts, may_take, shared, tally))


def _on_own_workers(
    stack: ExitStack,
    task: Task,
    work: Work,
    config: ParallelConfig,
    may_take: Callable[[], bool],
    tally: Tally,
) -> Pairs:
    """Run the items on processes of our own, which the stack gives back."""
    from espnet3.parallel.local.workers import borrowed

    workers = stack.enter_context(borrowed(config, work.total))
    tally.asked = len(workers)
    from espnet3.parallel.pilots.driver import PilotRun  # while the processes start

    timeouts = config.start_timeout, config.frozen_timeout
    return iter(
        PilotRun(workers, work, _spec(task, config, None), workers, *timeouts, may_take, False, tally)
    )


def _spec(task: Task, config: ParallelConfig, env_key: str | None) -> RunSpec:
    """Return what slots are told of a task; `env_key` is the env of one that brings no setup of its own."""
    from espnet3.parallel.pilots.protocol import RunSpec

    return RunSpec(
        one=task.one,
        many=task.many,
        kwargs=task.kwargs,
        env_key=f"run-{uuid.uuid4().hex}" if task.setup is not None else env_key,
        setup=task.setup,
        policy=task.policy,
        setup_timeout=task.setup_timeout if task.setup_timeout is not None else config.setup_timeout,
        check=task.check,
        as_lines=task.as_lines,
        loaded=task.loaded,
    )


def env_of(client: Any) -> str:
    """Return the key of a client's own env; "" takes what the workers have as their default."""
    from espnet3.parallel.clusters.client import EnvClient

    return (client.espnet3_env or "") if isinstance(client, EnvClient) else ""


def _asked_of(client: Any) -> int:
    """Return how many workers an open client of ours is to have; 0 where that changes, or it is another's."""
    from espnet3.parallel.clusters.client import EnvClient

    ours = isinstance(client, EnvClient) and client.espnet3_config.adapt is None
    return client.espnet3_config.n_workers if ours else 0


def config_of(client: Any, config: ParallelConfig) -> ParallelConfig:
    """Return what a client of ours was opened with; of any other client, the registered configuration."""
    from espnet3.parallel.clusters.client import EnvClient

    return client.espnet3_config if isinstance(client, EnvClient) else config
