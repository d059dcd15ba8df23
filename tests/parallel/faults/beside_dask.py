"""Items beside which Dask draws; a module of its own, as Dask is loaded where it is."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
from dask.sizeof import sizeof

from tests.parallel.faults.workloads import Draws


class DrawsBesideDask(Draws):
    """While an item runs, Dask looks at the sizes of lists, as its event loop does now and then."""

    @staticmethod
    def forward(idx: Any, torch: bool = False, root: str = "") -> Any:
        """Draw before and after Dask has."""
        first = random.random(), float(np.random.random())
        beside = threading.Thread(target=dask_draws)
        beside.start()
        beside.join()
        return [*first, random.random(), float(np.random.random())]


def dask_draws() -> None:
    """Do what draws random numbers in Dask."""
    sizeof(list(range(1000)))
