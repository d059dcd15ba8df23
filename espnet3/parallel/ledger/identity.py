"""What makes two runs the same run: the user's code, config, index list and seed."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from espnet3.parallel.checks import is_a
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.indices import describe_indices
from espnet3.parallel.provenance.code import changed_parts, code_of
from espnet3.parallel.provenance.config_facts import differences, shown_config
from espnet3.parallel.provenance.content import NoContentError, as_containers, content_hash
from espnet3.parallel.provenance.modules import file_of, name_of
from espnet3.parallel.provenance.origin import package_versions

_MASKED = "***"
_MOST_SHOWN = 20  # differences of one kind: who has more has another run


@dataclass(frozen=True, slots=True)
class Identity:
    """A run, as `run.json` holds it and as a later call is compared with it.

    Attributes:
        runner: Import path and file of the runner's class.
        provider: The same of the provider's.
        config: The config, secrets masked.
        config_sha256: The hash of the config's content, secrets included.
        indices: Count and hash of the index list, and its ends for people.
        seed: The seed: it decides what stochastic items return.
        policy: What does not change a result (on_error, max_retries, batch_size); not compared.
        plan: How the work is cut; not compared.
        contents: A hash of each value of the config, to name one that differs where what is shown does not.
        code: The file of each of the user's modules, and the hash of each function in it.
        packages: Versions of Python and of the packages that this code imports; a changed one is warned of.
    """

    runner: dict[str, Any]
    provider: dict[str, Any]
    config: Any
    config_sha256: str
    indices: dict[str, Any]
    seed: int | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    code: dict[str, Any] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data, in the order of `run.json`."""
        return {name: getattr(self, name) for name in self.__slots__}


def identify(
    runner: type,
    provider: type,
    config: Any,
    items: Sequence[Any],
    *,
    seed: int | None = None,
    policy: dict[str, Any] | None = None,
    plan: dict[str, Any] | None = None,
) -> Identity:
    """Describe a run."""
    found: list[Any] = []  # the user's functions and classes in the config: their code counts too
    try:
        contents = _contents(config, found.append)
    except NoContentError as error:
        raise ConfigError(
            f"{error}, so that a later run could not tell whether it is the same one: give the provider what it is "
            "made from (a path, a name, numbers), and make it in build_env_local"
        ) from None
    code, packages = code_of([runner, provider, *found], as_containers(config))
    return Identity(
        runner=describe_class(runner),
        provider=describe_class(provider),
        config=shown_config(config),
        config_sha256=content_hash(contents),
        indices=describe_indices(items),
        seed=seed,
        policy=policy or {},
        plan=plan or {},
        contents={name: one[:16] for name, one in contents.items()},
        code=code,
        packages=package_versions(packages),
    )


def _contents(config: Any, found: Callable[[Any], None]) -> dict[str, str]:
    """Return the hash of each value of a config, down to its second level: config.beam, params.device.

    `found` takes the functions and classes in it: they are told apart by their code, with the runner's.
    """
    if not is_a(config, Mapping):
        return {"config": content_hash(config, "config", found)}
    hashes = {}
    for part, value in config.items():
        inner = as_containers(value)
        if is_a(inner, Mapping) and inner:
            for key, one in inner.items():
                hashes[f"config.{part}.{key}"] = content_hash({key: one}, str(part), found)
        else:
            hashes[f"config.{part}"] = content_hash({part: inner}, "config", found)
    return hashes


def describe_class(cls: type) -> dict[str, Any]:
    """Return a class's import path and its file; None where it has none, as in a terminal."""
    return {"path": f"{name_of(cls.__module__)}:{cls.__qualname__}", "file": file_of(cls.__module__)}


def changes(old: dict[str, Any], new: Identity) -> list[str]:
    """Return what differs between the run of a `run.json` and this one: "what: old -> new" lines."""
    lines = []
    for part in ("runner", "provider"):
        was, now = old.get(part) or {}, getattr(new, part)
        if was.get("path") != now["path"]:
            lines.append(f"{part}: {was.get('path')} -> {now['path']}")
    if "code" not in old:
        lines.append("code: an earlier version wrote this folder, and did not note what it was made with")
    elif not lines:
        lines += [f"code: {line}" for line in changed_parts(old["code"], new.code, _when(old))][:_MOST_SHOWN]
    if old.get("config_sha256") != new.config_sha256:
        lines += differences(old.get("config"), new.config)[:_MOST_SHOWN] or _hidden(old, new)
    was, now = old.get("indices") or {}, new.indices
    if was.get("sha256") != now["sha256"]:
        lines.append(f"indices: {_list_shown(was)} -> {_list_shown(now)}")
    if old.get("seed") != new.seed:
        lines.append(f"seed: {old.get('seed')} -> {new.seed}")
    return lines


def _when(old: dict[str, Any]) -> float:
    """Return when the run of a `run.json` began, in seconds since the epoch; 0 where it does not say so."""
    try:
        return datetime.datetime.fromisoformat(str(old.get("created"))).timestamp()
    except ValueError:
        return 0.0


def _hidden(old: dict[str, Any], new: Identity) -> list[str]:
    """Name the values that differ where what is shown of them does not: masked ones, arrays, functions."""
    was = old.get("contents") or {}
    changed = [name for name in {**was, **new.contents} if was.get(name) != new.contents.get(name)]
    masked = [line.partition(":")[0] for line in differences(_blank(new.config), new.config)]
    if any(one.startswith(tuple(changed)) for one in masked):
        return [f"config: a masked value has changed (one of: {', '.join(masked)})"]
    return [f"config: the content of {', '.join(changed) or 'a value'} has changed"]


def _blank(value: Any) -> Any:
    """Return the value with every masked text replaced, so that a difference names each."""
    if is_a(value, dict):
        return {key: _blank(item) for key, item in value.items()}
    if is_a(value, list):
        return [_blank(item) for item in value]
    return None if is_a(value, str) and _MASKED in value else value


def _list_shown(indices: dict[str, Any]) -> str:
    ends = indices.get("shown") or []
    count = indices.get("count")
    if not ends:
        return f"{count} indices"
    text = ", ".join(ends) if len(ends) == count else f"{', '.join(ends[:-1])} ... {ends[-1]}"
    return f"{count} indices ({text if len(text) <= 120 else text[:117] + '...'})"


def changed_packages(old: dict[str, Any], new: Identity) -> list[str]:
    """Return which packages have another version than when the run of a `run.json` began: "name old -> new"."""
    was = old.get("packages") or {}
    return [f"{name} {was[name]} -> {now}" for name, now in new.packages.items() if was.get(name, now) != now]
