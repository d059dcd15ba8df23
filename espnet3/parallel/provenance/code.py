"""Compiled code: its hash, without lines, file and docstring, and the names that it reads, imports and changes.

The hash covers the instructions, the names and constants in them, and the jumps. It differs between minor versions
of Python, which compile differently.
"""

from __future__ import annotations

import dis
import hashlib
import marshal
import re
from bisect import bisect_left
from collections.abc import Iterator
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
_PARTS = re.compile("(LOAD|STORE)_FAST_(LOAD|STORE)_FAST")  # one instruction for two
_MAIN = (["__name__", "__main__", "=="], ["__name__", "__main__", "bool(==)"])
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_LAST = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_OTHERWISE = {"POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE"}

_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_STORES = ("STORE_NAME", "STORE_FAST", "STORE_DEREF", "STORE_GLOBAL")
_KEEP_CODE = ("staticmethod", "classmethod", "property")  # decorators that leave a function's code as it is
# How many keys stand between the owner of a part and the top of the stack
_KEYS = {"BINARY_SUBSCR": 1, "STORE_SUBSCR": 1, "DELETE_SUBSCR": 1, "STORE_SLICE": 2}
# Depths in the stack that Python 3.10 has in names, and not as arguments
_DEPTHS = {"DUP_TOP": 1, "DUP_TOP_TWO": 2, "ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}
_DEEPEST = 8  # a value further down is never the one that a statement changes
_SETTERS = frozenset({*_KEYS, "STORE_ATTR", "DELETE_ATTR"} - {"BINARY_SUBSCR"})
_KINDS = {"STORE_GLOBAL": "global", "DELETE_GLOBAL": "global", "STORE_DEREF": "free", "DELETE_DEREF": "free"}
_CHANGERS = frozenset(  # methods of containers that change them
    {"append", "appendleft", "add", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"}
    | {"reverse", "setdefault", "sort", "update"}
)
# The hashes of this process, by that of the code with lines and file, which is made 50 times as fast: workers begin
# with their driver's
KNOWN: dict[bytes, str] = {}
# The place of a value: a root, which is "global", the "first" argument, another one ("argument x") or "free" (a
# variable of the function around), then the names that lead to the value
_Place = tuple[str, ...]


def code_hash(code: CodeType, body: bool = False) -> str:
    """Return the hash of compiled code; of a module's `body` without its functions and its lines for the program."""
    try:
        as_it_is = hashlib.sha256(marshal.dumps(code, 2)).digest() + bytes([body])  # 2: no references
    except ValueError:  # of a constant that no compiler makes
        return _hash(code, body)
    return KNOWN.get(as_it_is) or KNOWN.setdefault(as_it_is, _hash(code, body))


def _hash(code: CodeType, body: bool) -> str:
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags & _FLAGS)
    found = hashlib.sha256(repr((counts, code.co_varnames, code.co_freevars, code.co_cellvars)).encode())
    found.update("\n".join(_flow(code, body)).encode("utf-8", "surrogatepass"))
    return found.hexdigest()[:DIGITS]


@lru_cache(maxsize=1 << 12)
def steps_of(code: CodeType) -> list[Instruction]:
    """Return the instructions that count; split those that do two things."""
    steps: list[Instruction] = []
    for one in dis.get_instructions(code):
        if one.opname == "STORE_NAME" and one.argval in _UNSAID and not code.co_flags & _IS_FUNCTION:
            steps = steps[:-1]
        elif parts := _PARTS.fullmatch(one.opname):
            pairs = zip(parts.groups(), one.argval, strict=True)
            steps += [one._replace(opname=f"{part}_FAST", argval=name) for part, name in pairs]
        elif one.opname not in _NO_STEPS:
            steps.append(one)
    return steps


def _flow(code: CodeType, body: bool) -> Iterator[str]:
    steps = steps_of(code)
    offsets = [step.offset for step in steps]
    ops = [step.opname.replace("FORWARD_", "").replace("BACKWARD_", "") for step in steps]
    jumps = {at: bisect_left(offsets, step.argval) for at, step in enumerate(steps) if step.opcode in _JUMPS}
    always = {at: to for at, to in jumps.items() if ops[at].startswith("JUMP_") and "_IF_" not in ops[at]}
    for at, to in jumps.items() if body else ():
        said = [str(step.argval) for step in steps[max(at - 3, 0) : at]]
        if said in _MAIN and ops[at].endswith(
            "JUMP_IF_FALSE"
        ):  # what runs only where a module is the program
            always |= dict.fromkeys(range(at - 3, to), to)

    def end(at: int) -> int:
        for _ in always:  # no more often: a loop may be empty
            if at not in always:
                break
            at = always[at]
        return at

    table = getattr(code, "co_exceptiontable", b"")  # it takes a while to read it
    caught = {
        at: (bisect_left(offsets, one.target), one.depth)
        for one in (getattr(dis.Bytecode(code), "exception_entries", ()) if table else ())
        for at in range(bisect_left(offsets, one.start), bisect_left(offsets, one.end))
    }
    numbers = {at: number for number, at in enumerate(at for at in range(len(steps)) if at not in always)}
    for at, number in numbers.items():
        value = code.co_consts[steps[at].arg or 0] if ops[at] == "KW_NAMES" else steps[at].argval
        yield f"{_OTHERWISE.get(ops[at], ops[at])} {'' if at in jumps else _steady(value, body)}"
        after = [*([] if ops[at] in _LAST else [at + 1]), *([jumps[at]] if at in jumps else [])]
        after = [*(after[::-1] if ops[at] in _OTHERWISE else after), *caught.get(at, ())[:1]]
        then = [numbers.get(end(one)) for one in after]
        if then != [number + 1]:
            yield f"{then} {caught.get(at, ())[1:]}"


def _steady(value: Any, body: bool = False) -> str:
    if type(value) in (str, int):
        return f"{value!r}"
    if isinstance(value, CodeType):
        return value.co_name if body and value.co_flags & _IS_FUNCTION else code_hash(value, body)
    if isinstance(value, (tuple, frozenset)):
        parts = [_steady(one) for one in value]
        return f"{type(value).__name__} {parts if isinstance(value, tuple) else sorted(parts)}"
    return f"{type(value).__name__} {value!r}"


@lru_cache(maxsize=1 << 11)
def functions_in(code: CodeType, inside: str = "", given: bool = False) -> list[tuple[str, CodeType, bool]]:
    """Return the functions that code defines: qualified name, code, and whether a decorator is given them."""
    found, parts = [], [one for one in code.co_consts if isinstance(one, CodeType)]
    decorated = _decorated(code) if parts and not given else set()
    for one in parts:
        if one.co_name.startswith("<generic parameters"):
            found += functions_in(one, inside, given)
            continue
        name, is_function = inside + one.co_name, one.co_flags & _IS_FUNCTION
        is_given = given or one.co_name in decorated
        found += [(name, one, is_given)] if is_function else []
        found += functions_in(one, f"{name}.<locals>." if is_function else f"{name}.", is_given)
    return found


def _decorated(code: CodeType) -> set[str]:
    found, begin, made, is_class = set(), 0, 0, False
    steps = [step for step in steps_of(code) if step.opname != "PRECALL"]
    for at, step in enumerate(steps):
        if step.opname in _STORES:
            calls = at - made - 1
            if calls > is_class and not (calls == 1 and steps[begin].argval in _KEEP_CODE):
                found.add(step.argval)
            begin, made, is_class = at + 1, at, False
        elif not step.opname.startswith("CALL"):
            made, is_class = at, is_class or step.opname == "LOAD_BUILD_CLASS"
    return found


@lru_cache(maxsize=1 << 11)
def hashes_in(code: CodeType) -> dict[str, set[str]]:
    """Return the hashes of a module's own statements and of its functions, by name."""
    found = {BODY: {code_hash(code, True)}}
    for name, function, _ in functions_in(code, given=True):  # which need not be found out
        found.setdefault(name, set()).add(code_hash(function))
    return found


class Facts:
    """Names that code and its inner functions use of the world around them.

    Attributes:
        names: All names and attributes in it.
        texts: All texts in it.
        reads: The names of the module that it reads.
        bare: Those of them that it hands on as they are, so that other code may change them.
        changes: Places that it changes and has not made itself; "[]" at the end means changed in place.
        imports: Its imports: module as written, dots before it, names from it.
    """

    def __init__(self, code: CodeType) -> None:
        codes = list(_all(code))
        constants = [one for each in codes for one in each.co_consts]
        constants += [word for one in constants if type(one) is tuple for word in one]
        self.names = frozenset(name for one in codes for name in one.co_names)
        self.texts = frozenset(word for word in constants if type(word) is str)
        self.changes = {place for one in codes for place in _changes(one) if place}
        self.reads: set[str] = set()
        self.bare: set[str] = set()
        self.imports: list[tuple[str, int, tuple[str, ...]]] = []
        for one in codes:
            self._read(steps_of(one), hasattr(one, "co_exceptiontable"))

    def _read(self, steps: list[Instruction], says_calls: bool) -> None:
        for at, step in enumerate(steps):
            if step.opname in _GLOBALS:
                self.reads.add(step.argval)
                is_called = says_calls and step.opname == "LOAD_GLOBAL" and (step.arg or 0) & 1
                if not is_called and steps[at + 1].opname not in _ATTRIBUTES:
                    self.bare.add(step.argval)
            elif step.opname == "IMPORT_NAME":
                level, taken = steps[at - 2].argval, steps[at - 1].argval
                self.imports.append((step.argval, level if type(level) is int else 0, tuple(taken or ())))


def _changes(code: CodeType) -> Iterator[_Place | None]:
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    arguments = code.co_varnames[:count] if code.co_flags & _IS_FUNCTION else ()
    known: dict[str, _Place | None] = {name: (f"argument {name}",) for name in arguments}
    known |= {name: ("first",) for name in arguments[:1] if code.co_argcount}
    known |= {name: ("free", name) for name in code.co_freevars}
    stack: list[_Place | None] = []  # where the values come from; None: from nowhere that is known
    for step in steps_of(code):
        stack[:0] = [None] * (_DEEPEST - len(stack) + 1)
        op, name, owner = step.opname, step.argval, stack[-1 - _KEYS.get(step.opname, 0)]
        place: _Place | None = None
        if op in _GLOBALS:
            place = ("global", name)
        elif op.startswith("LOAD_FAST") or op == "LOAD_DEREF":
            place = known.get(name)
        elif op.startswith("STORE_FAST") or (op == "STORE_DEREF" and name not in code.co_freevars):
            known[name] = owner
        elif op in _KINDS:
            yield (_KINDS[op], name, WITHIN)
        elif op in _KEYS or op.endswith("_ATTR") or op in _ATTRIBUTES:
            place = _part(owner, WITHIN if op in _KEYS else name)
            is_changed = op in _ATTRIBUTES and name in _CHANGERS
            yield place if op in _SETTERS else _part(owner, WITHIN) if is_changed else None
        _turn(stack, step, place)


def _part(owner: _Place | None, name: str) -> _Place | None:
    return owner if owner is None or owner[-1] == WITHIN else (*owner, name)


def _turn(stack: list[_Place | None], step: Instruction, place: _Place | None) -> None:
    op, depth = step.opname, _DEPTHS.get(step.opname, step.arg or 0)
    effect = dis.stack_effect(dis.opmap[op], step.arg, jump=False)
    effect += op == "END_FOR"  # it also takes the value that the end of a loop would have left
    if op == "SWAP" and depth <= _DEEPEST:
        stack[-depth], stack[-1] = stack[-1], stack[-depth]
    elif op.startswith("ROT_") and depth <= _DEEPEST:
        stack.insert(1 - depth, stack.pop())
    elif op.startswith("DUP_") or (op == "COPY" and depth <= _DEEPEST):
        stack += stack[-depth : len(stack) - depth + effect]
    elif effect > 0 and not op.startswith("UNPACK_"):
        stack += [*[None] * (effect - 1), place]
    elif op.startswith(("STORE_", "DELETE_", "POP_")):
        del stack[len(stack) + effect :]
    else:
        del stack[len(stack) - 1 + min(effect, 0) :]
        stack += [*[None] * max(effect, 0), place]


facts_of = lru_cache(maxsize=1 << 14)(Facts)


def _all(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _all(one)


@lru_cache(maxsize=1 << 10)
def constants_in(code: CodeType) -> dict[str, str]:
    """Return a hash of each constant that a module's code sets once, to a literal."""
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
    """Return a hash of a plain value, since it may be a secret."""
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
