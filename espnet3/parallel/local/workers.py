"""Worker processes of our own on this machine, and the pool of their slots: what a run needs without Dask.

They stay for a few seconds after a run, for the next one. They end when their time is over, when the program does,
before it forks, and when the next run wants others: another block, folder, environment or search path; or when they are
no longer as they began.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from espnet3.parallel.backends import BACKENDS, Kind
from espnet3.parallel.backends.machine import chosen_gpus, gpu_env, processors
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import NoWorkersError
from espnet3.parallel.local.fork_server import boot_of, take_server
from espnet3.parallel.local.supervisor import GRACE, MemoryWatch, SupervisedCluster, Supervisor
from espnet3.parallel.pilots.pool import ChangedWorkersError, Pool, RunSlots, private_listener
from espnet3.parallel.surroundings import surroundings

Outcome = TypeVar("Outcome")


class OwnWorkers(SupervisedCluster, RunSlots):
    """`n` worker processes under a supervisor, and the slots that they have opened."""

    stays = True
    made_for: tuple[object, ...]  # what the run that they stay from has wanted,
    until: float  # and how long they stay, by `time.monotonic`

    def __init__(self, n: int, config: ParallelConfig, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self._pid = os.getpid()
        self.most = n  # that the run may use
        listener, folder = private_listener(self.remove_at_end)
        self.pool = Pool(listener, folder)
        try:
            options = config.options
            is_gpu = BACKENDS[config.env].kind is Kind.GPU
            self._gpus = chosen_gpus(options, config.n_workers) if is_gpu else []
            self._memory_limit = options.get("memory_limit", "auto")
            threads = options.get("threads_per_worker", 1)  # None: as Dask does
            self._threads = max(1, processors() // config.n_workers) if threads is None else int(threads)
            self._boot = boot_of(
                {str(name): str(value) for name, value in (options.get("env") or {}).items()},
                threads=self._threads,
                address=self.pool.address,
                key=self.pool.key,
            )
            self._growing = threading.Lock()
            self.grow()
        except BaseException:  # Ctrl-C too: leave no door and no folder behind
            self.pool.close()
            raise

    def check(self) -> None:
        """Check that they have not been ended, and are this process's."""
        if os.getpid() != self._pid:
            raise NoWorkersError(
                "this run was begun by the process that this one was forked from, and its workers are that "
                "process's own: begin it here, or end it before the fork"
            )
        if self.pool.closed:
            raise NoWorkersError("the worker processes of this run have been ended")

    def grow(self) -> None:
        """Have as many processes as the run may use, at least."""
        with self._growing:
            have = sum(worker.owner is None for worker in list(self.supervisor.workers))
            for number in range(have, self.most):
                env = {**self._boot["env"], **gpu_env(self._gpus, number)}
                boot = {**self._boot, "name": str(number), "env": env}
                self.supervisor.add(str(number), boot, MemoryWatch(self._memory_limit, self._threads))

    def close(self, grace: float = GRACE) -> None:
        """End the processes and their server, and wait for that; in a forked child, where they are not its, nothing."""
        self.pool.close()
        self.supervisor.close(grace)


# the workers that stay, of one run at most
class _Stay:
    _idle: OwnWorkers | None = None
    _thread: threading.Thread | None = None

    def __init__(self) -> None:
        self.forget()

    def put(self, workers: OwnWorkers, wanted: tuple[object, ...], seconds: float) -> None:
        workers.made_for, workers.until = wanted, time.monotonic() + seconds
        with self._changed:
            before, self._idle = self._idle, workers
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="espnet3-idle", daemon=True)
                self._thread.start()
            elif workers.until < self._looks:
                self._changed.notify()
        if before is not None:  # of another thread's run
            before.close()

    def take(self, for_good: bool = False) -> OwnWorkers | None:
        with self._changed:
            found, self._idle = self._idle, None
            if for_good:
                self._changed.notify()
        return found

    def _watch(self) -> None:
        with self._changed:
            while self._idle is not None and (left := self._idle.until - time.monotonic()) > 0:
                self._looks = self._idle.until
                self._changed.wait(left)
            over, self._idle, self._thread = self._idle, None, None
        if over is not None:
            over.close()

    def forget(self) -> None:  # in a forked child: whatever is there is its parent's
        self._changed = threading.Condition(threading.Lock())
        self._idle, self._thread, self._looks = None, None, 0.0


_STAY = _Stay()


def on_own_workers(
    config: ParallelConfig,
    most: int | None,
    run: Callable[[OwnWorkers], Iterable[Outcome]],
    modules: Sequence[str] = (),
) -> Iterator[Outcome]:
    """Yield a run's outcomes from worker processes: those that stayed, or new ones; also where the former have changed.

    After an error they end; else they stay for `config.idle_timeout` seconds. `modules`: what every worker would load
    for the run, and new ones find loaded.
    """
    wanted = wanted_by(config)
    n = config.n_workers if most is None else max(1, min(config.n_workers, most))
    while True:
        workers = _STAY.take()
        if workers is not None and not (workers.made_for == wanted and workers.supervisor.is_whole()):
            workers.close()
            workers = None
        workers = workers or _started(n, config, modules)
        workers.most = n
        try:
            yield from run(workers)
            break
        except ChangedWorkersError:  # it comes before any chunk is handed out
            workers.close()
        except BaseException:
            workers.close()
            raise
    if config.idle_timeout > 0:
        _STAY.put(workers, wanted, config.idle_timeout)
    else:
        workers.close()


def _started(n: int, config: ParallelConfig, modules: Sequence[str]) -> OwnWorkers:
    supervisor = Supervisor(take_server(dask=False))
    try:
        preload = config.options.get("preload") or []
        for module in (*modules, *([preload] if isinstance(preload, str) else preload)):
            supervisor.server.preload(module)
        return OwnWorkers(n, config, supervisor)
    except BaseException:
        supervisor.close(grace=0)
        raise


def wanted_by(config: ParallelConfig) -> tuple[object, ...]:
    """Return the options and surroundings that processes would have now: with the same ones they can be used again."""
    return config.env, config.n_workers, repr(config.options), surroundings()


def end_idle() -> None:
    """End the processes that stay, and wait for that."""
    found = _STAY.take(for_good=True)
    if found is not None:
        found.close(grace=0)


def _leave() -> None:
    found = _STAY.take()
    if found is not None:
        found.supervisor.leave()


atexit.register(_leave)
os.register_at_fork(before=end_idle, after_in_child=_STAY.forget)
