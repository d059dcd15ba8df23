"""The error of a stage about its own config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from espnet3.components.instantiate import as_plain
from espnet3.parallel.checks import Sort
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean, shown

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


def wrong(role: str, key: str, said: str) -> StageConfigError:
    """Return the error of a key whose message begins with the key."""
    return StageConfigError(role, key, f"{key} {said}")


def check_block(block: Any, role: str, name: str, sorts: Mapping[str, Sort | None]) -> dict[str, Any]:
    """Return the block `name` of a config, plain, whose keys must all be known, and of their sort; None: any value."""
    plain = as_plain(block) or {}
    if not isinstance(plain, Mapping):
        raise wrong(role, name, f"= {shown(plain)}: must be a mapping with {', '.join(sorts)}")
    for key, value in plain.items():
        if key not in sorts:
            raise wrong(role, f"{name}.{key}", f"is not known; {name} has {', '.join(sorts)}")
        sort = sorts[key]
        if sort is not None and (refusal := sort.refusal(value)):
            raise wrong(role, f"{name}.{key}", f"= {shown(value)}: {refusal}")
    return dict(plain)


def require(config: Any, role: str, keys: Iterable[str], inside: str = "") -> None:
    """Check that a config, or its block `inside`, has a value for each of some keys."""
    what = f"block {inside!r} of the {role} config" if inside else f"{role} config"
    for key in keys:
        if config.get(key) is None:
            there = [str(each) for each in config]
            said = f"the {what} has no {key!r} (it has {', '.join(there)}).{did_you_mean(key, there)}"
            raise StageConfigError(role, f"{inside}.{key}" if inside else key, said)
