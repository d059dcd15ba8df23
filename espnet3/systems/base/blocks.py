"""The blocks `parallel` and `trainer` of a stage's config: checked, and registered while the stage runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf

from espnet3.components.instantiate import check_targets
from espnet3.components.trainers.options import check_training
from espnet3.parallel.config import ParallelConfig, check_trainer, not_indented
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.parallel import get_parallel_config, set_parallel
from espnet3.systems.configs.reading import Place, located

_TRAINED = ("model", "dataloader", "optimizer", "scheduler")
_OF_A_BACKEND = ("options", "adapt")  # they mean nothing to another one, or something else


def check_blocks(config: Any, places: Mapping[str, Place] | None = None, *, trains: bool = False) -> None:
    """Check the blocks `parallel` and `trainer` of a config; `places`, where its keys stand, are for messages.

    With `trains`, Lightning looks at the trainer on this machine, and what a training makes must be importable.
    """
    if config is None:
        return
    plain: Any = OmegaConf.to_container(config, resolve=False) if isinstance(config, DictConfig) else config
    if said := not_indented(plain):
        place = (places or {}).get(said.partition(" ")[0])
        raise ConfigError(f"{place}: {said}" if place else said)
    trains = trains and (config.get("trainer") is not None or config.get("optimizer") is not None)
    checks: dict[str, Any] = {
        "trainer": check_training if trains else check_trainer,
        "parallel": ParallelConfig.parse,
    }
    if trains:  # statistics would be computed before the stage says so
        checks |= dict.fromkeys(_TRAINED, check_targets)
    for block, check in checks.items():
        try:
            check(plain.get(block) if check is check_targets else config.get(block))
        except ConfigError as error:
            raise located(error, block, places or {}) from error


@contextmanager
def stage_parallel(config: Any) -> Iterator[None]:
    """Register a stage's own `parallel` block for a `with` block, and then what was registered before.

    Where the config has none, what is registered stays. A wrong block `parallel` or `trainer` is a ConfigError.
    """
    check_blocks(config)
    before = get_parallel_config()
    if config is not None and config.get("parallel") is not None:
        set_parallel(config.get("parallel"))
    try:
        yield
    finally:
        set_parallel(before)


def merge_parallel(config: DictConfig, small: DictConfig) -> None:
    """Merge the `parallel` block of a small file into a config, key by key; the file's values win.

    `options` and `adapt` belong to a backend: where the file names another `env` than the config, the config's are
    left out.
    """
    both: Any = (OmegaConf.to_container(each, resolve=False) for each in (config, small))
    own, new = (each.get("parallel") or {} for each in both)
    if not isinstance(own, dict):
        return  # wrong, as a stage that reads it will say
    if new.get("env", own.get("env")) != own.get("env", "local"):
        own = {key: value for key, value in own.items() if key not in _OF_A_BACKEND}
    config["parallel"] = OmegaConf.merge(own, new)
