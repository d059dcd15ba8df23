"""Dask without a layer above it: a plain LocalCluster, one task for each item."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks import WORKERS
from benchmarks.systems.base import Lost, System
from benchmarks.work import Work


class DaskMap(System):
    """`Client.map` and `Client.gather`. In W5 this is what a plain LocalCluster costs."""

    title = "dask client.map, one task per item"
    needs = ("distributed",)
    at_most = {"W1": 100_000}

    def start(self, work: Work) -> None:
        from distributed import Client, LocalCluster

        self.cluster = LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address="127.0.0.1:0")
        self.client = Client(self.cluster)

    def run(self, work: Work) -> Iterable[Any]:
        results: list[Any] = self.client.gather(self.client.map(work.call, range(work.n), pure=False))
        return results

    def run_with_faults(self, work: Work) -> Iterable[Any]:
        for index, future in enumerate(self.client.map(work.call, range(work.n), pure=False)):
            error = future.exception()
            yield future.result() if error is None else Lost(index, f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        self.client.close()
        self.cluster.close()
