"""One table of records, a row for each `env`, and its readers.

In: the name of an `env` and its options. Out: its row, and all mistakes in the options.

`backend.py` is the record of a row and `scheduler.py` that of a batch scheduler, with `queue_states.py` for states of
jobs. `schedulers.py` holds the rows of the batch schedulers, `table.py` the others and those of other packages.
`loading.py` imports a cluster class and reads its options, `check.py` finds mistakes and the right place of a name,
`ssh_hosts.py` reads the hosts of `env: ssh`, `job_text.py` times, sizes and words,
`gpus.py` counts the GPUs of this machine.

Modules about batch schedulers are imported when a block names one: a run on this machine starts sooner without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from espnet3.parallel.backends.backend import Backend, Kind, batch_backend
from espnet3.parallel.backends.check import option_problems
from espnet3.parallel.backends.loading import allowed_options, has_option, installed, load_cluster_class
from espnet3.parallel.backends.table import BACKENDS, row

if TYPE_CHECKING:
    from espnet3.parallel.backends.scheduler import Scheduler as Scheduler
    from espnet3.parallel.backends.scheduler import SubmitBy as SubmitBy

__all__ = [
    "BACKENDS",
    "Backend",
    "Kind",
    "Scheduler",
    "SubmitBy",
    "allowed_options",
    "batch_backend",
    "has_option",
    "installed",
    "load_cluster_class",
    "option_problems",
    "row",
]


def __getattr__(name: str) -> Any:
    if name not in ("Scheduler", "SubmitBy"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from espnet3.parallel.backends import scheduler

    return getattr(scheduler, name)
