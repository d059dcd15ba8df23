"""Compiled code: its hash, the names of the module that it reads, and those whose values it changes."""

from __future__ import annotations

import dis
import hashlib
from types import CodeType
from typing import Any

from espnet3.parallel.provenance.text.names import CHANGERS, SEES_ALL

_STORES = {
    "STORE_SUBSCR": 2,
    "DELETE_SUBSCR": 2,
    "STORE_ATTR": 1,
    "DELETE_ATTR": 1,
}  # depth of what they change


def code_hash(code: CodeType) -> str:
    """Return the hash of compiled code, without its docstring, its file and its lines."""
    found = hashlib.sha256()
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags & 0x2F)
    found.update(repr((counts, code.co_varnames, code.co_freevars, code.co_cellvars)).encode())
    for step in dis.get_instructions(code):  # by value: a docstring moves the numbers of all other constants
        if step.opname == "EXTENDED_ARG":
            continue
        value = code_hash(step.argval) if isinstance(step.argval, CodeType) else _steady(step.argval)
        found.update(f"{step.opname} {value}\n".encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def _steady(value: Any) -> str:
    if isinstance(value, frozenset):  # its order depends on the process
        value = sorted(map(repr, value))
    return f"{type(value).__name__} {value!r}"


def global_names(code: CodeType) -> set[str]:
    """Return the names of the module that compiled code reads, its inner functions' included."""
    found = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= global_names(constant)
    return found


def sees_all(code: CodeType) -> bool:
    """Tell whether compiled code may use any name of its module: by `globals()`, `eval`, a class's subclasses."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return bool(SEES_ALL & {*code.co_names}) or any(sees_all(one) for one in inner)


def changed_globals(code: CodeType) -> set[str]:
    """Return the names of the module that compiled code binds, or whose values it changes in place."""
    steps = list(dis.get_instructions(code))
    depths: list[int] = []
    depth = 0  # of the stack after each step, as far as jumps leave it alone
    found = set()
    for at, step in enumerate(steps):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            found.add(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval in CHANGERS and at:
            found |= _global_at(steps, at - 1)
        elif step.opname in _STORES:
            level = depth - _STORES[step.opname] + 1  # of the stack, once that was pushed
            pushed = (k for k in range(at - 1, -1, -1) if depths[k] == level)
            found |= _global_at(steps, next(pushed, -1))
        depth += dis.stack_effect(step.opcode, step.arg, jump=False)
        depths.append(depth)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= changed_globals(constant)
    return found


def _global_at(steps: list[dis.Instruction], at: int) -> set[str]:
    """Return the name of the module that a step has pushed, or that its value was reached from (`a.b`)."""
    while at >= 0 and steps[at].opname == "LOAD_ATTR":
        at -= 1
    return {steps[at].argval} if at >= 0 and steps[at].opname in ("LOAD_GLOBAL", "LOAD_NAME") else set()
