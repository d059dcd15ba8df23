"""One table of records, a row for each `env`, and its readers.

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
