"""The configs of a recipe, put together: its files, a small parallel file, the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from espnet3.components.data.data_organizer import ORGANIZER_KEYS, is_organized
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean, shown
from espnet3.systems.base.blocks import check_blocks, merge_parallel
from espnet3.systems.configs.reading import Place, Places, check_interpolations, flat, place_of, read_config
from espnet3.systems.configs.roles import ROLES, Role, role_of

_CLOSE = 0.8  # a slip of the pen, no other word


@dataclass(frozen=True, slots=True)
class StageConfig:
    """One config of a recipe: its keys, whose interpolations are resolved when they are read."""

    role: Role
    config: DictConfig
    places: Places  # where each key was set
    fault: str = ""  # the fault of the file itself, whatever its values

    @property
    def is_read(self) -> bool:
        """Whether the file could be read: a config that takes keys from it is wrong without them."""
        return len(self.places) > 1

    @property
    def file(self) -> str:
        """The file it was read from."""
        return str(self.places[""])


@dataclass(frozen=True, slots=True)
class StageConfigs:
    """The configs of a recipe, by role; those that it has no file for are not in it."""

    by_role: Mapping[str, StageConfig]

    def __getitem__(self, role: str) -> DictConfig:
        """Return the config of a role."""
        return self.by_role[role].config

    def __contains__(self, role: str) -> bool:
        return role in self.by_role

    def arguments(self) -> dict[str, DictConfig]:
        """Return the configs as arguments of a system: `training_config`, `inference_config`, ..."""
        return {f"{role}_config": each.config for role, each in self.by_role.items()}

    def plain(self) -> dict[str, DictConfig]:
        """Return the configs by role."""
        return {role: each.config for role, each in self.by_role.items()}

    def check(self, role: str, *, trains: bool = False) -> None:
        """Check the config of a role; a mistake is a ConfigError with file, line and key.

        With `trains`, that of a stage which gives Lightning the block `trainer`.
        """
        each = self.by_role[role]
        givers = [self.by_role[name] for name in each.role.takes if name in self.by_role]
        for other in (each, *(giver for giver in givers if not giver.is_read)):
            if other.fault:
                raise ConfigError(other.fault)
        check_interpolations(each.config, each.places)
        check_blocks(each.config, each.places, trains=trains)


def load_configs(
    recipe_dir: Path,
    files: Mapping[str, str | None] | None = None,
    *,
    parallel: str | None = None,
    overrides: Sequence[str] = (),
    check: Iterable[str] | None = None,
) -> StageConfigs:
    """Read the configs of a recipe.

    In this order: the files; the defaults of their roles; the small parallel file, merged into the `parallel` block of
    every one of them; the overrides; and the keys that one takes from another (`inference_dir` of metrics from
    inference, `exp_tag` from training, ...), where it has no value of its own.

    `files` maps roles to names of files, in the recipe's folder or its conf/; a role with None has its usual file, if
    it is there, and None stands for all `ROLES` so. `parallel` names the small file, which holds that block alone.
    `overrides` are `dotted.key=value` or `+key=value`, and `check` the roles whose values are checked; None: all.

    A wrong value, or a file that cannot be read, is a ConfigError with file, line and key; a file that is not there a
    FileNotFoundError, and an override or a small file that does not fit a ValueError.
    """
    found: dict[str, StageConfig] = {}
    for name, file in (dict.fromkeys(ROLES) if files is None else files).items():
        role = role_of(name)
        path = recipe_dir / "conf" / role.files[0]
        config, places = DictConfig({}), {"": Place(str(path))}
        try:
            given = _file_of(role, file, recipe_dir)
            if given is None:
                continue
            path = given
            config, places = read_config(path)
            fault = _slip(config, places, role) or flat(config, places)
        except (ConfigError, TypeError) as error:
            fault = str(error)
        found[name] = StageConfig(role, _with_defaults(config, role, recipe_dir, path), places, fault)
    if parallel is not None:
        _merge_small(found, find_config(parallel, recipe_dir))
    _override(found, overrides)
    for each in found.values():
        _take(each, found)
        if "exp_dir" in each.role.defaults and _is_empty(each.config, "exp_tag"):
            each.config["exp_tag"] = Path(each.file).stem  # a recipe without a training has experiments too
    configs = StageConfigs(found)
    for name in found:
        if check is None or name in check:
            configs.check(name)
    return configs


def find_config(name: str | os.PathLike[str], recipe_dir: Path) -> Path:
    """Find a config file by what a user may call it.

    `parallel_slurm`, `parallel_slurm.yaml` and `conf/parallel_slurm.yaml` are all found in the recipe; a path that
    exists from the current folder comes first.
    """
    name, conf = os.fspath(name), recipe_dir / "conf"
    for candidate in (Path(name), recipe_dir / name, conf / name, conf / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    there = ", ".join(sorted(path.name for path in conf.glob("*.yaml")))
    raise FileNotFoundError(f"no config {name!r} here or in {recipe_dir} (its conf/ has {there or 'none'})")


def _file_of(role: Role, given: str | None, recipe_dir: Path) -> Path | None:
    if given is not None:
        return find_config(given, recipe_dir)
    there = [path for name in role.files if (path := recipe_dir / "conf" / name).is_file()]
    if len(there) > 1:
        names = " and ".join(path.name for path in there)
        said = f"say which one by --{role.name}_config, or remove one"
        raise ConfigError(f"{recipe_dir / 'conf'} has {names}: {said}")
    return there[0] if there else None


def _with_defaults(config: DictConfig, role: Role, recipe_dir: Path, path: Path) -> DictConfig:
    for key, value in role.defaults.items():
        if _is_empty(config, key):
            config[key] = value.replace("${self_name:}", path.stem)
    if OmegaConf.is_missing(config, "recipe_dir") or config.get("recipe_dir", ".") in (None, "."):
        config["recipe_dir"] = str(recipe_dir.resolve())
    return config


def _slip(config: DictConfig, places: Places, role: Role) -> str:
    text = OmegaConf.to_yaml(config, resolve=False)
    for key in map(str, config):
        if key in role.keys or re.search(rf"\$\{{{re.escape(key)}[.\}}\[]", text):
            continue
        if meant := did_you_mean(key, role.keys - set(map(str, config)), cutoff=_CLOSE):
            return f"{place_of(places, key)}: {key}: unknown key.{meant}"
    return ""


def _merge_small(found: Mapping[str, StageConfig], path: Path) -> None:
    small, places = read_config(path)
    if list(small) != ["parallel"]:
        said = f"{path} must hold the block 'parallel' and nothing else, it has {list(small)}"
        raise ValueError(flat(small, places) or said)
    for each in found.values():
        merge_parallel(each.config, small)
        each.places.update({key: place for key, place in places.items() if key})


def _override(found: Mapping[str, StageConfig], overrides: Sequence[str]) -> None:
    for override in overrides:
        add, words = override.startswith("+"), override.lstrip("+")
        key, equals, _ = words.partition("=")
        if not equals or not key:
            raise ValueError(f"override {shown(override)} must read key=value, such as parallel.n_workers=2")
        top = key.partition(".")[0]
        fitting = [each for each in found.values() if _fits(each.config, key)] or [*found.values()]
        targets = [each for each in fitting if add or top in each.config]
        if not targets:
            known = sorted({str(name) for each in fitting for name in each.config})
            hint = did_you_mean(top, known) or f" They have {', '.join(known)}"
            said = f"no config has {shown(top)}.{hint} (+{shown(key)[1:-1]}=... adds a new key)"
            raise ValueError(f"override {shown(override)}: {said}")
        for each in targets:
            try:
                each.config.merge_with_dotlist([words])
            except (OmegaConfBaseException, yaml.YAMLError) as error:
                raise ValueError(f"override {shown(override)}: {str(error).splitlines()[0]}") from error
            each.places[key] = Place("the command line")


def _fits(config: DictConfig, key: str) -> bool:
    block, _, rest = key.partition(".")
    dataset = config.get("dataset") if block == "dataset" and rest else None
    if not isinstance(dataset, DictConfig):
        return True
    return is_organized(dataset) == (rest.partition(".")[0] in ORGANIZER_KEYS)


def _take(each: StageConfig, found: Mapping[str, StageConfig]) -> None:
    own = {key for key in each.places if key in each.config and not _is_empty(each.config, key)}
    if "exp_tag" in own:  # an experiment of its own: another one's folder would be the wrong place
        own.add("exp_dir")
    for giver, keys in each.role.takes.items():
        for key in keys:
            if giver in found and key not in own and (value := _value(found[giver].config, key)) is not None:
                own.add(key)
                each.config[key] = value
                each.places[key] = found[giver].places.get(key, Place(found[giver].file))


def _is_empty(config: DictConfig, key: str) -> bool:
    return not OmegaConf.is_interpolation(config, key) and config.get(key) in (None, "")


def _value(config: DictConfig, key: str) -> Any:
    try:
        value = config.get(key)
    except OmegaConfBaseException:
        return None  # it refers to a key without a value, as a stage that needs it will say
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
