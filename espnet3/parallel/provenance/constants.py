"""Constants that are written in a module's file as they are: no argument of the program can make them others."""

from __future__ import annotations

import dis
import os
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any

from espnet3.parallel.provenance.modules import absolute, compiled, is_own, locate, name_of_file

# What `written_in` has found, by file and name
WRITTEN: dict[tuple[str, str], tuple[str, str, str, str]] = {}


def written_in(module: str, file: str, name: str) -> tuple[str, str, str, str] | None:
    """Return where a variable's value is written as a constant: module, file, the constant, and its name there."""
    for _ in range(5):
        code = compiled(module, file)
        if code is None:
            return None
        if name in (known := constants_of(code)):
            return module, file, known[name], name
        taken = next((one for one in _taken_from(code) if one[0] == name), None)
        if taken is None:
            return None
        is_package = os.path.basename(file).startswith("__init__.")
        base = absolute(taken[1], taken[2], module if is_package else module.rpartition(".")[0])
        where = locate(base).get(base)
        if where is None or not is_own(where):
            return None
        module, file, name = name_of_file(where), where, taken[3]
    return None


@lru_cache(maxsize=1 << 10)
def constants_of(code: CodeType) -> dict[str, str]:
    """Return the constants that a module's code sets to what is written there, once each."""
    set_by: dict[str, list[Any]] = {}
    for before, step in _pairs(code):
        if step.opname in ("STORE_NAME", "STORE_GLOBAL"):
            set_by.setdefault(step.argval, []).append(before)
    return {
        name: repr(by[0].argval)
        for name, by in set_by.items()
        if len(by) == 1 and by[0].opname == "LOAD_CONST"
    }


def _taken_from(code: CodeType) -> Iterator[tuple[str, str, int, str]]:
    """Yield what a module's code imports: its name here, the module as written, the dots, its name there."""
    module, level, before = "", 0, None
    for one, step in _pairs(code):
        if step.opname == "IMPORT_NAME":
            module, level = (
                step.argval,
                before.argval if before is not None and type(before.argval) is int else 0,
            )
        elif step.opname == "STORE_NAME" and one.opname == "IMPORT_FROM":
            yield step.argval, module, level, one.argval
        before = one


def _pairs(code: CodeType) -> Iterator[tuple[dis.Instruction, dis.Instruction]]:
    steps = [
        step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "NOP", "CACHE")
    ]
    return pairwise(steps)
