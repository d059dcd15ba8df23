"""Settings of a provider: its lists, dicts, configs, and records, objects that are nothing but their fields."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any

from espnet3.parallel.checks import is_a, is_path, loaded
from espnet3.parallel.provenance import NAMESPACES

_MOST = 10_000  # values among a provider's arguments or in one attribute: more are data, not settings
_DICTS = (dict, OrderedDict, defaultdict, Counter)
_LISTS = (list, tuple, set, frozenset, deque)
_DATA = (type(None), bool, int, float, complex, str, bytes)


def copied(value: Any) -> Any:
    """Return a copy of lists, dicts, configs and records in any depth, of few parts: more are data, not settings."""
    try:
        return copy.deepcopy(value, _found(value)[1])
    except RecursionError:  # nested too deeply for settings
        return value


def containers(value: Any) -> Set[int]:
    """Return the identities of the lists, dicts, configs and records in a value, unless it has very many parts."""
    return _found(value)[0]


def objects_in(value: Any) -> list[Any]:
    """Return the objects in a value's lists, dicts, configs and records: what is neither one of these nor plain."""
    return list(_found(value)[1].values())


def is_data(value: Any) -> bool:
    """Return whether a value is numbers, texts, paths, or a few of them in lists, dicts, configs and records."""
    return not objects_in(value)


def _found(value: Any) -> tuple[set[int], dict[int, Any]]:
    held: set[int] = set()
    others: dict[int, Any] = {}
    left = [value]
    for number, one in enumerate(left):  # which grows
        if number == _MOST:
            return set(), {id(value): value}  # as if it were an object
        parts = _parts(one)
        if parts is None and not _is_plain(one):
            others[id(one)] = one
        elif parts is not None and id(one) not in held:
            held.add(id(one))
            left += parts
    return held, others


def _is_plain(value: Any) -> bool:
    return is_a(value, _DATA) or is_path(value)  # an object may say that its class is another


def _parts(value: Any) -> list[Any] | None:
    kind, omegaconf = type(value), loaded("omegaconf")
    if kind in _DICTS:
        return [*value, *value.values()]
    if kind in _LISTS:
        return [*value]
    if omegaconf is not None and issubclass(kind, omegaconf.Container):
        return []  # it holds nothing but data, and copies itself
    if (kind.__name__, kind.__module__) in NAMESPACES:
        return [*vars(value).values()]
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else None
    return names and [getattr(value, name) for name in names if hasattr(value, name)]


def editable(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the attributes that can be edited in place and are data."""
    return {
        name: copied(value)
        for name, value in attributes.items()
        if not name.startswith("_espnet3_") and not _is_plain(value) and is_data(value)
    }


def edited(then: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    """Return the names of the attributes that hold other data than their copies of `editable` do."""
    # here: a run's processes start before it is needed
    from espnet3.parallel.provenance.content import content_hash

    both = {name: (value, now[name]) for name, value in then.items() if name in now and is_data(now[name])}
    return {name for name, (old, new) in both.items() if content_hash(old, name) != content_hash(new, name)}
