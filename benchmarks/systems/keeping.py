"""Libraries that keep what is done on disk: they take part where a run is started again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from benchmarks import WORKERS
from benchmarks.systems.base import System
from benchmarks.work import Work

TASKS = 20  # what datatrove keeps is whole tasks; so many of them cost little, and are lost in small parts


class Keeping(System):
    """A system that is only asked to go on where it was."""

    only = ("W7",)
    keeps = True

    def run(self, work: Work) -> Iterable[Any]:
        raise NotImplementedError(f"{self.title} takes part in {', '.join(self.only)} only")


class Part:
    """A task: a stretch of the indices."""

    def __init__(self, work: Work) -> None:
        self.call, self.n = work.call, work.n

    def __call__(self, number: int) -> list[Any]:
        """Run one task; return its results."""
        begin, end = number * self.n // TASKS, (number + 1) * self.n // TASKS
        return [self.call(i) for i in range(begin, end)]


class JoblibMemory(Keeping):
    """`Parallel(n_jobs=2)(delayed(memory.cache(f))(i) for i in ...)`."""

    title = "joblib.Memory"
    needs: ClassVar[tuple[str, ...]] = ("joblib",)

    def run_kept(self, work: Work, folder: Path) -> list[Any]:
        from joblib import Memory, Parallel, delayed

        cached = delayed(Memory(folder, verbose=0).cache(work.item))
        built = work.env.build() if work.env is not None else {}
        return list(Parallel(n_jobs=WORKERS)(cached(i, **built) for i in range(work.n)))


class Datatrove(Keeping):
    """`LocalPipelineExecutor` with a step of our own that writes a file for each task."""

    title = f"datatrove LocalPipelineExecutor, {TASKS} tasks"
    needs: ClassVar[tuple[str, ...]] = ("datatrove",)

    def run_kept(self, work: Work, folder: Path) -> list[Any]:
        from datatrove.executor import LocalPipelineExecutor

        part = Part(work)

        def step(data: Any, rank: int, world_size: int) -> None:
            (folder / f"{rank}.json").write_text(json.dumps(part(rank)))

        LocalPipelineExecutor([step], tasks=TASKS, workers=WORKERS, logging_dir=str(folder / "logs")).run()
        return [value for rank in range(TASKS) for value in json.loads((folder / f"{rank}.json").read_text())]
