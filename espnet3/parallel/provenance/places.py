"""What code changes that it has not made itself, as one reading of its instructions shows it."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from espnet3.parallel.provenance.code import Step

ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
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
WITHIN = "[]"  # at the end of a place: something in it

# Where a value is: of a "global", the "first" argument, another "argument", or a variable of a function around
# ("free"), then the names that lead to it
_Place = tuple[str, ...]


class _Stack:
    """What the values on the stack were reached from, as far as one reading from top to bottom shows it."""

    def __init__(self, code: CodeType) -> None:
        self._free = code.co_freevars
        self._stack: list[_Place | None] = []
        n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        own = code.co_varnames[:n] if code.co_flags & 2 else ()
        self._locals: dict[str, _Place | None] = dict.fromkeys(own, ("argument",))
        if code.co_argcount:
            self._locals[own[0]] = ("first",)

    def step(self, step: Step) -> _Place | None:
        """Follow one step; returns what it changes."""
        op, name = step.op, step.value
        if op in ("LOAD_GLOBAL", "LOAD_NAME"):
            self._push(step, ("global", name))
        elif op in ATTRIBUTES:
            top = self._pop()
            self._push(step, None if top is None or top[-1] == WITHIN else (*top, name), 1)
            return _within(top) if name in _CHANGERS else None
        elif op in _STORES:
            above, is_set = _STORES[op]
            self._take(above)
            top = self._pop()
            self._take(is_set)
            is_within = top is not None and (top[-1] == WITHIN or not op.endswith("_ATTR"))
            return _within(top) if is_within or top is None else (*top, name)
        elif op in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF") and (
            op.endswith("GLOBAL") or name in self._free
        ):
            self._take(op.startswith("STORE"))
            return ("global" if op.endswith("GLOBAL") else "free", name, WITHIN)
        else:
            self._plain(step)
        return None

    def _plain(self, step: Step) -> None:
        op, name, stack = step.op, step.value, self._stack
        if op.startswith("LOAD_FAST") or op == "LOAD_DEREF":
            stack.append(("free", name) if name in self._free else self._locals.get(name))
        elif op.startswith("STORE_FAST") or op == "STORE_DEREF":
            self._locals[name] = self._pop()
        elif op in ("COPY", "DUP_TOP", "DUP_TOP_TWO"):
            n = 2 if op == "DUP_TOP_TWO" else step.arg or 1
            self._need(n)
            stack.extend(stack[-2:] if op == "DUP_TOP_TWO" else [stack[-n]])
        elif op == "BINARY_SUBSCR":
            self._take(1)
            stack.append(_within(self._pop()))
        elif op == "SWAP":
            self._need(step.arg or 1)
            stack[-1], stack[-(step.arg or 1)] = stack[-(step.arg or 1)], stack[-1]
        elif op.startswith("ROT_"):
            n = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}.get(op, step.arg or 1)
            self._need(n)
            stack.insert(len(stack) - n, self._pop())
        else:  # of no interest: by how it changes the stack's depth
            effect = dis.stack_effect(step.opcode, step.arg, jump=False)
            self._take(-effect)
            stack.extend([None] * effect)
            if stack and effect <= 0 and not op.startswith(_POP_ONLY):
                stack[-1] = None

    def _push(self, step: Step, value: _Place | None, popped: int = 0) -> None:
        """Push a value, with the empty place below it that a call wants."""
        more = dis.stack_effect(step.opcode, step.arg, jump=False) + popped - 1
        self._stack += [*[None] * more, value]

    def _need(self, n: int) -> None:
        self._stack[:0] = [None] * (n - len(self._stack))

    def _pop(self) -> _Place | None:
        return self._stack.pop() if self._stack else None

    def _take(self, n: int) -> None:
        for _ in range(n):
            self._pop()


def _within(place: _Place | None) -> _Place | None:
    return place if place is None or place[-1] == WITHIN else (*place, WITHIN)


def changes_in(code: CodeType, steps: list[Step]) -> Iterator[_Place]:
    """Yield the places of what code changes and has not made itself: "[]" at the end where it is changed in place."""
    stack = _Stack(code)
    for step in steps:
        if (place := stack.step(step)) is not None:
            yield place
