"""Stage configs: YAML files by name, dotted overrides, plain dicts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from espnet3.components.instantiate import as_plain
from espnet3.parallel.messages import did_you_mean, shown


def as_dict(config: Any) -> dict[str, Any]:
    """Return a mapping or an OmegaConf config as a plain dict, interpolations resolved."""
    config = as_plain(config)
    if not isinstance(config, Mapping):
        raise TypeError(f"a config must be a mapping, not {type(config).__name__}: {config!r}")
    return {str(key): value for key, value in config.items()}


def find_config(name: str | os.PathLike[str], recipe_dir: Path) -> Path:
    """Find a config file by what a user may call it.

    `parallel_slurm`, `parallel_slurm.yaml` and `conf/parallel_slurm.yaml` are all found in the
    recipe; a path that exists from the current folder comes first.
    """
    name = os.fspath(name)
    for candidate in (
        Path(name),
        recipe_dir / name,
        recipe_dir / "conf" / name,
        recipe_dir / "conf" / f"{name}.yaml",
    ):
        if candidate.is_file():
            return candidate
    there = ", ".join(sorted(path.name for path in (recipe_dir / "conf").glob("*.yaml")))
    raise FileNotFoundError(f"no config {name!r} here or in {recipe_dir} (its conf/ has {there or 'none'})")


def apply_overrides(configs: Mapping[str, DictConfig], overrides: Iterable[str]) -> list[str]:
    """Set `dotted.key=value` in every config that has the first part of the key.

    `+key=value` sets it in all of them whether they have it or not. Values are YAML. Return
    the names of the configs that were changed.
    """
    changed: list[str] = []
    for override in overrides:
        add = override.startswith("+")
        key, equals, _ = override.lstrip("+").partition("=")
        if not equals or not key:
            raise ValueError(f"override {shown(override)} must read key=value, such as parallel.n_workers=2")
        top = key.partition(".")[0]
        targets = [name for name, config in configs.items() if add or top in config]
        if not targets:
            known = sorted({str(name) for config in configs.values() for name in config})
            hint = did_you_mean(top, known) or f" They have {', '.join(known)}"
            raise ValueError(
                f"override {shown(override)}: no config has {shown(top)}.{hint} "
                f"(+{shown(key)[1:-1]}=... adds a new key)"
            )
        for name in targets:
            try:
                configs[name].merge_with_dotlist([override.lstrip("+")])
            except (OmegaConfBaseException, yaml.YAMLError) as error:
                raise ValueError(f"override {shown(override)}: {str(error).splitlines()[0]}") from error
        changed += targets
    return changed
