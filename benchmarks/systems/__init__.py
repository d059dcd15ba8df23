"""The table of systems. A row here and a class beside it add one; a name is all the command needs."""

from __future__ import annotations

from importlib import import_module

from benchmarks.systems.base import System

SYSTEMS = {
    "ours": "benchmarks.systems.ours:Ours",
    "ours-client": "benchmarks.systems.ours:OursOnClient",
    "loop": "benchmarks.systems.loop:Loop",
    "pool": "benchmarks.systems.stdlib:Pool",
    "pool-tuned": "benchmarks.systems.stdlib:PoolTuned",
    "executor": "benchmarks.systems.stdlib:Executor",
    "loky": "benchmarks.systems.stdlib:Loky",
    "joblib": "benchmarks.systems.joblib_:Joblib",
    "mpire": "benchmarks.systems.mpire_:Mpire",
    "dask": "benchmarks.systems.dask_:DaskMap",
    "ray-tasks": "benchmarks.systems.ray_:RayTasks",
}


def load(name: str) -> type[System]:
    """Return the adapter class of a system; its peer is imported only when it starts.

    Raises:
        ValueError: No such name in the table.
    """
    if name not in SYSTEMS:
        raise ValueError(f"no system {name!r}; there are {', '.join(SYSTEMS)}")
    module, _, attribute = SYSTEMS[name].partition(":")
    found = getattr(import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, System)):
        raise TypeError(f"{SYSTEMS[name]} is not a System")
    return found
