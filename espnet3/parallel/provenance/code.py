"""The user's own code that decides a run's results, as hashes by file and by function.

    runner, provider ── their definitions, and what of their modules these use ──┐
                                                                                 v
    functions and classes in the config, `_target_` texts ──> modules imported, whole ──> modules these import ...

Of the modules that runner and provider stand in, only what they reach by name counts: such a file often holds the
lines that start the run too. Of every module of the user's that is imported from there, directly or not, everything
counts but what is under `if __name__ == "__main__"`. Comments, docstrings and layout never do. What was typed into a
notebook or a terminal has no file: its functions count by their compiled code.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from espnet3.parallel.checks import is_a
from espnet3.parallel.provenance.content import as_containers
from espnet3.parallel.provenance.held import attributes_of
from espnet3.parallel.provenance.text.source import Source, all_parts, combinations_of, one_hash
from espnet3.parallel.provenance.text.syntax import REST
from espnet3.parallel.provenance.values import VALUE
from espnet3.parallel.provenance.walk import Code, Walk

_SETTLED = 2e9  # nanoseconds since a file's last change; some disks count no finer than whole seconds


def code_of(roots: Iterable[Any], config: Any = None) -> tuple[Code, set[str]]:
    """Return the user's own code that objects depend on, and the installed packages that it imports."""
    walk = Walk()
    for root in roots:
        walk.root(root)
    for target in targets(config):
        walk.target(target)
    found = walk.result()
    return found, walk.installed


def targets(config: Any) -> Iterator[str]:
    """Yield the dotted names under `_target_` in a config, from which Hydra makes objects."""
    left, seen = [config], {id(config): config}
    while left:
        one = as_containers(left.pop())
        held = one if is_a(one, Mapping) else attributes_of(one)
        target = held.get("_target_")
        if type(target) is str:
            yield target
        for value in (*held.values(), *(one if is_a(one, (list, tuple, set, frozenset)) else ())):
            if id(value) not in seen and not is_a(value, (str, bytes, int, float, type(None))):
                seen[id(value)] = value
                left.append(value)


def changed_parts(old: Code, new: Code, since: float = 0.0) -> list[str]:
    """Return what differs between two results of `code_of`: lines that name file and function.

    A module that counts only because it is loaded (`guessed`), and is in one of the two alone, differs where its file
    has changed in between: what else the process has imported is no difference.
    """
    lines: list[str] = []
    for module in sorted({*old, *new}):
        was, now = old.get(module), new.get(module)
        file = (now or was or {}).get("file") or f"module {module}, which has no file"
        if was is not None and now is not None:
            lines += _changed(was["parts"], now["parts"], file)
        elif was is not None and was.get("guessed"):
            lines += _changed_file(module, was)
        elif now is None or not (now.get("guessed") and _is_older(file, since)):
            lines.append(f"{file} is {'no longer used' if now is None else 'used now, and was not'}")
    return lines


def changed_files(old: Code) -> list[str]:
    """Return what has changed since in the files of an earlier `code_of`, without importing any."""
    return [
        line for module, was in old.items() if was["file"] is not None for line in _changed_file(module, was)
    ]


def _changed_file(module: str, was: dict[str, Any]) -> list[str]:
    known = {name: one for name, one in was["parts"].items() if not name.startswith(VALUE)}
    return _changed(known, _parts_of_file(module, was), was["file"])


def _is_older(file: str, since: float) -> bool:
    try:
        return os.stat(file).st_mtime <= since
    except OSError:
        return False


def _parts_of_file(module: str, was: dict[str, Any]) -> dict[str, str]:
    file = was["file"]
    try:
        at = os.stat(file)
        if not stat.S_ISREG(at.st_mode):  # named by a plan that anybody wrote: a pipe would be waited for
            return {}
        settled = abs(time.time_ns() - at.st_ctime_ns) > _SETTLED  # the next edit has another time for sure
        read = _parts_at if settled else _parts_at.__wrapped__
        source, found = read(file, (at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns))
    except OSError:
        return {}
    if set(was["parts"]) == {REST}:
        return {REST: one_hash(found)}
    if was["whole"]:
        return found
    kept = {name: found[name] for name in was["parts"] if name in found}
    other = {name for name, one in kept.items() if one != was["parts"][name]}
    # of several definitions some were used, and without an import nobody can say which would be
    several = combinations_of(source, other) if other else {}
    return {**kept, **{name: was["parts"][name] for name in several if was["parts"][name] in several[name]}}


@lru_cache(maxsize=4096)
def _parts_at(file: str, stamp: tuple[int, ...]) -> tuple[Source, dict[str, str]]:
    """Return a file and its parts as it is now: who waits for a run asks again and again, and parsing takes long."""
    source = Source.read(file)
    return source, all_parts(source)


def _changed(was: dict[str, str], now: dict[str, str], file: str) -> list[str]:
    if (set(was) == {REST}) != (
        set(now) == {REST}
    ):  # one of the two had too many parts in all to keep them apart
        was, now = _as_one(was), _as_one(now)
    lines = []
    for name in sorted({*was, *now}):
        if was.get(name) != now.get(name):
            what = "has changed" if name in was and name in now else "is new" if name in now else "is gone"
            lines.append(f"{file}: {'a statement' if name == REST else name} {what}")
    return lines


def _as_one(parts: dict[str, str]) -> dict[str, str]:
    return parts if set(parts) == {REST} else {REST: one_hash(parts)}
