"""The items as runners, as a user would write them: one class each, at module level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import work
from benchmarks.work import env
from espnet3.parallel import BaseRunner, EnvironmentProvider


class Provider(EnvironmentProvider):
    """Builds the env that the config names."""

    def build_env_local(self) -> dict[str, Any]:
        """Build it in this process."""
        if not self.config:
            return {}
        return env(self.config["name"], **self.config["args"]).build()


class Empty(BaseRunner):
    """`work.empty`."""

    forward: Any = staticmethod(work.empty)


class IgnoreEnv(BaseRunner):
    """`work.ignore_env`."""

    forward: Any = staticmethod(work.ignore_env)


class Spin(BaseRunner):
    """`work.spin_1ms`."""

    forward: Any = staticmethod(work.spin_1ms)


class SpinFor(BaseRunner):
    """`work.spin_for`."""

    forward: Any = staticmethod(work.spin_for)


class SpinForHinted(SpinFor):
    """`work.spin_for`, and how long each item will take."""

    costs: Sequence[float] = ()

    def item_cost(self, idx: int) -> float:
        """Return the seconds."""
        return self.costs[idx]


class Payload(BaseRunner):
    """`work.payload`."""

    forward: Any = staticmethod(work.payload)


class Where(BaseRunner):
    """`work.where`."""

    forward: Any = staticmethod(work.where)


class WhereScaled(BaseRunner):
    """`work.where_scaled`."""

    forward: Any = staticmethod(work.where_scaled)


class KilledOnce(BaseRunner):
    """`work.killed_once`."""

    forward: Any = staticmethod(work.killed_once)


class Poison(BaseRunner):
    """`work.poison`."""

    forward: Any = staticmethod(work.poison)


class Counted(BaseRunner):
    """`work.counted`."""

    forward: Any = staticmethod(work.counted)


RUNNERS: dict[Callable[..., Any], type[BaseRunner]] = {
    cls.forward: cls
    for cls in (Empty, IgnoreEnv, Spin, SpinFor, Payload, Where, WhereScaled, KilledOnce, Poison, Counted)
}
