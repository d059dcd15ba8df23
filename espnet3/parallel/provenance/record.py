"""Changes of code in words: between two starts, on disk, and between a run's processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a, own_attribute
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.provenance.code import BODY, code_hash, constant_hash, constants_in, hashes_in
from espnet3.parallel.provenance.content import WRAPPERS, given_to
from espnet3.parallel.provenance.modules import MAIN, compiled, is_own, is_same_file, module_of, name_of_file
from espnet3.parallel.provenance.reach import INSTALLED, PUT_THERE, Code


def changed_parts(old: Code, new: Code) -> list[str]:
    """Return the differences of two results of `code_of`, the nearest first: lines that name file and function.

    A part that only one of them has is no difference: the code that leads there differs, or it was not loaded yet.
    """
    lines = []
    for module, now in new.items():
        was = old.get(module, now)
        alike = bool(was.get("unloaded")) == bool(now.get("unloaded"))
        for kind in ("code", "values") if alike else ("code",):
            for name, one in now[kind].items():
                before, after = set(was[kind].get(name, one).split()), set(one.split())
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
            lines += _differences(module, file, was, hashes_in(code), constants_in(code))
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
        travels = name_of_file(os.path.abspath(script)) if script else ""
        self._left: Code = {
            module: {part: one for part, one in entry.items() if part != "values"}
            for module, entry in code.items()
            if entry["file"] is not None and module != travels
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
        for name, module in list(sys.modules.items()):
            file = own_attribute(module, "__file__")
            if name == "__main__" or not isinstance(file, str) or not is_own(file := os.path.abspath(file)):
                continue
            called = name_of_file(file)
            entry = self._left.get(called)
            names = {name, entry["module"]} if entry is not None else set()
            is_meant = len(names) == 1 or names <= {*MAIN}
            if entry is not None and (is_meant or is_same_file(entry["file"], file)):
                del self._left[called]
                now = _functions_of(module, os.path.basename(file))
                if entry.get("unloaded") and (code := compiled(name, file)) is not None:
                    for one, found in hashes_in(code).items():  # a decorator may have compiled it anew
                        now[one] = now.get(one, set()) | found
                known = vars(module).keys() & entry.get("constants", {}).keys()
                held = {one: constant_hash(vars(module)[one]) for one in known}
                lines += _differences(called, file, entry, now, held)
        if lines:
            raise ConfigError(
                f"{where} has loaded other code than the process that began the run: {'; '.join(shortened(lines))}. "
                "It was edited meanwhile, or loaded again in one of them: start the program again (or open another "
                'client); resume=False starts anew, resume="force" goes on with the results of both'
            )


def _functions_of(module: ModuleType, file: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    left, seen = list(vars(module).values()), set()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) is FunctionType:
            name = getattr(one.__code__, "co_qualname", one.__qualname__)
            if os.path.basename(one.__code__.co_filename) == file:
                found.setdefault(name, set()).add(code_hash(one.__code__))
            left += [*(value for value, _ in given_to(one).values()), vars(one).get("__wrapped__")]
        elif is_a(one, type) and module_of(one) == module.__name__:
            left += vars(one).values()
        elif type(one) in WRAPPERS:
            left += [getattr(one, part) for part in WRAPPERS[type(one)]]
    return found


def _differences(
    module: str, file: str, was: dict[str, Any], functions: dict[str, set[str]], constants: dict[str, str]
) -> Iterator[str]:
    for name, one in was["code"].items():
        if name in functions and functions[name].isdisjoint(one.split()):
            yield _line(module, file, name)
    for name, one in was.get("constants", {}).items():
        if constants.get(name, one) != one:
            yield _line(module, file, f"the value of {name}")


def _line(module: str, file: str | None, name: str) -> str:
    place = module if module == INSTALLED else file or f"module {module}, which has no file"
    return f"{place}: {'a statement' if name == BODY else name} has changed"
