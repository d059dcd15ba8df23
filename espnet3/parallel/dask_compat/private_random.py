"""Dask's own draws from generators of its own, so that those of `random` and numpy are the items' alone.

A worker's event loop draws from the process's one `random` every few seconds: `dask.sizeof` samples lists, comms add
jitter. Between the seeding of an item and its draws that would change what it draws.
"""

from __future__ import annotations

import random
import sys
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any

_BESIDE_ITEMS = ("dask", "distributed", "tornado", "zict", "fsspec", "bokeh")
_METHODS = (MethodType, BuiltinMethodType)
_looked_at: set[str] = set()
_GLOBAL: Any = random.seed.__self__  # type: ignore[attr-defined]  # the generator behind the module's functions


def private_copy() -> ModuleType:
    """Return a copy of the module `random` whose functions draw from a generator of their own."""
    own = random.Random()  # noqa: S311  # for samples and jitter, as Dask draws them now
    copy = ModuleType("random", random.__doc__)
    for name, value in vars(random).items():
        ours = getattr(value, "__self__", None) is _GLOBAL
        setattr(copy, name, getattr(own, value.__name__) if ours else value)
    return copy


_PRIVATE = private_copy()


def leave_random_to_items() -> None:
    """Give the libraries that run beside items in this process, as far as they are loaded, a `random` of their own."""
    for name in [name for name in sys.modules if name.startswith(_BESIDE_ITEMS) and name not in _looked_at]:
        module = sys.modules.get(name)
        if name.partition(".")[0] not in _BESIDE_ITEMS or module is None:
            continue
        _looked_at.add(name)
        for attribute, value in list(vars(module).items()):
            if value is random:
                setattr(module, attribute, _PRIVATE)
            elif isinstance(value, _METHODS) and value.__self__ is _GLOBAL:  # from random import choice
                setattr(module, attribute, getattr(_PRIVATE, value.__name__))
    if "pandas" in sys.modules and "dask.sizeof" in sys.modules and "pandas" not in _looked_at:
        _looked_at.add("pandas")
        size_tables_without_draws(sys.modules["pandas"], sys.modules["dask.sizeof"].sizeof)


def size_tables_without_draws(pandas: Any, sizeof: Any) -> None:
    """Have Dask estimate a table's size from the first cells of its columns: its own way draws them with numpy's."""
    sizeof(pandas.Index([]))  # Dask registers its own way when it first meets a table: before ours

    def of_cells(values: Any) -> int:
        first = values[:100].tolist()
        return int(len(values) / max(1, len(first)) * sum(map(sizeof, first)))

    def of_series(series: Any) -> int:
        texts = of_cells(series.to_numpy()) if series.dtype.kind == "O" else 0
        return 1200 + int(series.memory_usage(deep=False)) + texts

    def of_index(index: Any) -> int:
        return (
            of_series(index.to_frame(index=False).iloc[:, 0])
            if index.nlevels == 1
            else int(index.memory_usage())
        )

    def of_frame(frame: Any) -> int:
        columns = (of_series(frame.iloc[:, at]) for at in range(frame.shape[1]))
        return sum(columns) + of_index(frame.index)

    for kind, size in ((pandas.DataFrame, of_frame), (pandas.Series, of_series), (pandas.Index, of_index)):
        sizeof.register(kind)(size)
