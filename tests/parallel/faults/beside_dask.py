"""Items beside which Dask draws; a module of its own, as pandas and Dask are loaded where it is."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pandas
from dask.sizeof import sizeof

from tests.parallel.faults.workloads import Draws


class DrawsBesideDask(Draws):
    """While an item runs, Dask looks at the sizes of lists and tables, as its event loop does now and then."""

    @staticmethod
    def forward(idx: Any, torch: bool = False, root: str = "") -> Any:
        first = random.random(), float(np.random.random())
        beside = threading.Thread(target=dask_draws)
        beside.start()
        beside.join()
        return [*first, random.random(), float(np.random.random())]


def dask_draws() -> None:
    sizeof(list(range(1000)))
    sizeof(pandas.DataFrame({"text": ["a", "b"] * 200}))
    sizeof(pandas.Series(["a", "b"] * 200))
