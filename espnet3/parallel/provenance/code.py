"""Compiled code: its hash, without lines, file and docstring, and what it says of the module around it.

The hash is that of the instructions with what they name, and of what each `try` covers. It differs between minor
versions of Python, which compile differently.
"""

from __future__ import annotations

import dis
import hashlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

DIGITS = 16
BODY = "<module>"  # what a module's own statements are called among its functions
_FLAGS = 0x2AF  # optimized, new locals, *args, **kwargs, and generators and coroutines of all kinds
_IS_FUNCTION = 0x02  # its locals are its own: no class body, and no module
_UNSAID = frozenset({"__doc__", "__firstlineno__", "__static_attributes__"})  # of class bodies and modules
_NO_STEPS = frozenset({"EXTENDED_ARG", "NOP", "CACHE"})
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_NAMED = frozenset({*dis.hasconst, *dis.hasname, *dis.haslocal, *dis.hasfree, *dis.hascompare})
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
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_POP_ONLY = ("STORE_", "POP_", "DELETE_", "JUMP_", "LIST_", "PRECALL", "KW_NAMES", "RESUME")
# By instruction: how many values lie on the object that it changes, and whether what is set lies below
_STORES = {
    "STORE_ATTR": (0, True),
    "DELETE_ATTR": (0, False),
    "STORE_SUBSCR": (1, True),
    "DELETE_SUBSCR": (1, False),
    "STORE_SLICE": (2, True),
}
_CHANGERS = frozenset(  # methods of containers that change them
    {"append", "appendleft", "add", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"}
    | {"reverse", "setdefault", "sort", "update"}
)
IMPORTERS = frozenset(
    {"import_module", "__import__", "get_class", "get_method", "get_object", "get_static_method"}
    | {"instantiate", "modules", "spec_from_file_location", "run_path", "run_module", "SourceFileLoader"}
)
_SEES_ALL = frozenset({"globals", "eval", "exec", "__subclasses__", "modules"})


class _Step(NamedTuple):
    """One instruction, in the words of any version that compiles alike."""

    op: str
    value: Any
    arg: int | None
    opcode: int
    offset: int


@lru_cache(maxsize=1 << 14)
def code_hash(code: CodeType, body: bool = False) -> str:
    """Return the hash of compiled code."""
    found = hashlib.sha256()
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags & _FLAGS)
    found.update(repr((counts, code.co_varnames, code.co_freevars, code.co_cellvars)).encode())
    steps = _canonical(_steps(code))
    offsets = [step.offset for step in steps]
    skipped = _of_main(steps, offsets) if body else range(0)
    for at, step in enumerate(steps):
        if at not in skipped:
            found.update(f"{step.op} {_said(code, step, offsets, body)}\n".encode("utf-8", "surrogatepass"))
    found.update(repr(_covered(code, offsets)).encode())
    return found.hexdigest()[:DIGITS]


@lru_cache(maxsize=1 << 12)
def _steps(code: CodeType) -> list[_Step]:
    """Return the instructions that count, those that do two things as two."""
    steps: list[_Step] = []
    for one in dis.get_instructions(code):
        step = _Step(one.opname, one.argval, one.arg, one.opcode, one.offset)
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


def _canonical(steps: list[_Step]) -> list[_Step]:
    """Return steps without the jumps over jumps that a compiler makes where a statement has several lines."""
    offsets = [step.offset for step in steps]

    def end(target: int) -> int:
        for _ in steps:
            at = bisect_left(offsets, target)
            if at == len(steps) or steps[at].op not in _ALWAYS:
                break
            target = steps[at].value
        return target

    found: list[_Step] = []
    for at, one in enumerate(steps):
        step = one
        if one.opcode in _JUMPS:
            before = found[-1] if found else one
            op = "JUMP" if one.op in _ALWAYS else one.op.replace("FORWARD_", "").replace("BACKWARD_", "")
            step = one._replace(op=op, value=end(one.value))
            over = op == "JUMP" and before.op in _OTHERWISE and at + 1 < len(steps)
            if over and bisect_left(offsets, before.value) == at + 1:
                found[-1] = before._replace(op=_OTHERWISE[before.op], value=step.value)
                continue
        found.append(step)
    return found


