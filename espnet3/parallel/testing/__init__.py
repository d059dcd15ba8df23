"""Public helpers to test your own providers and runners, and backends of your own.

`same_answer` checks a runner, `BackendContract` a backend; `standin` is a batch scheduler without a
cluster: the commands of PBS, LSF, Moab or HTCondor, which run jobs as processes of this machine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espnet3.parallel.testing.answers import same_answer as same_answer
    from espnet3.parallel.testing.contract import BackendContract as BackendContract
    from espnet3.parallel.testing.equality import equal as equal
    from espnet3.parallel.testing.standins import Habit as Habit
    from espnet3.parallel.testing.standins import StandIn as StandIn
    from espnet3.parallel.testing.standins import standin as standin

_HOME = {
    "BackendContract": "contract",
    "equal": "equality",
    "same_answer": "answers",
    "standin": "standins",
    "Habit": "standins",
    "StandIn": "standins",
}

__all__ = ["BackendContract", "Habit", "StandIn", "equal", "same_answer", "standin"]


def __getattr__(name: str) -> Any:
    # loaded when asked for: a stand-in's command must not take longer than the real one
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
