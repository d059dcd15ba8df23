"""Batch schedulers without a cluster: the commands of PBS, LSF, Moab and HTCondor, for tests.

    with standin("pbs") as queue:
        set_parallel({"env": "pbs", "n_workers": 2, "options": {"cores": 1, "memory": "1GB", "interface": "lo"}})
        ...

A stand-in really runs the job script as a process group of this machine, in a queue with slots, ends it at its
walltime, and keeps its exit code. It has what this package and dask-jobqueue use of submission, listing and cancelling.
"""

from tests.standins.habits import Habit
from tests.standins.place import StandIn, standin

__all__ = ["Habit", "StandIn", "standin"]
