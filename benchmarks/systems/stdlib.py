"""The standard library's two pools, and loky's."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks import WORKERS
from benchmarks.systems.base import System
from benchmarks.work import Work


class Pool(System):
    """`multiprocessing.Pool.imap` as it comes: one item a message."""

    title = "mp.Pool, chunk 1"

    def start(self, work: Work) -> None:
        """Fork the workers."""
        self.pool = multiprocessing.Pool(WORKERS)

    def chunk(self, work: Work) -> int:
        """Return the chunk size."""
        return 1

    def run(self, work: Work) -> Iterable[Any]:
        """Yield the results in order."""
        return self.pool.imap(work.call, range(work.n), chunksize=self.chunk(work))

    def stop(self) -> None:
        """Let the workers end and wait for them."""
        self.pool.close()
        self.pool.join()


class PoolTuned(Pool):
    """The same with the chunk size that was best by hand for each workload."""

    title = "mp.Pool, chunk set by hand"
    leaves_out = {"W6": "as with chunk 1"}

    def chunk(self, work: Work) -> int:
        """Return the chunk size."""
        return work.chunk


class Executor(System):
    """`ProcessPoolExecutor.map`."""

    title = "ProcessPoolExecutor, chunk set by hand"

    def start(self, work: Work) -> None:
        """Make the executor; it forks with the first task."""
        self.executor = ProcessPoolExecutor(WORKERS)

    def run(self, work: Work) -> Iterable[Any]:
        """Yield the results in order."""
        return self.executor.map(work.call, range(work.n), chunksize=work.chunk)

    def stop(self) -> None:
        """Let the workers end and wait for them."""
        self.executor.shutdown()


class Loky(Executor):
    """loky's reusable executor: its workers stay for the next call, for ten seconds as it comes."""

    title = "loky, chunk set by hand"
    needs = ("loky",)

    def start(self, work: Work) -> None:
        """Import it: the executor is asked for with each call."""
        import loky

        self.reusable = loky.get_reusable_executor

    def run(self, work: Work) -> Iterable[Any]:
        """Yield the results in order."""
        results: Iterable[Any] = self.reusable(max_workers=WORKERS).map(
            work.call, range(work.n), chunksize=work.chunk
        )
        return results

    def stop(self) -> None:
        """Let the workers end and wait for them."""
        self.reusable().shutdown(wait=True)
