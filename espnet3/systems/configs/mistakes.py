"""The error of a stage about its own config."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean

NEEDED = {
    "collect_stats": ("dataset", "stats_dir"),
    "train": ("model", "dataset", "exp_dir", "optimizer"),
    "infer": ("dataset", "model", "inference_dir", "input_key"),
    "measure": ("inference_dir", "metrics"),
    "demo": ("model",),
}
"""The keys that a stage cannot do without, by its name."""


class StageConfigError(ConfigError):
    """A stage's config, that of a `role` such as "training", lacks a dotted `key`, or holds something wrong there."""

    def __init__(self, role: str, key: str, said: str) -> None:
        super().__init__(said)
        self.role = role
        self.key = key

    def __reduce__(self) -> Any:  # it may come back from a worker
        return type(self), (self.role, self.key, str(self))


def require(config: Any, role: str, keys: Iterable[str], inside: str = "") -> None:
    """Check that a config, or its block `inside`, has a value for each of some keys."""
    what = f"block {inside!r} of the {role} config" if inside else f"{role} config"
    for key in keys:
        if config.get(key) is None:
            there = [str(each) for each in config]
            raise StageConfigError(
                role,
                f"{inside}.{key}" if inside else key,
                f"the {what} has no {key!r} (it has {', '.join(there)}).{did_you_mean(key, there)}",
            )
