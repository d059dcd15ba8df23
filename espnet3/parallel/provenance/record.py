"""What has changed since code was looked at: between two starts, on disk, and between a run's processes; in words."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from espnet3.parallel.errors import ConfigError
from espnet3.parallel.provenance.code import BODY, code_hash, functions_in
from espnet3.parallel.provenance.constants import constants_of
from espnet3.parallel.provenance.content import WRAPPERS, given_to
from espnet3.parallel.provenance.modules import MAIN, compiled, is_own, name_of_file
from espnet3.parallel.provenance.reach import INSTALLED, Code

_MOST_SHOWN = 10


def changed_parts(old: Code, new: Code) -> list[str]:
    """Return what differs between two results of `code_of`, the nearest first: lines that name file and function.

    What only one of them has reached says nothing: something that leads there differs, or it was not loaded yet.
    """
    lines = []
    for module, now in new.items():
        was = old.get(module)
        if was is None:
            continue
        alike = bool(was.get("unloaded")) == bool(now.get("unloaded"))
        for kind in ("code", "values") if alike else ("code",):
            for name in now[kind]:
                if was[kind].get(name, now[kind][name]) != now[kind][name]:
                    lines.append(_line(module, now["file"], name))  # noqa: PERF401
    return lines


def changed_files(old: Code) -> list[str]:
    """Return what has changed since in the files of an earlier `code_of`, without importing any."""
    lines = []
    for module, was in old.items():
        file = was["file"]
        code = compiled(module, file) if file is not None else None
        if code is None:
            continue
        now = {BODY: {code_hash(code, True)}}
        for name, function in functions_in(code):
            now.setdefault(name, set()).add(code_hash(function))
        lines += [_line(module, file, name) for name in _other(was["code"], now)]
        fixed = constants_of(code)
        lines += [
            _line(module, file, f"the value of {name}")
            for name, one in was.get("constants", {}).items()
            if fixed.get(name, one) != one
        ]
    return lines


def shortened(lines: list[str], most: int = _MOST_SHOWN) -> list[str]:
    """Return the first lines, and how many more there are."""
    return lines if len(lines) <= most else [*lines[:most], f"... and {len(lines) - most} more"]


class LoadedCode:
    """The code that a run's driver has loaded, which its other processes must have loaded too.

    What stands in the script itself travels with the run; what is imported by name is looked at once it is loaded.

    Args:
        code: What `code_of` has found in the driver.
    """

    def __init__(self, code: Code) -> None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
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
        """Compare what this process has loaded since it was last asked."""
        if len(sys.modules) == self._known:
            return
        self._known = len(sys.modules)
        lines: list[str] = []
        for module in list(sys.modules.values()):
            file = _file(module)
            entry = None if file is None else self._left.get(name_of_file(file))
            if entry is not None and _is_meant(module, entry):
                name = name_of_file(str(file))
                del self._left[name]
                lines += _differences(name, module, entry)
        if lines:
            raise ConfigError(
                f"{where} has loaded other code than the process that began the run: {'; '.join(shortened(lines))}. "
                "It was edited meanwhile, or loaded again in one of them: start the program again (or open another "
                'client); resume=False starts anew, resume="force" goes on with the results of both'
            )


def _is_meant(module: ModuleType, entry: dict[str, Any]) -> bool:
    """Tell whether a module is the one of an entry: two in folders that are no packages may be called the same."""
    meant = entry.get("module", module.__name__)
    same_name = module.__name__ == meant or {module.__name__, meant} <= {*MAIN}
    return same_name or os.path.realpath(str(vars(module)["__file__"])) == os.path.realpath(entry["file"])


def _file(module: Any) -> str | None:
    if not isinstance(module, ModuleType) or module.__name__ == "__main__":
        return None
    file = vars(module).get("__file__")
    return file if isinstance(file, str) and is_own(os.path.abspath(file)) else None


def _differences(name: str, module: ModuleType, entry: dict[str, Any]) -> Iterator[str]:
    file = os.path.abspath(str(vars(module)["__file__"]))
    now = _functions_of(module)
    if entry.get("unloaded") and (code := compiled(module.__name__, file)) is not None:
        now[BODY] = {code_hash(code, True)}
    yield from (_line(name, file, one) for one in _other(entry["code"], now))
    for one, said in entry.get("constants", {}).items():
        held = vars(module).get(one, said)
        if held is not said and repr(held) != said:
            yield _line(name, file, f"the value of {one}")


def _functions_of(module: ModuleType) -> dict[str, set[str]]:
    """Return the hashes of the functions that a module holds, in classes and under decorators too."""
    found: dict[str, set[str]] = {}
    left, seen = list(vars(module).values()), set()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType):
            name = getattr(one.__code__, "co_qualname", one.__qualname__)
            if os.path.basename(one.__code__.co_filename) == os.path.basename(str(vars(module)["__file__"])):
                found.setdefault(name, set()).add(code_hash(one.__code__))
            left += [*given_to(one).values(), vars(one).get("__wrapped__")]
        elif isinstance(one, type) and one.__module__ == module.__name__:
            left += vars(one).values()
        elif type(one) in WRAPPERS:
            left += [
                getattr(one, part, None)
                for part in ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")
            ]
    return found


def _other(was: dict[str, str], now: dict[str, set[str]]) -> Iterable[str]:
    """Yield the functions of which two looks have both seen some, and none that is the same."""
    return (name for name, one in was.items() if name in now and now[name].isdisjoint(one.split()))


def _line(module: str, file: str | None, name: str) -> str:
    place = module if module == INSTALLED else file or f"module {module}, which has no file"
    return f"{place}: {'a statement' if name == BODY else name} has changed"