def _of_main(steps: list[_Step], offsets: list[int]) -> range:
    """Return which steps of a module run only where it is the program."""
    for at in range(len(steps) - 3):
        name, main, _, jump = steps[at : at + 4]
        if name.value == "__name__" and main.value == "__main__" and "JUMP_IF_FALSE" in jump.op:
            return range(at, bisect_left(offsets, jump.value))
    return range(0)


def _said(code: CodeType, step: _Step, offsets: list[int], body: bool) -> Any:
    if step.opcode in _JUMPS:
        return bisect_left(offsets, step.value)
    if step.op == "KW_NAMES":
        return code.co_consts[step.arg or 0]
    if step.opcode not in _NAMED:
        return step.arg
    if body and isinstance(step.value, CodeType):
        inner = step.value
        return inner.co_name if inner.co_flags & _IS_FUNCTION else code_hash(inner, True)
    return _steady(step.value)


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
    table = iter(getattr(code, "co_exceptiontable", b""))

    def number(byte: int) -> int:
        value = byte & 63
        while byte & 64:
            byte = next(table)
            value = value << 6 | byte & 63
        return value

    found: list[list[int]] = []
    for first in table:
        start, size, target, depth = number(first), *(number(next(table)) for _ in range(3))
        begin, end, handler = (bisect_left(offsets, each * 2) for each in (start, start + size, target))
        if found and found[-1][1:] == [begin, handler, depth]:
            found[-1][1] = end
        elif begin != end:
            found.append([begin, end, handler, depth])
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
class Change:
    """A change that code makes to what it has not made itself.

    Attributes:
        root: The name that leads to it: of the module ("global"), of an argument ("argument", the first one: "self"),
            or of the function around ("free").
        kind: Which of these.
        path: The attributes from there.
        attribute: What is set on it; None: it is a container, and is changed in place.
    """

    kind: str
    root: str
    path: tuple[str, ...]
    attribute: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What code says of the world around it, its inner functions included.

    Attributes:
        names: All names and attributes in it.
        texts: All texts in it.
        reads: The names of the module that it reads.
        bare: Those of them that it hands on as they are, so that nobody can say what is done to them.
        changes: What it changes.
        imports: What it imports: module as written, dots before it, names from it.
        sees_all: It may use any name of its module.
        imports_by_name: It imports by a text.
        sets_any: It sets attributes by a text.
    """

    names: frozenset[str]
    texts: frozenset[str]
    reads: frozenset[str]
    bare: frozenset[str]
    changes: frozenset[Change]
    imports: tuple[tuple[str, int, tuple[str, ...]], ...]
    sees_all: bool
    imports_by_name: bool
    sets_any: bool


@lru_cache(maxsize=1 << 14)
def facts_of(code: CodeType) -> Facts:
    """Read what code says of the world around it."""
    codes = list(_all(code))
    names = frozenset(name for one in codes for name in one.co_names)
    constants = [one for each in codes for one in each.co_consts]
    texts = [
        word for one in constants for word in (one if isinstance(one, tuple) else (one,)) if type(word) is str
    ]
    reads, bare, changes, imports = set(), set(), set(), []
    for one in codes:
        steps = _steps(one)
        found = _Stack(one)
        for at, step in enumerate(steps):
            if step.op in _GLOBALS:
                reads.add(step.value)
                follows = steps[at + 1].op if at + 1 < len(steps) else ""
                is_called = (
                    step.op == "LOAD_GLOBAL" and hasattr(one, "co_exceptiontable") and (step.arg or 0) & 1
                )
                if follows not in _ATTRIBUTES and not is_called:
                    bare.add(step.value)
            elif step.op == "IMPORT_NAME":
                level, taken = steps[at - 2].value, steps[at - 1].value
                imports.append((step.value, level if type(level) is int else 0, tuple(taken or ())))
            for change in found.step(step):
                changes.add(change)
    return Facts(
        names,
        frozenset(texts),
        frozenset(reads),
        frozenset(bare),
        frozenset(changes),
        tuple(imports),
        bool(_SEES_ALL & names),
        bool(IMPORTERS & names),
        not names.isdisjoint(("setattr", "delattr")),
    )


def _all(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _all(one)


_Place = tuple[
    str, str, tuple[str, ...], bool
]  # kind, root, path, and whether it is an item of what is there


class _Stack:
    """What the values on the stack were reached from, as far as one reading from top to bottom shows it."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._stack: list[_Place | None] = []
        n = code.co_argcount + code.co_kwonlyargcount
        n += bool(code.co_flags & 4) + bool(code.co_flags & 8)
        own = list(code.co_varnames[:n]) if code.co_flags & _IS_FUNCTION else []
        self._locals: dict[str, _Place | None] = {name: ("argument", name, (), False) for name in own}
        if own and code.co_argcount:
            self._locals[own[0]] = ("self", own[0], (), False)

    def step(self, step: _Step) -> Iterator[Change]:
        """Follow one step; yields what it changes."""
        op, name = step.op, step.value
        if op in _GLOBALS:
            self._push(step, ("global", name, (), False))
        elif op in _ATTRIBUTES:
            top = self._pop()
            if top is not None and name in _CHANGERS:
                yield _changed(top)
            self._push(step, None if top is None or top[3] else (top[0], top[1], (*top[2], name), False), 1)
        elif op in _STORES:
            keys, value = _STORES[op]
            self._stack[len(self._stack) - min(keys, len(self._stack)) :] = []
            if (top := self._pop()) is not None:
                is_item = top[3] or not op.endswith("_ATTR")
                yield _changed(top) if is_item else Change(top[0], top[1], top[2], name)
            if value:
                self._pop()
        elif op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield Change("global", name, (), None)
            self._other(step)
        elif op in ("STORE_DEREF", "DELETE_DEREF") and name in self._code.co_freevars:
            yield Change("free", name, (), None)
            self._other(step)
        else:
            self._plain(step)

    def _plain(self, step: _Step) -> None:
        op, name, stack = step.op, step.value, self._stack
        if op.startswith(("LOAD_FAST", "STORE_FAST")):
            self._local(op[:5], name)
        elif op in ("LOAD_DEREF", "LOAD_CLASSDEREF") and name in self._code.co_freevars:
            stack.append(("free", name, (), False))
        elif op == "LOAD_DEREF":
            stack.append(self._locals.get(name))
        elif op == "STORE_DEREF":
            self._locals[name] = self._pop()
        elif op in ("COPY", "DUP_TOP", "DUP_TOP_TWO"):
            n = step.arg or 1 if op == "COPY" else 2 if op == "DUP_TOP_TWO" else 1
            self._need(n)
            stack.extend(stack[-2:] if op == "DUP_TOP_TWO" else [stack[-n]])
        elif op == "BINARY_SUBSCR":
            self._pop()
            top = self._pop()
            stack.append(None if top is None else (*top[:3], True))
        elif op == "SWAP":
            n = step.arg or 1
            self._need(n)
            stack[-1], stack[-n] = stack[-n], stack[-1]
        elif op.startswith("ROT_"):
            n = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}.get(op, step.arg or 1)
            self._need(n)
            stack.insert(len(stack) - n, self._pop())
        else:
            self._other(step)

    def _local(self, what: str, name: str) -> None:
        if what == "STORE":
            self._locals[name] = self._pop()
        else:
            self._stack.append(self._locals.get(name))

    def _other(self, step: _Step) -> None:
        """Follow a step that is of no interest by how it changes the stack's depth."""
        effect = dis.stack_effect(step.opcode, step.arg, jump=False)
        for _ in range(-effect):
            self._pop()
        self._stack.extend([None] * effect)
        if self._stack and effect <= 0 and not step.op.startswith(_POP_ONLY):
            self._stack[-1] = None

    def _push(self, step: _Step, value: _Place | None, popped: int = 0) -> None:
        """Push a value, with the empty place below it that a call wants."""
        more = dis.stack_effect(step.opcode, step.arg, jump=False) + popped - 1
        self._stack.extend([None] * more)
        self._stack.append(value)

    def _need(self, n: int) -> None:
        while len(self._stack) < n:
            self._stack.insert(0, None)

    def _pop(self) -> _Place | None:
        return self._stack.pop() if self._stack else None


def _changed(place: _Place) -> Change:
    return Change(place[0], place[1], place[2], None)
