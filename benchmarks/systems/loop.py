"""The two ends of the scale: no parallelism at all, and nothing but parallelism."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

from benchmarks import WORKERS
from benchmarks.systems.base import System
from benchmarks.work import Work


class Loop(System):
    """A list comprehension in this process."""

    title = "for-loop, one process"
    leaves_out = {"W6": "its worker is the driver"}
    keeps = True

    def run(self, work: Work) -> list[Any]:
        """Run here."""
        call = work.call
        return [call(i) for i in range(work.n)]

    def run_kept(self, work: Work, folder: Path) -> list[Any]:
        """Run here, and write the results at the end."""
        results = self.run(work)
        (folder / "results.json").write_text(json.dumps(results))
        return results


class Fork(System):
    """Forked processes that share a counter and return nothing: what the machine allows."""

    title = "os.fork and a shared counter, no results (limit)"
    leaves_out = dict.fromkeys(["W4", "W5", "W6"], "carries no results")

    def run(self, work: Work) -> list[Any]:
        """Fork, let the children take chunks until the counter has passed the end, wait."""
        counter = multiprocessing.get_context("fork").Value("q", 0)
        call, chunk, n = work.call, work.chunk, work.n

        def child() -> None:
            while True:
                with counter.get_lock():
                    first = counter.value
                    counter.value += chunk
                if first >= n:
                    return
                for i in range(first, min(n, first + chunk)):
                    call(i)

        pids = []
        for _ in range(WORKERS):
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    child()
                    code = 0
                finally:
                    os._exit(code)
            pids.append(pid)
        for pid in pids:
            if status := os.waitpid(pid, 0)[1]:
                raise RuntimeError(f"a forked child ended with wait status {status}")
        return [None] * n
