"""This project: a runner on processes of its own, and inside `get_client`, nothing tuned."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from benchmarks import WORKERS
from benchmarks.systems.base import Lost, System
from benchmarks.work import Work


class Ours(System):
    """`set_parallel(...)`, then `runner(range(n))`."""

    title = "espnet3.parallel"
    needs = ("omegaconf", "tqdm")
    takes_hints = True

    def __init__(self) -> None:
        self.stack = ExitStack()

    def start(self, work: Work) -> None:
        from espnet3.parallel import set_parallel

        set_parallel({"env": "local", "n_workers": WORKERS})

    def _run(self, work: Work, on_error: str) -> Any:
        from benchmarks.systems.ours_runners import RUNNERS, Provider, SpinForHinted

        config = {} if work.env is None else {"name": work.env.name, "args": dict(work.env.args)}
        runner = (SpinForHinted if work.costs else RUNNERS[work.item])(
            Provider(config), progress=False, on_error=on_error
        )
        if isinstance(runner, SpinForHinted) and work.costs:
            runner.costs = work.costs
        return runner(range(work.n))

    def run(self, work: Work) -> Iterable[Any]:
        results: Iterable[Any] = self._run(work, "raise")
        return results

    def run_with_faults(self, work: Work) -> Iterable[Any]:
        from espnet3.parallel import ItemFailure

        for result in self._run(work, "record"):
            failed = isinstance(result, ItemFailure)
            yield Lost(result.index, f"{result.cause}: {result.message}") if failed else result

    def stop(self) -> None:
        self.stack.close()


class OursOnClient(Ours):
    """`with get_client(...): runner(range(n))`: the same on the workers of a Dask client."""

    title = "espnet3.parallel in get_client"
    needs = ("distributed", "omegaconf", "tqdm")

    def start(self, work: Work) -> None:
        from espnet3.parallel import get_client

        self.stack.enter_context(get_client({"env": "local", "n_workers": WORKERS}))
