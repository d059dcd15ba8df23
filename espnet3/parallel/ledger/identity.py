"""The identity of a run: the user's code, config, index list and seed."""

from __future__ import annotations

import hashlib
import re
import weakref
from argparse import Namespace
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

from espnet3.parallel.checks import is_a, loaded, own_attribute
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.errors import ValueTypeError
from espnet3.parallel.ledger.lines import index_json
from espnet3.parallel.messages import brief, shortened
from espnet3.parallel.provenance import EXECUTION
from espnet3.parallel.provenance.content import PLAIN, Content, NoContentError, as_containers, attributes_of
from espnet3.parallel.provenance.modules import MAIN, file_of, name_of
from espnet3.parallel.provenance.parts import STATEMENT, VALUE, Code, changed_parts
from espnet3.parallel.provenance.reach import code_of
from espnet3.parallel.provenance.settings import objects_in
from espnet3.parallel.provenance.shown import differences, package_versions, shown_config

# How a run is executed, wherever a config says it
_BLOCKS = frozenset({"parallel", "runner"})
_HOW = frozenset({*_BLOCKS, *EXECUTION, "batch_size"})
_DEVICE = re.compile(r"(auto|cpu|cuda|gpu|mps|xpu|hip)(:\d+)?")
_CHUNK = 1 << 16  # indices that are hashed at a time
_SHOWN = 3  # indices of a list that are written out
# What items have changed in this process. By the runner and the provider of their run, the place, the hash that they
# have left there, and the object of the config that it is of: the hash before, or None, and a reference to that object
_BEFORE: dict[tuple[Any, ...], tuple[str | None, Any]] = {}


@dataclass(frozen=True, slots=True)
class Identity:
    """A run, as `run.json` holds it (and is read by these types) and as a later call is compared with it."""

    runner: dict[str, str | None]
    provider: dict[str, str | None]
    config: dict[str, Any]  # the provider's, secrets masked
    indices: dict[str, Any]
    seed: Any = None  # an int of any size, or None
    policy: dict[str, Any] = field(default_factory=dict)  # on_error, max_retries, batch_size: not compared
    plan: dict[str, list[int]] = field(default_factory=dict)  # how the work is cut: not compared
    # a hash of each value of the config, secrets included, without the places in `not_compared`
    contents: dict[str, str] = field(default_factory=dict)
    not_compared: list[str] = field(default_factory=list)
    # the user's own, of runner, provider and config
    code: dict[str, dict[str, Any]] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)  # versions, of those that this code imports


def identify(
    runner: type,
    provider: type,
    config: Any,
    items: Sequence[Any],
    *,
    seed: int | None = None,
    policy: dict[str, Any] | None = None,
    plan: dict[str, Any] | None = None,
    lists: bool = False,
) -> Identity:
    """Describe a run."""
    left_out: list[str] = []
    compared = without_execution(config, "", left_out, lists)
    parts = _parts(compared)
    try:
        contents = _contents(parts)
    except NoContentError as error:
        raise ConfigError(
            f"{error}, so that a later run could not tell whether it is the same one: give the provider what it is "
            "made from (a path, a name, numbers), and make it in build_env_local"
        ) from None
    code, packages = code_of([runner, provider], compared, what_counts)
    both = _describe_class(runner), _describe_class(provider)
    paths = tuple(one["path"] for one in both)
    for held, name, place, value in _hashes(code, contents, parts):
        now = held.pop(name)
        before, reference = _BEFORE.get((paths, place, now, id(value)), (now, None))
        if reference is not None and reference() is not value:  # it is of another object
            before = now
        if before is not None:
            held[name] = before
    return Identity(
        runner=both[0],
        provider=both[1],
        config=shown_config(config),
        indices=describe_indices(items),
        seed=seed,
        policy=policy or {},
        plan=plan or {},
        contents=contents,
        not_compared=left_out,
        code=code,
        packages=package_versions(packages),
    )


def items_have_run(before: Identity, runner: type, provider: type, config: Any) -> None:
    """Take what items have changed in this process since `identify` (a cache) for no change of the run."""
    with suppress(Exception):  # of a value that they have left in ruins: the run that has it next says so
        parts = _parts(compared := without_execution(config, "", []))
        code, contents = code_of([runner, provider], compared, what_counts)[0], _contents(parts)
        was = {place: held[name] for held, name, place, _ in _hashes(before.code, before.contents, parts)}
        for held, name, place, value in _hashes(code, contents, parts):
            now, then, kind = held[name], was.get(place), place[1]
            if kind == "code":  # a list that was empty has no hash
                counts = name.startswith(VALUE)
            else:  # plain data of a config may be another list that is equal to this one
                counts = then is not None and (kind == "values" or _is_object(value))
            if counts and now != then and not name.startswith(STATEMENT):
                with suppress(TypeError):  # of an object to which there is no reference
                    reference = weakref.ref(value) if kind == "config" else None
                    paths = before.runner["path"], before.provider["path"]
                    _BEFORE[paths, place, now, id(value)] = then, reference


