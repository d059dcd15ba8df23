"""Compiled code: its hash, without lines, file and docstring, and what it says of the module around it.

The hash is that of the instructions with what they name, in the order of control flow. It differs between minor
versions of Python, which compile differently.
"""

from __future__ import annotations

import dis
import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dis import Instruction
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any

DIGITS = 16
BODY = "<module>"  # what a module's own statements are called among its functions
WITHIN = "[]"  # at the end of a place: something in it
_FLAGS = 0x2AF  # optimized, new locals, *args, **kwargs, and generators and coroutines of all kinds
_IS_FUNCTION = 0x02  # its locals are its own: no class body, and no module
_UNSAID = frozenset({"__doc__", "__firstlineno__", "__static_attributes__"})  # of class bodies and modules
_NO_STEPS = frozenset({"EXTENDED_ARG", "NOP", "CACHE"})
_DOUBLE = {
    f"{one}_FAST_{other}_FAST": (f"{one}_FAST", f"{other}_FAST")
    for one in ("LOAD", "STORE")
    for other in ("LOAD", "STORE")
}
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_ALWAYS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"})
_LAST = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_OTHERWISE = {"POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE"}

_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_POP_ONLY = ("STORE_", "POP_", "DELETE_", "JUMP_", "LIST_", "PRECALL", "KW_NAMES", "RESUME")
# By instruction: how many values it takes, and which of them it changes
_STORES = {
    "STORE_ATTR": (2, 1),
    "DELETE_ATTR": (1, 0),
    "STORE_SUBSCR": (3, 1),
    "DELETE_SUBSCR": (2, 0),
    "STORE_SLICE": (4, 1),
}
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_BINDS = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"})
# Where a value is: of a "global", the "first" argument, another one ("argument x"), or a variable of a function around
# ("free"), then the names that lead to it
_Place = tuple[str, ...]
_Top = list[_Place | None]
# By instruction: of how many values on top it changes the order (0: of as many as it says), and into which
_SHUFFLES: dict[str, tuple[int, Callable[[_Top], _Top]]] = {
    "COPY": (0, lambda top: [*top, top[0]]),
    "DUP_TOP": (1, lambda top: top * 2),
    "DUP_TOP_TWO": (2, lambda top: top * 2),
    "SWAP": (0, lambda top: [top[-1], *top[1:-1], top[0]]),
} | {
    f"ROT_{name}": (depth, lambda top: [top[-1], *top[:-1]])
    for depth, name in {0: "N", 2: "TWO", 3: "THREE", 4: "FOUR"}.items()
}
_CHANGERS = frozenset(  # methods of containers that change them
    {"append", "appendleft", "add", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"}
    | {"reverse", "setdefault", "sort", "update"}
)


@lru_cache(maxsize=1 << 14)
def code_hash(code: CodeType, body: bool = False) -> str:
    """Return the hash of compiled code; of a module's `body` without the functions in it and the program's lines."""
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags & _FLAGS)
    found = hashlib.sha256(repr((counts, code.co_varnames, code.co_freevars, code.co_cellvars)).encode())
    for text in _flow(code, body):
        found.update(f"{text}\n".encode("utf-8", "surrogatepass"))
    return found.hexdigest()[:DIGITS]


@lru_cache(maxsize=1 << 12)
def steps_of(code: CodeType) -> list[Instruction]:
    """Return the instructions that count, those that do two things as two."""
    steps: list[Instruction] = []
    for one in dis.get_instructions(code):
        if one.opname == "STORE_NAME" and one.argval in _UNSAID and not code.co_flags & _IS_FUNCTION:
            steps = steps[:-1]
        elif one.opname in _DOUBLE:
            pairs = zip(_DOUBLE[one.opname], one.argval, strict=True)
            steps += [one._replace(opname=op, argval=name) for op, name in pairs]
        elif one.opname not in _NO_STEPS:
            steps.append(one)
    return steps


