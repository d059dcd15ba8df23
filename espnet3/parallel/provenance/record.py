"""Changes of code in words: between two starts, on disk, and between a run's processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Set
from types import FunctionType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a, own_attribute
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.provenance.code import BODY, facts_of
from espnet3.parallel.provenance.content import PLAIN, WRAPPERS, given_to
from espnet3.parallel.provenance.modules import MAIN, compiled, module_of, own_modules, real
from espnet3.parallel.provenance.reach import INSTALLED, PUT_THERE, VALUE, Code, constant_hash, parts_in


def changed_parts(old: Code, new: Code) -> list[str]:
    """Return the differences of two results of `code_of`, the nearest first: lines that name file and function.

    A part that only one of them has is no difference: the code that leads there differs, or it was not loaded yet.
    """
    lines = []
    for module, now in new.items():
        was = old.get(module, now)
        alike = bool(was.get("unloaded")) == bool(now.get("unloaded"))
        for kind, other in (("code", "values"), ("values", "code"))[: 1 + alike]:
            for name, one in now[kind].items():
                before, after = set(was[kind].get(name, was[other].get(name, one)).split()), set(one.split())
                if before != after and (alike or not (before < after or after < before)):
                    said = f"{name} ({', '.join(sorted(before ^ after))})" if name == PUT_THERE else name
                    lines.append(_line(module, now["file"], said))
    return lines


def changed_files(old: Code) -> list[str]:
    """Return the changes in the files of an earlier `code_of`, without importing any."""
    lines: list[str] = []
    for module, was in old.items():
        file = was["file"] or ""
        code = compiled(module, file) if os.path.isfile(file) else None  # named by a plan that anybody wrote
        if code is not None:
            lines += _differences(file, was, parts_in(code))
    return lines


def shortened(lines: list[str], most: int = 10) -> list[str]:
    """Return the first lines, and how many more there are."""
    return lines if len(lines) <= most else [*lines[:most], f"... and {len(lines) - most} more"]


class LoadedCode:
    """The code that a run's driver has loaded, by `code_of`: its other processes must have loaded the same.

    Code of the script itself travels with the run; a module that is imported by name is compared once it is loaded.
    """

    def __init__(self, code: Code) -> None:
        script = own_attribute(sys.modules.get("__main__"), "__file__")
        self._left: Code = {
            module: {part: one for part, one in entry.items() if part != "values"}
            for module, entry in code.items()
            if entry["file"] is not None and not (script and real(entry["file"]) == real(script))
        }
        self._known = 0

    def __reduce__(self) -> Any:
        return LoadedCode, (self._left,)

    def check(self, where: str) -> None:
        """Compare what this process, called `where`, has loaded since it was last asked.

        Raises:
            ConfigError: It is other code; the message names module and function.
        """
        if len(sys.modules) == self._known:
            return
        self._known = len(sys.modules)
        lines: list[str] = []
        places = {at: key for key, one in self._left.items() for at in (one["module"], real(one["file"]))}
        for name, file, module in own_modules():
            key = places.get(real(file)) or places.get(MAIN[0] if name in MAIN else name, "")
            if name != MAIN[0] and (entry := self._left.pop(key, None)) is not None:
                now = _parts_of(module, os.path.basename(file), entry["code"].keys())
                if entry.get("unloaded") and (code := compiled(name, file)) is not None:
                    for one, found in parts_in(code).items():  # a decorator may have compiled it anew
                        now[one] = now.get(one, set()) | found
                lines += _differences(file, entry, now)
        if lines:
            raise ConfigError(
                f"{where} has loaded other code than the process that began the run: {'; '.join(shortened(lines))}. "
                "It was edited meanwhile, or loaded again in one of them: start the program again (or open another "
                'client); resume=False starts anew, resume="force" goes on with the results of both'
            )


def _parts_of(module: ModuleType, file: str, wanted: Set[str]) -> dict[str, set[str]]:
    held = {f"{VALUE}{name}": value for name, value in vars(module).items() if type(value) in PLAIN}
    found = {name: {constant_hash(held[name])} for name in wanted & held.keys()}
    left, seen = list(vars(module).values()), set()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) is FunctionType:
            name = getattr(one.__code__, "co_qualname", one.__qualname__)
            if os.path.basename(one.__code__.co_filename) == file:
                found.setdefault(name, set()).add(facts_of(one.__code__).hash)
            left += [*(value for value, _ in given_to(one).values()), vars(one).get("__wrapped__")]
        elif is_a(one, type) and module_of(one) == module.__name__:
            left += vars(one).values()
        elif type(one) in WRAPPERS:
            left += [getattr(one, part) for part in WRAPPERS[type(one)]]
    return found


def _differences(file: str, was: dict[str, Any], now: dict[str, set[str]]) -> list[str]:
    return [
        _line("", file, name)
        for name, one in was["code"].items()
        if name in now and now[name].isdisjoint(one.split())
    ]


def _line(module: str, file: str | None, name: str) -> str:
    place = module if module == INSTALLED else file or f"module {module}, which has no file"
    return f"{place}: {'a statement' if name == BODY else name} has changed"
