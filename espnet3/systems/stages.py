"""The stages of a system: their names, their order, and the config that each reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from espnet3.parallel.messages import did_you_mean

ALL = "all"


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage of a system.

    Attributes:
        name: Its name, and that of the system's method.
        config: The role of the config that it reads ("training" for `training_config`), or several roles; the stage
            takes what it needs from the first that is there.
        log_dir: The dotted key of that config with the folder of the stage's log, such as "stats_dir".
        in_all: Whether "all" asks for it; False for a stage that goes on until it is ended.
    """

    name: str
    config: str | tuple[str, ...] = ()
    log_dir: str = "exp_dir"
    in_all: bool = True

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles, as a tuple."""
        return (self.config,) if isinstance(self.config, str) else self.config

    def role(self, configs: Mapping[str, Any]) -> str | None:
        """Return the role whose config the stage reads, of configs by role; create_dataset wants one with data."""
        there = [role for role in self.roles if configs.get(role) is not None]
        data = [role for role in there if self.name == "create_dataset" and _has_data(configs[role])]
        return next(iter([*data, *there]), None)


def _has_data(config: Any) -> bool:
    try:
        return config.get("create_dataset") is not None or config.get("dataset") is not None
    except OmegaConfBaseException:
        return True  # an interpolation that leads nowhere, as the check of the config says


def specs_of(system: type) -> tuple[StageSpec, ...]:
    """Return a system's stages in their order; one that is only a name reads what its method says.

    Of two with the same name the first counts: a subclass may list a stage of its own before those of its base.
    """
    stages: Iterable[StageSpec | str] = system.stages  # type: ignore[attr-defined]  # of every system
    found: dict[str, StageSpec] = {}
    for each in stages:
        spec = each if isinstance(each, StageSpec) else StageSpec(each)
        found.setdefault(spec.name, spec)
    return tuple(found.values())


def stage_names(system: type) -> tuple[str, ...]:
    """Return the names of a system's stages in their order."""
    return tuple(each.name for each in specs_of(system))


def roles_of(system: type) -> tuple[str, ...]:
    """Return the roles of all configs that a system's stages read, each once."""
    return tuple(dict.fromkeys(role for each in specs_of(system) for role in each.roles))


def chosen(system: type, wanted: Iterable[str]) -> tuple[StageSpec, ...]:
    """Return the stages that are asked for, in the system's order; "all" asks for every one with `in_all`."""
    wanted, names = list(wanted), stage_names(system)
    for name in wanted:
        if name not in (*names, ALL):
            raise ValueError(
                f"no stage {name!r}; {system.__name__} has {', '.join(names)}.{did_you_mean(name, names)}"
            )
    return tuple(each for each in specs_of(system) if each.name in wanted or (ALL in wanted and each.in_all))
