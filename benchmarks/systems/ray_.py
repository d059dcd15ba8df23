"""Ray: a task for each item."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

from benchmarks import WORKERS
from benchmarks.systems.base import Lost, System
from benchmarks.work import Work


class RayTasks(System):
    """`f.remote(i)` and `ray.get`."""

    title = "ray tasks"
    needs = ("ray",)
    leaves_out = {"W1-large": "a task each at 0.6 ms: W1-small says it"}
    in_quick = False  # four seconds to start and two to stop, for each measurement

    def start(self, work: Work) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray

        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)

    def run(self, work: Work) -> Iterable[Any]:
        import ray

        results: list[Any] = ray.get(self._submit(work))
        return results

    def run_with_faults(self, work: Work) -> Iterable[Any]:
        import ray

        for index, ref in enumerate(self._submit(work)):
            try:
                yield ray.get(ref)
            except ray.exceptions.RayError as error:
                yield Lost(index, f"{type(error).__name__}: {error}")

    def _submit(self, work: Work) -> list[Any]:
        import ray

        call = work.call

        @ray.remote
        def task(idx: int) -> Any:
            return call(idx)

        return [task.remote(i) for i in range(work.n)]

    def stop(self) -> None:
        import ray

        ray.shutdown()
