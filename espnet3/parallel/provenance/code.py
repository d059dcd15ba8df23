"""Compiled code: its hash, without lines, file and docstring, and what it says of the module around it.

The hash is that of the instructions with what they name, and of what each `try` covers. It differs between minor
versions of Python, which compile differently.
"""

from __future__ import annotations

import dis
import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any, NamedTuple

DIGITS = 16
BODY = "<module>"  # what a module's own statements are called among its functions
_FLAGS = 0x2AF  # optimized, new locals, *args, **kwargs, and generators and coroutines of all kinds
_IS_FUNCTION = 0x02  # its locals are its own: no class body, and no module
_UNSAID = frozenset({"__doc__", "__firstlineno__", "__static_attributes__"})  # of class bodies and modules
_NO_STEPS = frozenset({"EXTENDED_ARG", "NOP", "CACHE"})
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_NAMED = frozenset({*dis.hasconst, *dis.hasname, *dis.haslocal, *dis.hasfree, *dis.hascompare, *_JUMPS})
_DOUBLE = {
    f"{one}_FAST_{other}_FAST": (f"{one}_FAST", f"{other}_FAST")
    for one in ("LOAD", "STORE")
    for other in ("LOAD", "STORE")
}
_ALWAYS = frozenset({"JUMP", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"})
_OTHERWISE = {
    "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE",
    "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE",
    "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
}

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
# Where a value is: of a "global", the "first" argument, another one ("argument x"), or a variable of a function around
# ("free"), then the names that lead to it
_Place = tuple[str, ...]
# By instruction: of how many values on top it changes the order (0: of as many as it says), and into which
_SHUFFLES: dict[str, tuple[int, Callable[[list[_Place | None]], list[_Place | None]]]] = {
    "COPY": (0, lambda top: [*top, top[0]]),
    "DUP_TOP": (1, lambda top: [*top, *top]),
    "DUP_TOP_TWO": (2, lambda top: [*top, *top]),
    "SWAP": (0, lambda top: [top[-1], *top[1:-1], top[0]]),
    "ROT_TWO": (2, lambda top: [top[-1], *top[:-1]]),
    "ROT_THREE": (3, lambda top: [top[-1], *top[:-1]]),
    "ROT_FOUR": (4, lambda top: [top[-1], *top[:-1]]),
    "ROT_N": (0, lambda top: [top[-1], *top[:-1]]),
}
_CHANGERS = frozenset(  # methods of containers that change them
    {"append", "appendleft", "add", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"}
    | {"reverse", "setdefault", "sort", "update"}
)
WITHIN = "[]"  # at the end of a place: something in it


class Step(NamedTuple):
    """One instruction, in the words of any version that compiles alike."""

    op: str
    value: Any
    arg: int | None
    opcode: int
    offset: int


@lru_cache(maxsize=1 << 14)
def code_hash(code: CodeType, body: bool = False) -> str:
    """Return the hash of compiled code; of a module's `body` without the functions in it and the program's lines."""
    found = hashlib.sha256()
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags & _FLAGS)
    found.update(repr((counts, code.co_varnames, code.co_freevars, code.co_cellvars)).encode())
    steps = steps_of(code)
    skipped = _of_main(steps) if body else range(0)
    for at, step in enumerate(steps):
        if at not in skipped:
            found.update(f"{step.op} {_said(code, step, body)}\n".encode("utf-8", "surrogatepass"))
    found.update(repr(_covered(code, [step.offset for step in steps])).encode())
    return found.hexdigest()[:DIGITS]


def _unfolded(code: CodeType) -> list[Step]:
    """Return the instructions that count, those that do two things as two."""
    steps: list[Step] = []
    for one in dis.get_instructions(code):
        step = Step(one.opname, one.argval, one.arg, one.opcode, one.offset)
        if step.op in _NO_STEPS:
            continue
        if not code.co_flags & _IS_FUNCTION and step.op == "STORE_NAME" and step.value in _UNSAID and steps:
            steps.pop()
        elif step.op in _DOUBLE:
            pairs = zip(_DOUBLE[step.op], step.value, strict=True)
            steps += [step._replace(op=op, value=name) for op, name in pairs]
        else:
            steps.append(step)
    return steps


@lru_cache(maxsize=1 << 12)
def steps_of(code: CodeType) -> list[Step]:
    """Return the instructions that count; a jump leads to the number of a step.

    Where a statement has several lines, a compiler makes jumps over jumps: they become one.
    """
    every, steps = _unfolded(code), list[Step]()
    offsets = [step.offset for step in every]

    def end(target: int) -> int:
        for _ in every:
            at = bisect_left(offsets, target)
            if at == len(every) or every[at].op not in _ALWAYS:
                break
            target = every[at].value
        return target

    for at, step in enumerate(every):
        if step.opcode not in _JUMPS:
            steps.append(step)
            continue
        before = steps[-1] if steps else step
        op = "JUMP" if step.op in _ALWAYS else step.op.replace("FORWARD_", "").replace("BACKWARD_", "")
        over = op == "JUMP" and before.op in _OTHERWISE and at + 1 < len(every)
        if over and bisect_left(offsets, before.value) == at + 1:
            steps[-1] = before._replace(op=_OTHERWISE[before.op], value=end(step.value))
        else:
            steps.append(step._replace(op=op, value=end(step.value)))
    offsets = [step.offset for step in steps]
    return [
        step._replace(value=bisect_left(offsets, step.value)) if step.opcode in _JUMPS else step
        for step in steps
    ]


def _of_main(steps: list[Step]) -> range:
    """Return which steps of a module run only where it is the program."""
    for at in range(len(steps) - 3):
        name, main, _, jump = steps[at : at + 4]
        if name.value == "__name__" and main.value == "__main__" and "JUMP_IF_FALSE" in jump.op:
            return range(at, jump.value)
    return range(0)


def _said(code: CodeType, step: Step, body: bool) -> Any:
    if step.op == "KW_NAMES":
        return code.co_consts[step.arg or 0]
    if step.opcode not in _NAMED:
        return step.arg
    if body and isinstance(step.value, CodeType):
        inner = step.value
        return inner.co_name if inner.co_flags & _IS_FUNCTION else code_hash(inner, True)
    return step.value if step.opcode in _JUMPS else _steady(step.value)


def _steady(value: Any) -> str:
    """Return a constant's text: the same in every process."""
    if isinstance(value, CodeType):
        return code_hash(value)
    if isinstance(value, (tuple, frozenset)):
        parts = [_steady(one) for one in value]
        return f"{type(value).__name__} {parts if isinstance(value, tuple) else sorted(parts)}"
    return f"{type(value).__name__} {value!r}"


def _covered(code: CodeType, offsets: list[int]) -> list[list[int]]:
    """Return what each `try` and `with` covers: from which step, to which, what handles it, and how deep in the stack.

    Before Python 3.11 these are steps themselves.
    """
    found: list[list[int]] = []
    for one in getattr(dis.Bytecode(code), "exception_entries", ()):
        begin, end, handler = (bisect_left(offsets, each) for each in (one.start, one.end, one.target))
        if found and found[-1][1:] == [begin, handler, one.depth]:
            found[-1][1] = end
        elif begin != end:
            found.append([begin, end, handler, one.depth])
    return found


def functions_in(code: CodeType, inside: str = "") -> Iterator[tuple[str, CodeType]]:
    """Yield the functions that code defines, at any depth, each with its qualified name."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            name = inside if one.co_name.startswith("<generic parameters") else inside + one.co_name
            is_function = bool(one.co_flags & _IS_FUNCTION) and name != inside
            if is_function:
                yield name, one
            yield from functions_in(
                one, f"{name}.<locals>." if is_function else name if name == inside else f"{name}."
            )


@dataclass(frozen=True, slots=True)
class Facts:
    """What code says of the world around it, its inner functions included.

    Attributes:
        names: All names and attributes in it.
        texts: All texts in it.
        reads: The names of the module that it reads.
        bare: Those of them that it hands on as they are, so that anything may be done to them.
        changes: What it changes that it has not made itself (`changes_in`).
        imports: What it imports: module as written, dots before it, names from it.
    """

    names: frozenset[str]
    texts: frozenset[str]
    reads: frozenset[str]
    bare: frozenset[str]
    changes: frozenset[tuple[str, ...]]
    imports: tuple[tuple[str, int, tuple[str, ...]], ...]


@lru_cache(maxsize=1 << 14)
def facts_of(code: CodeType) -> Facts:
    """Read what code says of the world around it."""
    codes = list(_all(code))
    constants = [
        word for each in codes for one in each.co_consts for word in (one if type(one) is tuple else (one,))
    ]
    reads, bare, imports = set(), set(), []
    changes: set[tuple[str, ...]] = set()
    for one in codes:
        steps = steps_of(one)
        changes.update(changes_in(one, steps))
        for at, step in enumerate(steps):
            if step.op in ("LOAD_GLOBAL", "LOAD_NAME"):
                reads.add(step.value)
                is_called = (
                    step.op == "LOAD_GLOBAL" and hasattr(one, "co_exceptiontable") and (step.arg or 0) & 1
                )
                if not is_called and (at + 1 == len(steps) or steps[at + 1].op not in _ATTRIBUTES):
                    bare.add(step.value)
            elif step.op == "IMPORT_NAME":
                level, taken = steps[at - 2].value, steps[at - 1].value
                imports.append((step.value, level if type(level) is int else 0, tuple(taken or ())))
    return Facts(
        frozenset(name for one in codes for name in one.co_names),
        frozenset(word for word in constants if type(word) is str),
        frozenset(reads),
        frozenset(bare),
        frozenset(changes),
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
    set_by: dict[str, list[Step]] = {}
    for before, step in pairwise(steps_of(code)):
        if step.op in ("STORE_NAME", "STORE_GLOBAL"):
            set_by.setdefault(step.value, []).append(before)
    return {
        name: constant_hash(by[0].value)
        for name, by in set_by.items()
        if len(by) == 1 and by[0].op == "LOAD_CONST"
    }


def constant_hash(value: Any) -> str:
    """Return a hash of a plain value: it may be a secret, which no file of a run holds."""
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


class _Stack:
    """What the values on the stack were reached from, as far as one reading from top to bottom shows it."""

    def __init__(self, code: CodeType) -> None:
        self._values: list[_Place | None] = []
        self._free = code.co_freevars
        n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        arguments = code.co_varnames[:n] if code.co_flags & _IS_FUNCTION else ()
        self._known: dict[str, _Place | None] = {name: (f"argument {name}",) for name in arguments}
        if code.co_argcount:
            self._known[arguments[0]] = ("first",)
        self._known |= {name: ("free", name) for name in code.co_freevars}

    def step(self, step: Step) -> _Place | None:
        """Follow one step; returns what it changes."""
        op, name = step.op, step.value
        if op in ("LOAD_GLOBAL", "LOAD_NAME"):
            self._push(step, ("global", name))
        elif op in _ATTRIBUTES:
            [owner] = self._take(1)
            self._push(step, None if owner is None or owner[-1] == WITHIN else (*owner, name), 1)
            return _within(owner) if name in _CHANGERS else None
        elif op in _STORES:
            count, at = _STORES[op]
            owner = self._take(count)[at]
            is_within = owner is not None and (owner[-1] == WITHIN or not op.endswith("_ATTR"))
            return _within(owner) if is_within or owner is None else (*owner, name)
        elif op.endswith("_GLOBAL") or (op in ("STORE_DEREF", "DELETE_DEREF") and name in self._free):
            self._take(op.startswith("STORE"))
            return ("global" if op.endswith("GLOBAL") else "free", name, WITHIN)
        else:
            self._follow(step)
        return None

    def _follow(self, step: Step) -> None:
        op, stack = step.op, self._values
        if op.startswith("LOAD_FAST") or op == "LOAD_DEREF":
            stack.append(self._known.get(step.value))
        elif op.startswith("STORE_FAST") or op == "STORE_DEREF":
            [self._known[step.value]] = self._take(1)
        elif op in _SHUFFLES:
            depth, shuffled = _SHUFFLES[op]
            stack += shuffled(self._take(depth or step.arg or 1))
        elif op == "BINARY_SUBSCR":
            stack.append(_within(self._take(2)[0]))
        else:  # of no interest: by how it changes the stack's depth
            effect = dis.stack_effect(step.opcode, step.arg, jump=False)
            self._take(-effect)
            stack.extend([None] * effect)
            if stack and effect <= 0 and not op.startswith(_POP_ONLY):
                stack[-1] = None

    def _push(self, step: Step, place: _Place | None, taken: int = 0) -> None:
        """Push a value, with the empty place below it that a call wants."""
        more = dis.stack_effect(step.opcode, step.arg, jump=False) + taken - 1
        self._values += [*[None] * more, place]

    def _take(self, count: int) -> list[_Place | None]:
        """Take the topmost values; below the first nothing is known."""
        at = max(0, len(self._values) - max(0, count))
        values = self._values[at:]
        del self._values[at:]
        return [*[None] * (count - len(values)), *values]


def _within(place: _Place | None) -> _Place | None:
    return place if place is None or place[-1] == WITHIN else (*place, WITHIN)


def changes_in(code: CodeType, steps: list[Step]) -> Iterator[_Place]:
    """Yield the places of what code changes and has not made itself: "[]" at the end where it is changed in place."""
    stack = _Stack(code)
    for step in steps:
        if (place := stack.step(step)) is not None:
            yield place
