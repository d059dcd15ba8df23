"""One config file, read: its keys, where each stands, and what only the file itself knows filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from espnet3.parallel.config import not_indented
from espnet3.parallel.errors import ConfigError

_SELF_NAME, _RECIPE_NAME = "${self_name:}", "${set_corpus_and_system:}"
_CONFIG_PATH = re.compile(r"\$\{config_path:(?P<path>[^}]*)\}")
_LOAD_LINE = re.compile(r"\$\{load_line:(?P<path>[^}]*)\}")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a key: a file, as it was named, or "the command line", and the line, counted from 1."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}, line {self.line}"


Places = dict[str, Place]
"""Dotted key ("parallel.options.queue", "dataset.test.0.name") -> place; "" is the file itself."""


def _not_yaml(error: yaml.YAMLError, file: str) -> str:
    mark = getattr(error, "problem_mark", None)
    place = Place(file, None if mark is None else mark.line + 1)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    line = "" if mark is None else (mark.buffer or "")[: mark.pointer].rpartition("\n")[2]
    if "\t" in line + problem.replace("\\t", "\t") and not line.strip():
        problem = "the line begins with a tab: indent it with spaces"
    return f"{place}: this is not YAML: {problem}"


def _keys(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    dot = f"{prefix}." if prefix else ""
    if isinstance(node, yaml.MappingNode):
        merged = []
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":  # `<<: *anchor`: what stands here comes first
                merged.append(value)
                continue
            name = f"{dot}{key.value}"
            yield name, key.start_mark.line + 1
            yield from _keys(value, name)
        for value in merged:
            for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                yield from _keys(each, prefix)
    elif isinstance(node, yaml.SequenceNode):
        for at, value in enumerate(node.value):
            yield f"{dot}{at}", value.start_mark.line + 1
            yield from _keys(value, f"{dot}{at}")


def place_of(places: Mapping[str, Place], key: str) -> Place | None:
    """Return where a key stands; where it has no place of its own, that of the block around it."""
    while key and key not in places:
        key = key.rpartition(".")[0]
    return places.get(key)


def located(error: ConfigError, block: str, places: Mapping[str, Place]) -> ConfigError:
    """Return the error of a wrong block such as "parallel", each of its problems with file, line and whole key."""
    if not places:
        return error
    said = []
    for problem in error.problems or (str(error),):
        about = [key for key in places if key.startswith(f"{block}.") and _is_about(problem, key, block)]
        key = max(about, key=len, default=block)
        said.append(f"{place_of(places, key)}: {block}{': ' if key == block else '.'}{problem}")
    if len(said) == 1:
        return ConfigError(said[0])
    lines = [f"  {number}. {problem}" for number, problem in enumerate(said, 1)]
    return ConfigError("\n".join([f"The {block} config has {len(said)} problems:", *lines]))


def _is_about(problem: str, key: str, block: str) -> bool:
    written = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", key.removeprefix(f"{block}."))
    return re.match(rf"{re.escape(written)}(?![\w-])", problem) is not None


def read_config(path: Path) -> tuple[DictConfig, Places]:
    """Read a YAML mapping.

    Four expressions are replaced here, since only here is it known which file they stand in: `${self_name:}` by the
    file's name without `.yaml`, `${config_path:PATH}` by the absolute path of a file named from the config's folder, a
    value `${load_line:PATH}` by the lines of such a file, and `${set_corpus_and_system:}` by the names of the recipe's
    two folders, as in `asterisk_asr`. Return the config, all other interpolations as they are, and each key's place.
    """
    text = path.read_text(encoding="utf-8")
    places = {"": Place(str(path))}
    try:
        for key, line in _keys(yaml.compose(text, Loader=yaml.SafeLoader), ""):
            places.setdefault(key, Place(str(path), line))
        raw = yaml.safe_load(text)
        if not isinstance(raw, dict):
            kind = "nothing" if raw is None else f"a {type(raw).__name__}"
            raise TypeError(f"{path} must hold a mapping, not {kind}")
        config = OmegaConf.create(text)
    except yaml.YAMLError as error:
        raise ConfigError(_not_yaml(error, str(path))) from error
    except OmegaConfBaseException as error:
        raise _unresolved(error, places) from error
    if isinstance(raw.get("defaults"), list):
        raise ConfigError(
            f"{place_of(places, 'defaults')}: defaults: a list of files, as Hydra composes them, is not read here: "
            "write their keys into this file"
        )
    filled = _filled(OmegaConf.to_container(config, resolve=False), "", path, places)
    return OmegaConf.create(filled), places


def flat(config: DictConfig, places: Places) -> str:
    """Name the keys to indent in a file whose block `parallel` or `trainer` is empty, with its keys beside it."""
    said = not_indented(OmegaConf.to_container(config, resolve=False))
    return said and f"{place_of(places, said.partition(' ')[0])}: {said}"


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
        except OSError as error:
            said = f"{file} cannot be read ({error.strerror})"
            raise ConfigError(f"{place_of(places, key)}: {key}: {said}") from error
        return text.split("\n") if text else []  # str.splitlines would also split at "\x1c", "\u2028", ...
    value = value.replace(_SELF_NAME, path.stem).replace(_RECIPE_NAME, _recipe_name(path))
    return _CONFIG_PATH.sub(lambda found: str((path.parent / found["path"].strip()).resolve()), value)


def _recipe_name(path: Path) -> str:
    above = path.resolve().parts[:-1]
    folders = above[: above.index("conf")] if "conf" in above else above
    return "_".join(folders[-2:])


def _unresolved(error: OmegaConfBaseException, places: Places, key: str | None = None) -> ConfigError:
    key = key or error.full_key or ""
    said = f"{str(error).splitlines()[0]}; define what it refers to, or write the value"
    return ConfigError(f"{place_of(places, key) or 'the config'}: {key}: {said}")


def check_interpolations(config: DictConfig, places: Places) -> None:
    """Resolve every value that stands in a file or on the command line; ??? is an error."""
    for key in filter(None, places):
        try:
            OmegaConf.select(config, key, throw_on_missing=True, throw_on_resolution_failure=True)
        except MissingMandatoryValue as error:
            said = f"{key} = ???: write its value here, or give it on the command line: {key}=..."
            raise ConfigError(f"{place_of(places, key)}: {said}") from error
        except OmegaConfBaseException as error:
            raise _unresolved(error, places, key) from error