def _flow(code: CodeType, body: bool) -> Iterator[str]:
    """Yield the instructions that can run, each with the numbers of those that may follow it.

    The order is that of control flow: where a statement has several lines, a compiler makes jumps over jumps. What
    handles an exception may follow, too; before Python 3.11 entering a `try` is an instruction.
    """
    steps = steps_of(code)
    offsets = [step.offset for step in steps]
    ops = [step.opname.replace("FORWARD_", "").replace("BACKWARD_", "") for step in steps]
    jumps = {at: bisect_left(offsets, step.argval) for at, step in enumerate(steps) if step.opcode in _JUMPS}
    always = {at: to for at, to in jumps.items() if steps[at].opname in _ALWAYS}
    if body:
        always |= {at: jumps[at + 3] for at in range(len(steps)) if _is_main(steps[at : at + 4])}

    def end(at: int) -> int:
        for _ in always:  # no more often: a loop may be empty
            if at not in always:
                break
            at = always[at]
        return at

    caught = {
        at: (end(bisect_left(offsets, one.target)), one.depth)
        for one in getattr(dis.Bytecode(code), "exception_entries", ())
        for at in range(bisect_left(offsets, one.start), bisect_left(offsets, one.end))
    }
    followed: dict[int, list[int]] = {}
    left = [end(0)]
    while left:
        at = left.pop()
        if at in followed or at == len(steps):
            continue
        after = [] if ops[at] in _LAST else [end(at + 1)]
        after += [end(jumps[at])] if at in jumps else []
        if ops[at] in _OTHERWISE:
            after.reverse()
        followed[at] = [*after, *caught.get(at, ())[:1]]
        left += reversed(followed[at])
    numbers = {at: number for number, at in enumerate(followed)}
    for at, after in followed.items():
        value = code.co_consts[steps[at].arg or 0] if ops[at] == "KW_NAMES" else steps[at].argval
        said = "" if at in jumps else _steady(value, body)
        then = [numbers.get(one) for one in after]
        yield f"{_OTHERWISE.get(ops[at], ops[at])} {said} {then} {caught.get(at, ())[1:]}"


def _is_main(steps: list[Instruction]) -> bool:
    """Tell whether instructions skip what runs only where a module is the program."""
    if len(steps) < 4 or not steps[3].opname.endswith("JUMP_IF_FALSE"):
        return False
    name, main, compared = (step.argval for step in steps[:3])
    return name == "__name__" and main == "__main__" and "==" in str(compared)


def _steady(value: Any, body: bool = False) -> str:
    """Return the text of what an instruction names: the same in every process."""
    if isinstance(value, CodeType):
        return value.co_name if body and value.co_flags & _IS_FUNCTION else code_hash(value, body)
    if isinstance(value, (tuple, frozenset)):
        parts = [_steady(one) for one in value]
        return f"{type(value).__name__} {parts if isinstance(value, tuple) else sorted(parts)}"
    return f"{type(value).__name__} {value!r}"


def functions_in(code: CodeType, inside: str = "") -> Iterator[tuple[str, CodeType]]:
    """Yield the functions that code defines, at any depth, each with its qualified name."""
    for one in code.co_consts:
        if isinstance(one, CodeType) and one.co_name.startswith("<generic parameters"):
            yield from functions_in(one, inside)
        elif isinstance(one, CodeType):
            name, is_function = inside + one.co_name, one.co_flags & _IS_FUNCTION
            if is_function:
                yield name, one
            yield from functions_in(one, f"{name}.<locals>." if is_function else f"{name}.")


@dataclass(frozen=True, slots=True)
class Facts:
    """What code says of the world around it, its inner functions included.

    Attributes:
        names: All names and attributes in it.
        texts: All texts in it.
        reads: The names of the module that it reads.
        bare: Those of them that it hands on as they are, so that anything may be done to them.
        changes: Places that it changes and has not made itself; "[]" at the end where they are changed in place.
        imports: What it imports: module as written, dots before it, names from it.
    """

    names: frozenset[str]
    texts: frozenset[str]
    reads: frozenset[str]
    bare: frozenset[str]
    changes: frozenset[_Place]
    imports: tuple[tuple[str, int, tuple[str, ...]], ...]


@lru_cache(maxsize=1 << 14)
def facts_of(code: CodeType) -> Facts:
    """Read what code says of the world around it."""
    codes = list(_all(code))
    constants = [one for each in codes for one in each.co_consts]
    constants += [word for one in constants if type(one) is tuple for word in one]
    reads, bare, imports = set(), set(), []
    for one in codes:
        steps = steps_of(one)
        for at, step in enumerate(steps):
            if step.opname in _GLOBALS:
                reads.add(step.argval)
                is_called = (
                    hasattr(one, "co_exceptiontable") and step.opname == "LOAD_GLOBAL" and (step.arg or 0) & 1
                )
                if not is_called and steps[at + 1].opname not in _ATTRIBUTES:
                    bare.add(step.argval)
            elif step.opname == "IMPORT_NAME":
                level, taken = steps[at - 2].argval, steps[at - 1].argval
                imports.append((step.argval, level if type(level) is int else 0, tuple(taken or ())))
    return Facts(
        frozenset(name for one in codes for name in one.co_names),
        frozenset(word for word in constants if type(word) is str),
        frozenset(reads),
        frozenset(bare),
        frozenset(place for one in codes for place in map(_Stack(one).step, steps_of(one)) if place),
        tuple(imports),
    )


