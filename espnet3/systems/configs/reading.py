"""One config file, read: its keys, where each stands, and what only the file itself knows filled in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from espnet3.parallel.config import not_indented
from espnet3.parallel.errors import ConfigError
from espnet3.systems.configs.places import Place, Places, not_yaml, place_of, places_in

_SELF_NAME, _RECIPE_NAME = "${self_name:}", "${set_corpus_and_system:}"
_CONFIG_PATH = re.compile(r"\$\{config_path:(?P<path>[^}]*)\}")
_LOAD_LINE = re.compile(r"\$\{load_line:(?P<path>[^}]*)\}")


def read_config(path: Path) -> tuple[DictConfig, Places]:
    """Read a YAML mapping.

    Four expressions are replaced here, since only here is it known which file they stand in: `${self_name:}` by the
    file's name without `.yaml`, `${config_path:PATH}` by the absolute path of a file named from the config's folder, a
    value `${load_line:PATH}` by the lines of such a file, and `${set_corpus_and_system:}` by the names of the recipe's
    two folders, as in `asterisk_asr`.

    The config that is returned, with the place of each key, has all other interpolations as they are.
    """
    text = path.read_text(encoding="utf-8")
    places = places_in(text, str(path))
    try:
        raw = yaml.safe_load(text)
        if not isinstance(raw, dict):
            kind = "nothing" if raw is None else f"a {type(raw).__name__}"
            raise TypeError(f"{path} must hold a mapping, not {kind}")
        config = OmegaConf.create(text)
    except yaml.YAMLError as error:  # a key that stands there twice
        raise ConfigError(flat(path) or str(not_yaml(error, str(path)))) from error
    except OmegaConfBaseException as error:
        raise unresolved(error, places) from error
    if isinstance(raw.get("defaults"), list):
        raise ConfigError(
            f"{place_of(places, 'defaults')}: defaults: a list of files, as Hydra composes them, is not read here: "
            "write their keys into this file"
        )
    filled = _filled(OmegaConf.to_container(config, resolve=False), "", path, places)
    return OmegaConf.create(filled), places


def flat(path: Path) -> str:
    """Name the lines to indent in a file whose block `parallel` or `trainer` stands beside its keys."""
    said = not_indented(path.read_text(encoding="utf-8"))
    return said and f"{path}, {said}"


def _filled(value: Any, key: str, path: Path, places: Places) -> Any:
    dot = f"{key}." if key else ""
    if isinstance(value, dict):
        return {name: _filled(each, f"{dot}{name}", path, places) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, f"{dot}{at}", path, places) for at, each in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    if lines := _LOAD_LINE.fullmatch(value):
        file = path.parent / lines["path"].strip()
        try:
            text = file.read_text(encoding="utf-8-sig").removesuffix("\n")
            return (
                text.split("\n") if text else []
            )  # str.splitlines would also split at "\x1c", "\u2028", ...
        except OSError as error:
            raise ConfigError(
                f"{place_of(places, key)}: {key}: {file} cannot be read ({error.strerror})"
            ) from error
    value = value.replace(_SELF_NAME, path.stem).replace(_RECIPE_NAME, _recipe_name(path))
    return _CONFIG_PATH.sub(lambda found: str((path.parent / found["path"].strip()).resolve()), value)


def _recipe_name(path: Path) -> str:
    above = path.resolve().parts[:-1]
    folders = above[: above.index("conf")] if "conf" in above else above
    return "_".join(folders[-2:])


def unresolved(error: OmegaConfBaseException, places: Places, key: str | None = None) -> ConfigError:
    """Return the error for a value whose interpolation cannot be resolved; without a key, the one it names itself."""
    key = key or error.full_key or ""
    place = place_of(places, key) or Place("the config")
    return ConfigError(
        f"{place}: {key}: {str(error).splitlines()[0]}; define what it refers to, or write the value"
    )


def check_interpolations(config: DictConfig, places: Places) -> None:
    """Resolve every value that stands in a file or on the command line; ??? is an error."""
    for key in places:
        if not key:
            continue
        try:
            OmegaConf.select(config, key, throw_on_missing=True, throw_on_resolution_failure=True)
        except MissingMandatoryValue as error:
            raise ConfigError(
                f"{place_of(places, key)}: {key} = ???: write its value here, or give it on the command line: {key}=..."
            ) from error
        except OmegaConfBaseException as error:
            raise unresolved(error, places, key) from error
