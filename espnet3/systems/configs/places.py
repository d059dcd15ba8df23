"""The place of each key of a YAML file, so that a mistake can be shown with its file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from espnet3.parallel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a key: a file, as it was named, or "the command line", and the line, counted from 1."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}, line {self.line}"


Places = dict[str, Place]
"""Dotted key ("parallel.options.queue", "dataset.test.0.name") -> place; "" is the file itself."""


def places_in(text: str, file: str) -> Places:
    """Return the place of every key of a YAML text, of a file that is so called in messages."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise not_yaml(error, file) from error
    places = {"": Place(file)}
    for key, line in _keys(root, ""):
        places.setdefault(key, Place(file, line))
    return places


def not_yaml(error: yaml.YAMLError, file: str) -> ConfigError:
    """Return the error for a file that YAML cannot read."""
    mark = getattr(error, "problem_mark", None)
    place = Place(file, None if mark is None else mark.line + 1)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    line = "" if mark is None else (mark.buffer or "")[: mark.pointer].rpartition("\n")[2]
    if "\t" in line + problem.replace("\\t", "\t") and not line.strip():
        problem = "the line begins with a tab: indent it with spaces"
    return ConfigError(f"{place}: this is not YAML: {problem}")


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
    inside = [key for key in places if key.startswith(f"{block}.")]
    said = []
    for problem in error.problems or (str(error),):
        key = max(
            (key for key in inside if _is_about(problem, key.removeprefix(f"{block}."))),
            key=len,
            default=block,
        )
        said.append(f"{place_of(places, key)}: {block}{': ' if key == block else '.'}{problem}")
    if len(said) == 1:
        return ConfigError(said[0])
    lines = [f"  {number}. {problem}" for number, problem in enumerate(said, 1)]
    return ConfigError("\n".join([f"The {block} config has {len(said)} problems:", *lines]))


def _is_about(problem: str, key: str) -> bool:
    written = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", key)
    return re.match(rf"{re.escape(written)}(?![\w-])", problem) is not None
