"""A config as a run folder shows it: plain data, secrets masked. What is compared is its content (`content`)."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from espnet3.parallel.checks import is_a
from espnet3.parallel.messages import brief, masked
from espnet3.parallel.provenance.content import as_containers, attributes_of
from espnet3.parallel.provenance.modules import module_of

_ENV = re.compile(r"oc\.env:\s*([^,}\s]+)")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LONGEST = 10_000  # characters of an object's text
_LEAST_SECRET = 4  # characters: a shorter value of a variable is not looked for in other values


def plain(value: Any, around: tuple[int, ...] = ()) -> Any:
    """Return any config as plain JSON data, the same for equal configs in every process."""
    if value is None or is_a(value, (bool, str)):
        return value
    if is_a(value, (int, float)):
        # a number's text: nan is not JSON, and a numpy number or an IntEnum is not a plain one
        return value if type(value) is int or (type(value) is float and value - value == 0) else str(value)
    if id(value) in around:
        return "(itself)"
    around = (*around, id(value))
    resolved = as_containers(value)
    if resolved is not value:
        return plain(resolved, around)
    if is_a(value, Mapping):
        return {str(key): plain(item, around) for key, item in value.items()}
    if is_a(value, (list, tuple)):
        return [plain(item, around) for item in value]
    if is_a(value, (set, frozenset, Set)):
        return sorted((plain(item, around) for item in value), key=repr)
    if is_a(value, PurePath):
        return str(value)
    if is_a(value, (bytes, bytearray)):
        return f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()}"
    return _object(value, around)


def _object(value: Any, around: tuple[int, ...]) -> Any:
    kind = type(value)
    if is_dataclass(kind):
        own = attributes_of(value)
        own = {each.name: plain(own[each.name], around) for each in fields(kind) if each.name in own}
        return {"__class__": f"{kind.__module__}.{kind.__qualname__}", **own}
    if issubclass(kind, (type, FunctionType, BuiltinFunctionType, MethodType)):
        return f"{module_of(value)}.{value.__qualname__}"
    numpy = sys.modules.get("numpy")
    if numpy is not None and is_a(value, numpy.ndarray) and not value.dtype.hasobject:
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return f"numpy array {value.dtype.str} {list(value.shape)}, sha256 {digest}"
    return _ADDRESS.sub("", brief(value, _LONGEST))


def shown_config(config: Any) -> Any:
    """Return a config's plain form without secrets.

    Masked are values under a name such as `password` or `api_key`, what an OmegaConf config takes from
    an environment variable (`oc.env`), also by way of another key, and passwords in addresses.
    """
    values = masked(plain(config))
    raw = as_containers(config, resolve=False)
    if raw is config and is_a(config, Mapping):
        raw = {key: as_containers(item, resolve=False) for key, item in config.items()}
    secrets = _from_environment(plain(config), plain(raw))
    return _without(values, secrets, ())


Path = tuple[Any, ...]


def _from_environment(values: Any, raw: Any) -> dict[Path, str]:
    """Return the places of all values that come from the environment, with what is shown there."""
    texts = dict(_leaves(raw))
    resolved = dict(_leaves(values))
    found = {
        path: f"*** (oc.env:{', '.join(names)})"
        for path, text in texts.items()
        if is_a(text, str) and (names := _ENV.findall(text))
    }
    secrets = [str(resolved[path]) for path in found if path in resolved]
    secrets = [text for text in secrets if len(text) >= _LEAST_SECRET]
    for path, value in resolved.items():  # `${db.password}` elsewhere leads to the same secret
        if path not in found and is_a(value, str) and any(secret in value for secret in secrets):
            found[path] = "*** (oc.env)"
    return found


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if is_a(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif is_a(value, list):
        for place, item in enumerate(value):
            yield from _leaves(item, (*path, place))
    else:
        yield path, value


def _without(value: Any, secrets: dict[Path, str], path: Path) -> Any:
    if path in secrets:
        return secrets[path]
    if is_a(value, dict):
        return {key: _without(item, secrets, (*path, key)) for key, item in value.items()}
    if is_a(value, list):
        return [_without(item, secrets, (*path, place)) for place, item in enumerate(value)]
    return value


def differences(old: Any, new: Any, name: str = "config") -> list[str]:
    """Return a line "name.key: old -> new" for each place where two plain values differ."""
    if is_a(old, dict) and is_a(new, dict):
        lines = []
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in new:
                lines.append(f"{name}.{key}: {_short(old[key])} -> (gone)")
            elif key not in old:
                lines.append(f"{name}.{key}: (new) -> {_short(new[key])}")
            else:
                lines += differences(old[key], new[key], f"{name}.{key}")
        return lines
    if is_a(old, list) and is_a(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for place, (a, b) in pairs for line in differences(a, b, f"{name}[{place}]")]
    return [] if old == new and type(old) is type(new) else [f"{name}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
