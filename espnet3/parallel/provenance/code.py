"""Compiled code: its hash, without lines, file and docstring, and what it says of the module around it.

The hash is that of the instructions with what they name, in the order of control flow. It differs between minor
versions of Python, which compile differently.
"""

from __future__ import annotations

import dis
import hashlib
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
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_COPIES = frozenset({"COPY", "DUP_TOP", "DUP_TOP_TWO"})  # `a.b += 1` copies what is reached, then reads it
_BACK = ("SWAP", "ROT_")  # and what it is set on is below the new value
_ITEMS = {
    "BINARY_SUBSCR": 1,
    "STORE_SUBSCR": 1,
    "DELETE_SUBSCR": 1,
    "BINARY_SLICE": 2,
    "STORE_SLICE": 2,
}  # with keys
_STORES = ("STORE_NAME", "STORE_FAST", "STORE_DEREF", "STORE_GLOBAL")
_KEEP_CODE = ("staticmethod", "classmethod", "property")  # decorators that leave a function's code as it is
_CHANGERS = frozenset(  # methods of containers that change them
    {"append", "appendleft", "add", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"}
    | {"reverse", "setdefault", "sort", "update"}
)
# Where a value is: of a "global", the "first" argument, another one ("argument x"), or a variable of a function around
# ("free"), then the names that lead to it
_Place = tuple[str, ...]


@lru_cache(maxsize=1 << 14)
def code_hash(code: CodeType, body: bool = False) -> str:
    """Return the hash of compiled code; of a module's `body` without the functions in it and the program's lines."""
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags & _FLAGS)
    found = hashlib.sha256(repr((counts, code.co_varnames, code.co_freevars, code.co_cellvars)).encode())
    found.update("\n".join(_flow(code, body)).encode("utf-8", "surrogatepass"))
    return found.hexdigest()[:DIGITS]


@lru_cache(maxsize=1 << 12)
def steps_of(code: CodeType) -> list[Instruction]:
    """Return the instructions that count, those that do two things as two, and without a need to swap values."""
    steps: list[Instruction] = []
    for one in dis.get_instructions(code):
        if one.opname == "STORE_NAME" and one.argval in _UNSAID and not code.co_flags & _IS_FUNCTION:
            steps = steps[:-1]
        elif one.opname in _DOUBLE:
            pairs = zip(_DOUBLE[one.opname], one.argval, strict=True)
            steps += [one._replace(opname=op, argval=name) for op, name in pairs]
        elif one.opname not in _NO_STEPS:
            steps.append(one)
    for at in [at for at, step in enumerate(steps) if step.opname == "SWAP"][::-1]:
        then = steps[at + 1 : at + 1 + (steps[at].arg or 0)]
        if len(then) == steps[at].arg and _may_swap(then):
            steps[at + 1] = then[-1]._replace(offset=then[0].offset)
            steps[at + len(then)] = then[0]._replace(offset=then[-1].offset)
            del steps[at]
    return steps


