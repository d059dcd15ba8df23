"""One table of records, a row for each `env`, and its readers.

Modules about batch schedulers are imported when a block names one: a run on this machine starts sooner without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from espnet3.parallel.backends.backend import Backend as Backend
from espnet3.parallel.backends.backend import Kind as Kind
from espnet3.parallel.backends.backend import batch_backend as batch_backend
from espnet3.parallel.backends.backend import load_cluster_class as load_cluster_class
from espnet3.parallel.backends.table import BACKENDS as BACKENDS
from espnet3.parallel.backends.table import row as row

if TYPE_CHECKING:
    from espnet3.parallel.backends.scheduler import Scheduler as Scheduler


def __getattr__(name: str) -> Any:
    if name != "Scheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from espnet3.parallel.backends.scheduler import Scheduler

    return Scheduler
