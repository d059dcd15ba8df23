"""What a provider keeps of its settings: lists, dicts, configs and records, found, copied, and seen to change.

A record is an object that is nothing but its fields: of a dataclass, a `SimpleNamespace`, argparse's `Namespace`.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

from espnet3.parallel.checks import is_path

_MOST = 10_000  # values among a provider's arguments or in one attribute: more are data, and no settings
_DICTS = (dict, OrderedDict, defaultdict, Counter)
_LISTS = (list, tuple, set, frozenset, deque)
_DATA = (type(None), bool, int, float, complex, str, bytes)


def copied(value: Any) -> Any:
    """Return a copy of lists, dicts, configs and records, in any depth; all other objects are the same in the copy.

    Of a value with very many of them nothing is copied: it is data, which nobody edits by hand.
    """
    if len(containers(value)) > _MOST:
        return value
    others = {id(one): one for one, parts in _walk(value) if parts is None and not _is_plain(one)}
    try:
        return copy.deepcopy(value, others)
    except RecursionError:  # nested too deeply for settings
        return value


def containers(value: Any) -> set[int]:
    """Return the identities of the lists, dicts, configs and records in a value, or of too many of them."""
    found: set[int] = set()
    for one, parts in _walk(value):
        if parts is not None:
            found.add(id(one))
        if len(found) > _MOST:
            break
    return found


def is_data(value: Any) -> bool:
    """Whether a value is numbers, texts, paths, and not very many of them in lists, dicts, configs and records."""
    for seen, (one, parts) in enumerate(_walk(value)):
        if seen >= _MOST or (parts is None and not _is_plain(one)):
            return False
    return True


def _walk(value: Any) -> Iterator[tuple[Any, dict[Any, Any] | None]]:
    """Yield a value and all that is in it, each with its parts; a container's parts follow once."""
    left, entered = [value], set()
    while left:
        one = left.pop()
        parts = _parts(one)
        yield one, parts
        if parts is not None and id(one) not in entered:
            entered.add(id(one))
            left += [*parts.values(), *(one if type(one) in _DICTS else ())]


def _is_plain(value: Any) -> bool:
    return issubclass(type(value), _DATA) or is_path(value)  # an object may say that its class is another


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

    return {
        name
        for name, value in then.items()
        if name in now and is_data(now[name]) and content_hash(now[name], name) != content_hash(value, name)
    }


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return what is in a list, dict, config or record, by key, place or field; None for anything else."""
    kind = type(value)
    if kind in _DICTS:
        return dict(value)
    if kind in _LISTS:
        return dict(enumerate(value))
    if _is_config(value):
        return {}  # it holds nothing but data, and copies itself
    if kind is SimpleNamespace or (kind.__name__ == "Namespace" and kind.__module__ == "argparse"):
        return dict(vars(value))
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return None


def _is_config(value: Any) -> bool:
    omegaconf = sys.modules.get("omegaconf")  # a value can only be OmegaConf's where it is loaded
    return omegaconf is not None and issubclass(type(value), omegaconf.Container)
