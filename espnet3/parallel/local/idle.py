"""Worker processes that stay for a few seconds after a run, for the next one.

They end when their time is over, when the program does, before it forks, and when the next run wants others: another
block, folder, environment or search path; or when they are no longer as they began.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from espnet3.parallel.backends import BACKENDS, Kind
from espnet3.parallel.backends.gpus import chosen_gpus
from espnet3.parallel.checks import search_path, working_folder
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.local.fork_server import ForkServer, take_server
from espnet3.parallel.local.memory_limit import processors
from espnet3.parallel.local.workers import OwnWorkers, ProcessSettings


@dataclass(frozen=True, slots=True)
class _Idle:
    workers: OwnWorkers
    wanted: tuple[object, ...]
    timer: threading.Timer


class _Stay:
    """The processes that stay, of one run at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: _Idle | None = None

    def put(self, workers: OwnWorkers, wanted: tuple[object, ...], seconds: float) -> None:
        """Keep processes for a time; those that stay already, of another thread's run, end."""
        timer = threading.Timer(seconds, self._end, (workers,))
        timer.daemon = True
        with self._lock:
            before, self._idle = self._idle, _Idle(workers, wanted, timer)
        timer.start()
        if before is not None:
            before.timer.cancel()
            before.workers.close()

    def take(self) -> _Idle | None:
        """Return those that stay, which are the caller's now."""
        with self._lock:
            found, self._idle = self._idle, None
        if found is not None:
            found.timer.cancel()
        return found

    def _end(self, workers: OwnWorkers) -> None:
        """End processes whose time is over, unless a run has taken them meanwhile."""
        with self._lock:
            if self._idle is None or self._idle.workers is not workers:
                return
            self._idle = None
        workers.close()

    def forget(self) -> None:
        """In a forked child: whatever is there is its parent's."""
        self._lock, self._idle = threading.Lock(), None


_STAY = _Stay()


@contextmanager
def borrowed(config: ParallelConfig, most: int | None) -> Iterator[OwnWorkers]:
    """Have worker processes for a block of code: those that stayed, or new ones.

    After an error they are killed; else they stay for `config.idle_timeout` seconds.
    """
    settings, wanted = _settings(config), wanted_by(config)
    n = config.n_workers if most is None else max(1, min(config.n_workers, most))
    workers = _take(wanted)
    if workers is None:
        server = take_server() or ForkServer(dask=False)
        try:
            workers = OwnWorkers(n, settings, server)
        except BaseException:
            server.close()
            raise
    else:
        workers.grow(n)
    try:
        yield workers
    except BaseException:
        workers.close(kill=True)
        raise
    if config.idle_timeout > 0:
        _STAY.put(workers, wanted, config.idle_timeout)
    else:
        workers.close()


def _settings(config: ParallelConfig) -> ProcessSettings:
    options = config.options
    gpus: list[str] = []
    if BACKENDS[config.env].kind is Kind.GPU:
        gpus = chosen_gpus(options, config.n_workers)
    env = {str(name): str(value) for name, value in (options.get("env") or {}).items()}
    limit = options.get("memory_limit", "auto")
    return ProcessSettings(_threads(options.get("threads_per_worker", 1), config), limit, env, tuple(gpus))


def _threads(given: Any, config: ParallelConfig) -> int:
    """Return the threads of a worker; None shares out the processors, as Dask does."""
    return int(given) if given is not None else max(1, processors() // config.n_workers)


def wanted_by(config: ParallelConfig) -> tuple[object, ...]:
    """Return what processes for a configuration would be made from now: those made from the same will do."""
    return config.n_workers, repr(_settings(config)), working_folder(), search_path(), dict(os.environ)


def _take(wanted: tuple[object, ...]) -> OwnWorkers | None:
    """Return the processes that stay, if the next run may have them; else they are ended."""
    found = _STAY.take()
    if found is None:
        return None
    if found.wanted == wanted and found.workers.are_as_new():
        return found.workers
    found.workers.close()
    return None


def end_idle() -> None:
    """End the processes that stay, and wait for that."""
    found = _STAY.take()
    if found is not None:
        found.workers.close(kill=True)


def _leave() -> None:
    """At the end of the program: end them, and do not wait."""
    found = _STAY.take()
    if found is not None:
        found.workers.leave()


atexit.register(_leave)
os.register_at_fork(before=end_idle, after_in_child=_STAY.forget)
