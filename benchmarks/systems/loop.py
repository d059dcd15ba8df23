"""No parallelism at all."""

from __future__ import annotations

from typing import Any

from benchmarks.systems.base import System
from benchmarks.work import Work


class Loop(System):
    """A list comprehension in this process."""

    title = "for-loop, one process"
    leaves_out = {"W6": "its worker is the driver"}

    def run(self, work: Work) -> list[Any]:
        call = work.call
        return [call(i) for i in range(work.n)]