def _may_swap(steps: list[Instruction]) -> bool:
    """Tell whether instructions may change places: on one line a compiler does that, and leaves out a `SWAP`."""
    names = [step.argval for step in steps if step.opname == "STORE_FAST"]
    return len({*names}) == len(names) and all(step.opname in ("STORE_FAST", "POP_TOP") for step in steps)


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

    table = getattr(code, "co_exceptiontable", b"")  # it takes a while to read it
    caught = {
        at: (end(bisect_left(offsets, one.target)), one.depth)
        for one in (getattr(dis.Bytecode(code), "exception_entries", ()) if table else ())
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
    for at, number in numbers.items():
        value = code.co_consts[steps[at].arg or 0] if ops[at] == "KW_NAMES" else steps[at].argval
        said = "" if at in jumps else _steady(value, body)
        yield f"{_OTHERWISE.get(ops[at], ops[at])} {said}"
        then = [numbers.get(one) for one in followed[at]]
        if then != [number + 1]:
            yield f"{then} {caught.get(at, ())[1:]}"


def _is_main(steps: list[Instruction]) -> bool:
    """Tell whether instructions skip what runs only where a module is the program."""
    if len(steps) < 4 or not steps[3].opname.endswith("JUMP_IF_FALSE"):
        return False
    name, main, compared = (step.argval for step in steps[:3])
    return name == "__name__" and main == "__main__" and "==" in str(compared)


def _steady(value: Any, body: bool = False) -> str:
    """Return the text of what an instruction names: the same in every process."""
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
    """Return the names of functions and classes that code hands to a decorator, which may compile them anew."""
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


def hashes_in(code: CodeType) -> dict[str, set[str]]:
    """Return the hashes of a module's own statements and of the functions that it defines, by their names."""
    found = {BODY: {code_hash(code, True)}}
    for name, function, _ in functions_in(code):
        found.setdefault(name, set()).add(code_hash(function))
    return found


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

    def __init__(self, code: CodeType) -> None:
        codes = list(_all(code))
        constants = [one for each in codes for one in each.co_consts]
        constants += [word for one in constants if type(one) is tuple for word in one]
        self.names = frozenset(name for one in codes for name in one.co_names)
        self.texts = frozenset(word for word in constants if type(word) is str)
        self.changes = {place for one in codes for place in _Reading(one).changes()}
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


facts_of = lru_cache(maxsize=1 << 14)(Facts)


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


class _Reading:
    """Code that is read from top to bottom: where its values come from, as far as the instructions before them say."""

    def __init__(self, code: CodeType) -> None:
        self._steps = steps_of(code)
        self._free = code.co_freevars
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        arguments = code.co_varnames[:count] if code.co_flags & _IS_FUNCTION else ()
        self._known: dict[str, _Place | None] = {name: (f"argument {name}",) for name in arguments}
        self._known |= {name: ("first",) for name in arguments[:1] if code.co_argcount}
        self._known |= {name: ("free", name) for name in self._free}

    def changes(self) -> Iterator[_Place]:
        """Yield the places of what the code changes and has not made itself."""
        for at, step in enumerate(self._steps):
            op, name = step.opname, step.argval
            if op.startswith("STORE_FAST") or (op == "STORE_DEREF" and name not in self._free):
                self._known[name] = self._place(at - 1)
            elif op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                yield ("global", name, WITHIN)
            elif op in ("STORE_DEREF", "DELETE_DEREF") and name in self._free:
                yield ("free", name, WITHIN)
            elif place := self._changed(at):
                yield place

    def _changed(self, at: int) -> _Place | None:
        op, name, before = (self._steps[at].opname, self._steps[at].argval, self._steps[at - 1].opname)
        is_set = op.startswith(("STORE_", "DELETE_")) or before in _COPIES
        if op in _ITEMS and is_set and not before.startswith(_BACK):
            return _within(self._owner(at))
        if op.endswith("_ATTR") and is_set:
            owner = self._owner(at)
            return _within(owner) if owner and owner[-1] == WITHIN else owner and (*owner, name)
        return _within(self._owner(at)) if op in _ATTRIBUTES and name in _CHANGERS else None

    def _place(self, at: int) -> _Place | None:
        """Return where the value comes from that an instruction leaves on top."""
        op, name = self._steps[at].opname, self._steps[at].argval
        if op in _GLOBALS:
            return ("global", name)
        if op.startswith("LOAD_FAST") or op == "LOAD_DEREF":
            return self._known.get(name)
        if op in _COPIES:
            return self._place(at - 1)
        if op == "BINARY_SUBSCR":
            return _within(self._owner(at))
        owner = self._owner(at) if op in _ATTRIBUTES else None
        return None if owner is None or owner[-1] == WITHIN else (*owner, name)

    def _owner(self, at: int) -> _Place | None:
        """Return where the value comes from of which an instruction takes or sets a part."""
        keys = _ITEMS.get(self._steps[at].opname, 0)
        while self._steps[at - 1].opname in _COPIES:
            at -= 1
        for _ in range(keys):  # each is what has one value more than before
            depth = 0
            while at and depth < 1:
                at -= 1
                depth += _effect(self._steps[at])
        return self._place(at - 1)


def _effect(step: Instruction) -> int:
    if step.opname in ("LOAD_FAST", "STORE_FAST"):  # it may be one half of an instruction
        return 1 if step.opname == "LOAD_FAST" else -1
    return dis.stack_effect(step.opcode, step.arg, jump=False)


def _within(place: _Place | None) -> _Place | None:
    return place if place is None or place[-1] == WITHIN else (*place, WITHIN)