def _all(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _all(one)


@lru_cache(maxsize=1 << 10)
def constants_in(code: CodeType) -> dict[str, str]:
    """Return a hash of each constant that a module's code sets to what is written there, once."""
    set_by: dict[str, list[Instruction]] = {}
    for before, step in pairwise(steps_of(code)):
        if step.opname in ("STORE_NAME", "STORE_GLOBAL"):
            set_by.setdefault(step.argval, []).append(before)
    return {
        name: constant_hash(by[0].argval)
        for name, by in set_by.items()
        if len(by) == 1 and by[0].opname == "LOAD_CONST"
    }


def constant_hash(value: Any) -> str:
    """Return a hash of a plain value: it may be a secret, which no file of a run holds."""
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


class _Stack:
    """Where the values on the stack come from, as far as one reading from top to bottom shows it."""

    def __init__(self, code: CodeType) -> None:
        self._values: list[_Place | None] = []
        self._free = code.co_freevars
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        arguments = code.co_varnames[:count] if code.co_flags & _IS_FUNCTION else ()
        self._known: dict[str, _Place | None] = {name: (f"argument {name}",) for name in arguments}
        self._known |= {name: ("first",) for name in arguments[:1] if code.co_argcount}
        self._known |= {name: ("free", name) for name in self._free}

    def step(self, step: Instruction) -> _Place | None:
        """Follow one instruction; returns what it changes and the code has not made itself."""
        op, name = step.opname, step.argval
        if op in _ATTRIBUTES:
            [owner] = self._take(1)
            self._push(step, owner and (None if owner[-1] == WITHIN else (*owner, name)), 1)
            return owner and (_within(owner) if name in _CHANGERS else None)
        if op in _STORES:
            count, at = _STORES[op]
            owner = self._take(count)[at]
            is_attribute = op.endswith("_ATTR") and owner and owner[-1] != WITHIN
            return owner and ((*owner, name) if is_attribute else _within(owner))
        if op.endswith("_GLOBAL") and op != "LOAD_GLOBAL":
            self._take(op.startswith("STORE"))
            return ("global", name, WITHIN)
        self._follow(step, op, name)
        is_around = op in ("STORE_DEREF", "DELETE_DEREF") and name in self._free
        return ("free", name, WITHIN) if is_around else None

    def _follow(self, step: Instruction, op: str, name: Any) -> None:
        if op in _GLOBALS:
            self._push(step, ("global", name))
        elif op.startswith("LOAD_FAST") or op == "LOAD_DEREF":
            self._values.append(self._known.get(name))
        elif op.startswith("STORE_FAST") or op == "STORE_DEREF":
            [value] = self._take(1)
            self._known[name] = ("free", name) if name in self._free else value
        elif op in _SHUFFLES:
            depth, shuffled = _SHUFFLES[op]
            self._values += shuffled(self._take(depth or step.arg or 1))
        elif op == "BINARY_SUBSCR":
            owner = self._take(2)[0]
            self._values.append(owner and _within(owner))
        else:  # of no interest: by how it changes the stack's depth
            effect = dis.stack_effect(step.opcode, step.arg, jump=False)
            self._take(-effect)
            self._values += [None] * effect
            if self._values and effect <= 0 and not op.startswith(_POP_ONLY):
                self._values[-1] = None

    def _push(self, step: Instruction, place: _Place | None, taken: int = 0) -> None:
        """Push a value, with the empty place below it that a call wants."""
        more = dis.stack_effect(step.opcode, step.arg, jump=False) + taken - 1
        self._values += [*[None] * more, place]

    def _take(self, count: int) -> list[_Place | None]:
        """Take the topmost values; below the first nothing is known."""
        at = len(self._values) - max(0, count)
        values = [*[None] * -at, *self._values[max(0, at) :]]
        del self._values[max(0, at) :]
        return values


def _within(place: _Place) -> _Place:
    return place if place[-1] == WITHIN else (*place, WITHIN)
