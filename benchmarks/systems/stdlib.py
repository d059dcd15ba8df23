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
        self.pool = multiprocessing.Pool(WORKERS)

    def chunk(self, work: Work) -> int:
        return 1

    def run(self, work: Work) -> Iterable[Any]:
        return self.pool.imap(work.call, range(work.n), chunksize=self.chunk(work))

    def stop(self) -> None:
        self.pool.close()
        self.pool.join()


class PoolTuned(Pool):
    """The same with the chunk size that was best by hand for each workload."""

    title = "mp.Pool, chunk set by hand"
    leaves_out = {"W6": "as with chunk 1"}

    def chunk(self, work: Work) -> int:
        return work.chunk


class Executor(System):
    """`ProcessPoolExecutor.map`."""

    title = "ProcessPoolExecutor, chunk set by hand"

    def start(self, work: Work) -> None:
        self.executor = ProcessPoolExecutor(WORKERS)

    def run(self, work: Work) -> Iterable[Any]:
        return self.executor.map(work.call, range(work.n), chunksize=work.chunk)

    def stop(self) -> None:
        self.executor.shutdown()


class Loky(Executor):
    """loky's reusable executor: its workers stay for the next call, for ten seconds as it comes."""

    title = "loky, chunk set by hand"
    needs = ("loky",)

    def start(self, work: Work) -> None:
        import loky

        self.reusable = loky.get_reusable_executor

    def run(self, work: Work) -> Iterable[Any]:
        results: Iterable[Any] = self.reusable(max_workers=WORKERS).map(
            work.call, range(work.n), chunksize=work.chunk
        )
        return results

    def stop(self) -> None:
        self.reusable().shutdown(wait=True)
