"""What makes two runs the same run: runner, provider, config, index list and seed."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet3.parallel.ledger.indices import describe_indices
from espnet3.parallel.provenance.config_facts import config_hash, differences, shown_config

_MASKED = "***"
# Modules of base classes whose source is no part of a runner; `abc` and `typing` come with every one of them.
_NOT_THE_USERS = ("espnet3.parallel.", "builtins.", "abc.", "typing.")


@dataclass(frozen=True, slots=True)
class Identity:
    """A run, as `run.json` holds it and as a later call is compared with it.

    Attributes:
        runner: Import path, file and hash of the source of the runner's class.
        provider: The same of the provider's.
        config: The config, secrets masked.
        config_sha256: The hash of the config, secrets included.
        indices: Count and hash of the index list, and its ends for people.
        seed: The seed: it decides what stochastic items return.
        policy: What does not change a result (on_error, max_retries, batch_size); not compared.
        plan: How the work is cut; not compared.
    """

    runner: dict[str, Any]
    provider: dict[str, Any]
    config: Any
    config_sha256: str
    indices: dict[str, Any]
    seed: int | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)

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
    """Describe a run.

    Args:
        runner: The runner's class.
        provider: The provider's class.
        config: Whatever the provider was made with.
        items: The index list.
        seed: The runner's seed.
        policy: Plain data about errors and retries.
        plan: Plain data about chunks and shards.

    Raises:
        ValueTypeError: An index cannot be written as JSON.
    """
    return Identity(
        runner=describe_class(runner),
        provider=describe_class(provider),
        config=shown_config(config),
        config_sha256=config_hash(config),
        indices=describe_indices(items),
        seed=seed,
        policy=policy or {},
        plan=plan or {},
    )


def describe_class(cls: type) -> dict[str, Any]:
    """Return a class's import path, its file, and a hash of its source and its own bases' source.

    A class that has no source (made in a terminal) has None as its hash. Bases from this package are
    left out: a new version of it is not another runner.
    """
    module = cls.__module__
    main = sys.modules.get("__main__")
    if module == "__main__":  # the same script has to be the same runner when it is imported
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file else module
    path = f"{module}:{cls.__qualname__}"
    source = hashlib.sha256()
    for base in cls.__mro__:
        if base is not cls and f"{base.__module__}.".startswith(_NOT_THE_USERS):
            continue
        try:
            source.update(inspect.getsource(base).encode("utf-8", "backslashreplace"))
        except (OSError, TypeError):  # made in a terminal, or written in C
            if base is cls:
                return {"path": path, "file": None, "source_sha256": None}
    return {"path": path, "file": inspect.getsourcefile(cls), "source_sha256": source.hexdigest()}


def changes(old: dict[str, Any], new: Identity) -> list[str]:
    """Return what differs between the run of a `run.json` and this one: "what: old -> new" lines."""
    lines = []
    for part in ("runner", "provider"):
        was, now = old.get(part) or {}, getattr(new, part)
        if was.get("path") != now["path"]:
            lines.append(f"{part}: {was.get('path')} -> {now['path']}")
        elif was.get("source_sha256") != now["source_sha256"]:
            lines.append(f"{part}: the source of {now['path']} has changed ({now['file'] or 'no file'})")
    if old.get("config_sha256") != new.config_sha256:
        lines += differences(old.get("config"), new.config)[:20] or [_hidden(new.config)]
    was, now = old.get("indices") or {}, new.indices
    if was.get("sha256") != now["sha256"]:
        lines.append(f"indices: {_list_shown(was)} -> {_list_shown(now)}")
    if old.get("seed") != new.seed:
        lines.append(f"seed: {old.get('seed')} -> {new.seed}")
    return lines


def _hidden(config: Any) -> str:
    """Say that a masked value differs, and which ones there are."""
    names = [name.partition(":")[0] for name in differences(_blank(config), config)]
    return f"config: a masked value has changed (one of: {', '.join(names) or 'none is known'})"


def _blank(value: Any) -> Any:
    """Return the value with every masked text replaced, so that a difference names each."""
    if isinstance(value, dict):
        return {key: _blank(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_blank(item) for item in value]
    return None if isinstance(value, str) and _MASKED in value else value


def _list_shown(indices: dict[str, Any]) -> str:
    ends = indices.get("shown") or []
    count = indices.get("count")
    if not ends:
        return f"{count} indices"
    text = ", ".join(ends) if len(ends) == count else f"{', '.join(ends[:-1])} ... {ends[-1]}"
    return f"{count} indices ({text if len(text) <= 120 else text[:117] + '...'})"