def _hashes(code: Code, contents: dict[str, str], parts: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    # what holds each, its name there, its place (module, kind, name), and the value of the config that it is of
    for module, entry in code.items():
        for kind in ("code", "values"):
            for name in list(entry[kind]):
                yield entry[kind], name, (module, kind, name), None
    for name in list(contents):
        (value,) = parts[name][1].values() if name in parts else (None,)
        yield contents, name, ("", "config", name), value


def _is_object(value: Any) -> bool:
    return [*map(id, objects_in(value))] == [id(value)] and not is_a(value, (type, FunctionType))


def without_execution(config: Any, place: str, left_out: list[str], lists: bool = False) -> Any:
    """Return a config without the parts on how a run is executed, and note their places."""
    held = as_containers(config)
    if type(held) in (list, tuple):
        inner = (without_execution(one, f"{place}[{at}]", left_out, lists) for at, one in enumerate(held))
        return held if PLAIN.issuperset(map(type, held)) else type(held)(inner)  # of numbers it may be long
    entries, beside = {} if type(held) in (dict, *PLAIN) else attributes_of(held), {}
    if is_a(held, dict) and not is_a(held, defaultdict):  # its factory is not an entry
        items = OrderedDict.items if is_a(held, OrderedDict) else dict.items  # each has an order of its own
        entries, beside = dict(items(held)), entries
    elif not (is_a(held, (Namespace, SimpleNamespace)) or is_dataclass(type(held))):
        return held
    kept = {}
    for key, value in entries.items():
        is_how = is_a(key, str) and key.lower() in _HOW
        if type(value) in PLAIN and not is_how:
            kept[key] = value
            continue  # there may be millions of these
        where = f"{place}.{key}" if place else f"{key}"
        inner = as_containers(value)
        is_block = key in _BLOCKS and (inner is None or is_a(inner, Mapping))
        is_size = key == "batch_size" and place in ("config", "params") and not lists
        if is_block or is_size or (is_how and not what_counts(key, inner)):
            left_out.append(where)
        else:
            kept[key] = without_execution(inner, where, left_out, lists)
    return kept if type(held) is dict else (type(held), kept, beside)


def what_counts(name: Any, value: Any) -> list[Any]:
    """Return what counts of a value: nothing of one that says how a run is executed, else what that leaves of it."""
    if is_a(name, str) and name.lower() in EXECUTION:
        is_text = is_a(value, str) or type(value) is own_attribute(loaded("torch"), "device")
        is_how: Any = _DEVICE.fullmatch(str(value)) if is_text else value is None or is_a(value, int)
        if is_how or (is_a(value, list) and not any(what_counts(name, one) for one in value)):
            return []
    return [without_execution(value, "", []) if as_containers(value) is not value else value]


def _parts(config: Any) -> dict[str, tuple[str, Any]]:
    # by name: where each stands, and its key and value
    found = dict[str, tuple[str, Any]]()
    for part, inner in (config or {}).items():
        is_deep = is_a(inner, Mapping) and inner
        where = f"config.{part}" if is_deep else "config"
        entries = inner.items() if is_deep else [(part, inner)]
        found |= {f"{where}.{key}": (where, {key: one}) for key, one in entries}
    return found


def _contents(parts: dict[str, tuple[str, Any]]) -> dict[str, str]:
    content = Content()
    content.compared = what_counts
    return {name: content.hash(one, where)[:16] for name, (where, one) in parts.items()}


def _describe_class(cls: type) -> dict[str, str | None]:
    module = name_of(cls.__module__) if cls.__module__ in MAIN else cls.__module__
    return {"path": f"{module}:{cls.__qualname__}", "file": file_of(cls.__module__)}


def changes(old: dict[str, Any], new: Identity, lost: Sequence[str] | None = None) -> list[str]:
    """Return the differences of a `run.json` and this run, the nearest first: "what: old -> new" lines."""
    lines = list[str]()
    for part, described in (("runner", new.runner), ("provider", new.provider)):
        before = (old.get(part) or {}).get("path")
        lines += [f"{part}: {before} -> {described['path']}"] if before != described["path"] else []
    both = old.get("packages") or {}, new.packages
    pythons = [str(packages.get("python")).rpartition(".")[0] for packages in both]
    if pythons[0] != pythons[1]:
        code = ["it was compiled by Python {}, and cannot be compared in {}".format(*pythons)]
    else:  # where the class is another, so is its code
        code = changed_parts(old["code"], new.code) if not lines else []
    if [*(old.get("contents") or {}).items()] != [*new.contents.items()]:  # their order counts
        lists = not any(place.endswith("batch_size") for place in new.not_compared)
        configs = [without_execution(each, "", [], lists) for each in (old.get("config"), new.config)]
        lines += differences(*configs) or _hidden(old, new)
    lines += [f"code: {line}" for line in code]
    held, now = old.get("indices") or {}, new.indices
    if held.get("sha256") != now["sha256"] and lost != []:
        gone = f"; no longer in the list: {', '.join(shortened(list(lost), 5))}" if lost else ""
        if lost is None and new.plan.get("shards"):
            gone = "; with writer hooks a list may grow at its end, and 'force' computes any other one anew"
        lines.append(f"indices: {list_shown(held)} -> {list_shown(now)}{gone}")
    if old.get("seed") != new.seed:
        lines.append(f"seed: {old.get('seed')} -> {new.seed}")
    return lines


def _hidden(old: dict[str, Any], new: Identity) -> list[str]:
    was = old.get("contents") or {}
    changed = [name for name in {**was, **new.contents} if was.get(name) != new.contents.get(name)]
    if not changed:
        return ["config: the order of its values has changed"]
    return [f"{name}: a masked value, the content or the order of its values has changed" for name in changed]


def changed_packages(old: dict[str, Any], new: Identity) -> list[str]:
    """Return the packages whose version has changed since the run of a `run.json` began: "name old -> new"."""
    was = old.get("packages") or {}
    return [f"{name} {was[name]} -> {now}" for name, now in new.packages.items() if was.get(name, now) != now]


def hash_indices(items: Sequence[Any]) -> str:
    """Return a hash of the indices and their order; a range and the equal list have the same."""
    if (digest := _hash_integers(items)) is not None:
        return digest
    plain = hashlib.sha256(b"json\n")
    for at, item in enumerate(items):
        plain.update(_held(at, item) + b"\n")
    return plain.hexdigest()


def _held(at: int, item: Any) -> bytes:
    try:
        return index_json(item)
    except ValueTypeError as error:
        kind, why = type(item).__qualname__, error.problem.partition(":")[0]  # without the advice for results
        raise ValueTypeError(
            f"indices[{at}] = {brief(item, 80)}",
            f"({kind}) cannot be an index of a run folder, a set of JSON files: give numbers, text, lists or dicts of "
            f"them, such as range(len(items)), and keep the objects in the env ({error.where} {why})",
        ) from None


def _hash_integers(items: Sequence[Any]) -> str | None:
    digest = hashlib.sha256(b"int64\n")
    numpy = loaded("numpy")
    for at in range(0, len(items), _CHUNK):
        part = items[at : at + _CHUNK]
        if not isinstance(part, range):
            others = set(map(type, part)) - {int}
            if others and (numpy is None or not all(issubclass(kind, numpy.integer) for kind in others)):
                return None
        try:
            numbers = array("q", part)
        except OverflowError:
            return None
        digest.update(numbers)
    return digest.hexdigest()


def describe_indices(items: Sequence[Any]) -> dict[str, Any]:
    """Describe an index list for `run.json`: count, hash, its ends for people, and the numbers of a range."""
    n = len(items)
    shown = sorted({*range(min(n, _SHOWN)), *range(max(0, n - 1), n)})
    ends = [_held(at, items[at]).decode() for at in shown]
    whole = {"range": [items.start, items.stop, items.step]} if isinstance(items, range) else {}
    return {"count": n, "sha256": hash_indices(items), "shown": ends, **whole}


def list_shown(indices: dict[str, Any]) -> str:
    """Return the text of a list that `describe_indices` has described, for messages."""
    ends, count = indices.get("shown") or [], indices.get("count")
    if not ends:
        return f"{count} indices"
    text = ", ".join(ends) if len(ends) == count else f"{', '.join(ends[:-1])} ... {ends[-1]}"
    return f"{count} indices ({text if len(text) <= 120 else text[:117] + '...'})"
