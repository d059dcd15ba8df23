"""joblib with its default backend, loky."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks import WORKERS
from benchmarks.systems.base import System
from benchmarks.work import Work


class Joblib(System):
    """`Parallel(n_jobs=2)(delayed(f)(i) for i in ...)`; its batches size themselves."""

    title = "joblib (loky)"
    needs = ("joblib",)
    at_most = {"W1": 100_000}

    def _map(self, work: Work, return_as: str) -> Iterable[Any]:
        from joblib import Parallel, delayed

        call = delayed(work.call)
        results: Iterable[Any] = Parallel(n_jobs=WORKERS, return_as=return_as)(call(i) for i in range(work.n))
        return results

    def run(self, work: Work) -> Iterable[Any]:
        return self._map(work, "list")

    def run_with_faults(self, work: Work) -> Iterable[Any]:
        return self._map(work, "generator")

    def stop(self) -> None:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)
