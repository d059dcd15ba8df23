"""The items as runners, as a user would write them: one class each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import work
from benchmarks.work import env
from espnet3.parallel import BaseRunner, EnvironmentProvider


class Provider(EnvironmentProvider):
    """Builds the env that the config names."""

    def build_env_local(self) -> dict[str, Any]:
        """Build it in this process."""
        return env(self.config["name"], **self.config["args"]).build() if self.config else {}


class Empty(BaseRunner):
    """`work.empty`, at module level: detached jobs import it."""

    forward: Any = staticmethod(work.empty)


class FailsAtFirst(BaseRunner):
    """Has items that fail until a file is there."""

    @staticmethod
    def forward(idx: int, mended: str, every: int) -> int:
        """Return the index."""
        if idx % every == 0 and not os.path.exists(mended):
            raise RuntimeError("not mended yet")
        return idx


class SpinForHinted(BaseRunner):
    """`work.spin_for`, and how long each item will take."""

    forward: Any = staticmethod(work.spin_for)
    costs: Sequence[float] = ()

    def item_cost(self, idx: int) -> float:
        """Return the seconds."""
        return self.costs[idx]


def _runner(item: Callable[..., Any]) -> type[BaseRunner]:
    return type(item.__name__, (BaseRunner,), {"forward": staticmethod(item), "__doc__": item.__doc__})


_ITEMS = (work.ignore_env, work.spin_1ms, work.spin_for, work.payload, work.where, work.where_scaled)
RUNNERS: dict[Callable[..., Any], type[BaseRunner]] = {
    work.empty: Empty,
    **{item: _runner(item) for item in (*_ITEMS, work.killed_once, work.poison)},
}
