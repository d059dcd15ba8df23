"""Libraries that keep what is done on disk: they take part where a run is started again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from benchmarks import WORKERS
from benchmarks.systems.base import System
from benchmarks.work import Work

TASKS = 20  # what the first two keep is whole tasks; so many of them cost little, and are lost in small parts


class Keeping(System):
    """A system that is only asked to go on where it was."""

    only = ("W7",)
    keeps = True

    def run(self, work: Work) -> Iterable[Any]:
        """Is not asked for.

        Raises:
            NotImplementedError: It was.
        """
        raise NotImplementedError(f"{self.title} takes part in {', '.join(self.only)} only")


class Part:
    """A task: a stretch of the indices."""

    def __init__(self, work: Work) -> None:
        """Take the run's function and its length."""
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
        """Return the list; a call whose result is in the cache is not made."""
        from joblib import Memory, Parallel, delayed

        cached = delayed(Memory(folder, verbose=0).cache(work.item))
        built = work.env.build() if work.env is not None else {}
        return list(Parallel(n_jobs=WORKERS)(cached(i, **built) for i in range(work.n)))


class Datatrove(Keeping):
    """`LocalPipelineExecutor` with a step of our own that writes a file for each task."""

    title = f"datatrove LocalPipelineExecutor, {TASKS} tasks"
    needs: ClassVar[tuple[str, ...]] = ("datatrove",)

    def run_kept(self, work: Work, folder: Path) -> list[Any]:
        """Return what the tasks' files hold; a task that is marked as completed is not run."""
        from datatrove.executor import LocalPipelineExecutor

        part = Part(work)

        def step(data: Any, rank: int, world_size: int) -> None:
            (folder / f"{rank}.json").write_text(json.dumps(part(rank)))

        LocalPipelineExecutor([step], tasks=TASKS, workers=WORKERS, logging_dir=str(folder / "logs")).run()
        return [value for rank in range(TASKS) for value in json.loads((folder / f"{rank}.json").read_text())]


class Submitit(Keeping):
    """`LocalExecutor`, a job for each task, two at a time; the script remembers the jobs' ids."""

    title = f"submitit LocalExecutor, {TASKS} jobs"
    needs: ClassVar[tuple[str, ...]] = ("submitit",)

    def run_kept(self, work: Work, folder: Path) -> list[Any]:
        """Return the jobs' results; a job of an earlier start that has a result is not submitted again."""
        import submitit

        executor, part = submitit.LocalExecutor(folder=folder), Part(work)
        results: dict[int, list[Any]] = {}
        for note in folder.glob("*.job"):
            job = submitit.LocalJob(folder=folder, job_id=note.read_text())
            if job.state == "FINISHED":
                results[int(note.stem)] = job.result()
        left = [number for number in range(TASKS) if number not in results]
        running: dict[int, Any] = {}
        while left or running:
            while left and len(running) < WORKERS:
                number = left.pop(0)
                running[number] = executor.submit(part, number)
                (folder / f"{number}.job").write_text(running[number].job_id)
            for number, job in list(running.items()):
                if job.done():
                    results[number] = running.pop(number).result()
            time.sleep(0.01)  # its jobs send no event
        return [value for number in range(TASKS) for value in results[number]]
