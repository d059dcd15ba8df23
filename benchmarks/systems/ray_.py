"""Ray: a task for each item, and actors fed by an ActorPool."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
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
        """Start a head node with two CPUs."""
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray

        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)

    def run(self, work: Work) -> Iterable[Any]:
        """Return the list."""
        import ray

        results: list[Any] = ray.get(self._submit(work))
        return results

    def run_with_faults(self, work: Work) -> Iterable[Any]:
        """Take each task by itself: an item that killed its workers is known by its place."""
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
        """Stop the node."""
        import ray

        ray.shutdown()


class RayActors(RayTasks):
    """`ray.util.ActorPool` over chunks."""

    title = "ray ActorPool, chunk set by hand"
    leaves_out = {}

    def run(self, work: Work) -> Iterable[Any]:
        """Yield the results in order."""
        import ray
        from ray.util import ActorPool

        class Caller:
            def run(self, call: Callable[[int], Any], first: int, end: int) -> list[Any]:
                return [call(i) for i in range(first, end)]

        if not hasattr(self, "actors"):
            self.actors = [ray.remote(Caller).remote() for _ in range(WORKERS)]
        call, n, chunk = work.call, work.n, work.chunk
        chunks = ActorPool(self.actors).map(
            lambda actor, first: actor.run.remote(call, first, min(n, first + chunk)),
            list(range(0, n, chunk)),
        )
        for results in chunks:
            yield from results

    def run_with_faults(self, work: Work) -> Iterable[Any]:
        """Do the same: an ActorPool has no place for a chunk that did not come."""
        return self.run(work)


class RayData(RayTasks):
    """`ray.data.range(n).map_batches(...)` on two tasks at a time, results in order."""

    title = "ray.data map_batches, batch set by hand"
    needs = ("ray", "pyarrow")
    leaves_out = {"W4": "its blocks are tables, and rows of bytes are another subject"}

    def run(self, work: Work) -> Iterable[Any]:
        """Yield the results in order."""
        import pickle

        import ray

        ray.data.DataContext.get_current().enable_progress_bars = False
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        call = work.call

        def apply(batch: dict[str, Any]) -> dict[str, Any]:
            return {"results": [pickle.dumps(call(int(i))) for i in batch["id"]]}

        blocks = max(WORKERS, -(-work.n // work.chunk)) if work.n > 1 else 1
        rows = ray.data.range(work.n, override_num_blocks=min(blocks, work.n))
        for row in rows.map_batches(apply, batch_size=work.chunk, concurrency=WORKERS).iter_rows():
            yield pickle.loads(row["results"])

    def run_with_faults(self, work: Work) -> Iterable[Any]:
        """Do the same: a batch that does not come ends the run."""
        return self.run(work)
