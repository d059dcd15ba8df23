"""mpire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks import WORKERS
from benchmarks.systems.base import System
from benchmarks.work import Work


class Mpire(System):
    """`WorkerPool.map` with workers kept alive between calls; its chunks are n / (workers * 64)."""

    title = "mpire"
    needs = ("mpire",)

    def start(self, work: Work) -> None:
        from mpire.pool import WorkerPool

        self.pool = WorkerPool(n_jobs=WORKERS, keep_alive=True)

    def run(self, work: Work) -> Iterable[Any]:
        results: list[Any] = self.pool.map(work.call, range(work.n))
        return results

    def run_with_faults(self, work: Work) -> Iterable[Any]:
        results: Iterable[Any] = self.pool.imap(work.call, range(work.n))
        return results

    def stop(self) -> None:
        self.pool.stop_and_join()
