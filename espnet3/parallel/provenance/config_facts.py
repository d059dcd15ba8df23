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
    raw = as_containers(config, resolve=False)
    if raw is config and is_a(config, Mapping):
        raw = {key: as_containers(item, resolve=False) for key, item in config.items()}
    values, raw = plain(config), plain(raw)
    secrets = {one for one in _from_environment(values, raw) if len(one) >= _LEAST_SECRET}
    return _without(masked(values), raw, secrets)


def _parts(value: Any) -> dict[Any, Any]:
    if is_a(value, dict):
        return dict(value)
    return dict(enumerate(value)) if is_a(value, list) else {}


def _from_environment(value: Any, raw: Any) -> Iterator[str]:
    """Yield the texts of the values that come from the environment."""
    written = _parts(raw)
    for key, one in _parts(value).items():
        yield from _from_environment(one, written.get(key))
    if is_a(raw, str) and _ENV.search(raw):
        yield str(value)


def _without(value: Any, raw: Any, secrets: set[str]) -> Any:
    """Return what is shown of a value, as it is written in the config, without what comes from the environment."""
    if is_a(raw, str) and (names := _ENV.findall(raw)):
        return f"*** (oc.env:{', '.join(names)})"
    written = _parts(raw)
    if is_a(value, dict):
        return {key: _without(one, written.get(key), secrets) for key, one in value.items()}
    if is_a(value, list):
        return [_without(one, written.get(at), secrets) for at, one in enumerate(value)]
    # `${db.password}` elsewhere leads to the same secret
    return "*** (oc.env)" if is_a(value, str) and any(one in value for one in secrets) else value


def differences(old: Any, new: Any, name: str = "config") -> list[str]:
    """Return a line "name.key: old -> new" for each place where two plain values differ."""
    if is_a(old, dict) and is_a(new, dict):
        lines = []
        for key in {**old, **new}:
            if key in old and key in new:
                lines += differences(old[key], new[key], f"{name}.{key}")
            else:
                was, now = (_short(each[key]) if key in each else None for each in (old, new))
                lines.append(f"{name}.{key}: {was or '(new)'} -> {now or '(gone)'}")
        return lines
    if is_a(old, list) and is_a(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for place, (a, b) in pairs for line in differences(a, b, f"{name}[{place}]")]
    return [] if old == new and type(old) is type(new) else [f"{name}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
