"""Compiled code: its hash, without lines, file and docstring, and what it reads, imports and changes as it runs.

The hash covers the instructions, the names and constants in them, and the jumps. It differs between minor versions
of Python, which compile differently.
"""

from __future__ import annotations

import dis
import hashlib
import sys
from bisect import bisect_left
from collections import Counter, defaultdict, namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from inspect import getattr_static
from itertools import pairwise
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

from espnet3.parallel.checks import is_a
from espnet3.parallel.provenance.modules import absolute, is_users

_T = TypeVar("_T")
DIGITS = 16
BODY = "<module>"  # the name of a module's own statements among its functions
_FLAGS = 0x2AF  # optimized, new locals, *args, **kwargs, and generators and coroutines of all kinds
_IS_FUNCTION = 0x02  # its locals are its own: no class body, and no module
_UNSAID = frozenset({"__doc__", "__firstlineno__", "__static_attributes__"})  # of class bodies and modules
_LAST = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_OTHERWISE = {"POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE"}

# What a statement consists of that defines a name; all ways to call; and calls of which no other object hears
_CALLS = ("CALL", "CALL_FUNCTION", "CALL_METHOD", "CALL_KW", "CALL_FUNCTION_KW")
_LITERAL = {"LOAD_CONST", "BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "BUILD_SET", "BUILD_CONST_KEY_MAP", "LIST_EXTEND",
    "SET_UPDATE", "DICT_UPDATE", "LIST_APPEND", "SET_ADD", "MAP_ADD", "RESUME", "STORE_NAME"}  # fmt: skip
_DEFINING = {*_CALLS, *_LITERAL, "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "LOAD_BUILD_CLASS", "MAKE_FUNCTION",
    "SET_FUNCTION_ATTRIBUTE", "KW_NAMES", "PUSH_NULL", "PRECALL", "IMPORT_NAME", "IMPORT_FROM", "POP_TOP", "SWAP",
    "ROT_TWO"}  # fmt: skip
_PLAIN_CALLS = {
    ("LOAD_BUILD_CLASS", 0),
    *(("LOAD_NAME", name) for name in ("property", "staticmethod", "classmethod")),
}
_IS_PROGRAM = ["__name__", "__main__", "=="]
_VERSION = sys.version_info[:2]
_WITH_ARGUMENT = frozenset(getattr(dis, "hasarg", range(dis.HAVE_ARGUMENT, 256)))  # a list since Python 3.12
_MORE, _IMPORT = dis.opmap["EXTENDED_ARG"], dis.opmap["IMPORT_NAME"]
_NO_STEPS = frozenset(dis.opmap.get(name) for name in ("EXTENDED_ARG", "NOP", "CACHE"))
# One instruction for two
_PAIRS = {op: name.split("_")[::2] for name, op in dis.opmap.items() if name.count("_FAST") > 1}
_CONSTANTS = [*dis.hasconst, dis.opmap.get("KW_NAMES", -1)]
_TABLES = (dis.hasname, _CONSTANTS, dis.haslocal, dis.hasfree, dis.hascompare)
# By instruction: the table that its argument is a number in, and how many lower bits of the argument say something else
_MEANT = {op: (at, 0) for at, ops in enumerate(_TABLES) for op in ops} | {
    dis.opmap["LOAD_GLOBAL"]: (0, int(_VERSION >= (3, 11))),
    dis.opmap["LOAD_ATTR"]: (0, int(_VERSION >= (3, 12))),
    dis.opmap.get("LOAD_SUPER_ATTR", -1): (0, 2),
    dis.opmap["COMPARE_OP"]: (4, 5 if _VERSION >= (3, 13) else 4 if _VERSION >= (3, 12) else 0),
}
_NAMES = [name.replace("FORWARD_", "").replace("BACKWARD_", "") for name in dis.opname]
_OPS = {name: op for op, name in enumerate(_NAMES)}
_JUMP_NAMES = frozenset(_NAMES[op] for op in (*dis.hasjrel, *dis.hasjabs))
_ALWAYS = frozenset(name for name in _JUMP_NAMES if name.startswith("JUMP_") and "_IF_" not in name)

_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_DEREFS = frozenset(name for name in dis.opmap if name.endswith("DEREF"))
OF_LAYERS = "torch.nn.modules.module"  # the module of the base of all layers and models
WITHIN = "[]"  # at the end of a place: something in it
# How many keys stand between the owner of a part and the top of the stack
_KEYS = {"BINARY_SUBSCR": 1, "STORE_SUBSCR": 1, "DELETE_SUBSCR": 1, "BINARY_SLICE": 2, "STORE_SLICE": 2}
_DEPTHS = {"DUP_TOP": 1, "DUP_TOP_TWO": 1}  # Python 3.10 has these in names, and not as arguments
_PARTS = frozenset({*_ATTRIBUTES, "LOAD_SUPER_ATTR", "BINARY_SUBSCR", "BINARY_SLICE"})
_SETTERS = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE", "STORE_ATTR", "DELETE_ATTR"})
_TAKERS = ("STORE_", "DELETE_", "POP_", "END_")  # they leave no value
_COPIES, _TURNS = ("COPY", "DUP_"), ("SWAP", "ROT_")
_KINDS = {"STORE_GLOBAL": "global", "DELETE_GLOBAL": "global", "STORE_DEREF": "free", "DELETE_DEREF": "free"}
_STORES = frozenset(dis.opmap.get(name) for name in (*_SETTERS, *_KINDS))
# Methods of containers that change them
CHANGERS = frozenset({"append", "appendleft", "add", "clear", "discard", "extend", "extendleft", "insert", "popitem",
    "pop", "popleft", "remove", "reverse", "setdefault", "sort", "update", "difference_update", "move_to_end"}
)  # fmt: skip
# The place of a value: a root, which is "global", the "first" argument, another "argument" or "free" (a variable of the
# function around), then the names that lead to the value
_Place = tuple[str, ...]
# Methods that run before an item sees the object
_MAKERS = frozenset({"__init__", "__post_init__", "__new__", "__init_subclass__", "__set_name__", "__setstate__",
    "__class_getitem__", "__setitem__", "__delitem__", "__setattr__", "__delattr__"})  # fmt: skip
# What is another one at each start, by the first and the last name that lead there; and names that say the same of it
_FLEETING = {("time", name) for name in ("time", "time_ns", "monotonic", "perf_counter", "strftime", "ctime")}
_FLEETING |= {("datetime", "now"), ("datetime", "today"), ("date", "today"), ("os", "getpid"), ("uuid", "uuid4"),
    ("socket", "gethostname"), ("tempfile", "mkdtemp"), ("tempfile", "TemporaryDirectory")}  # fmt: skip
_FLEETING_NAMES = {name for _, name in _FLEETING}
_SAME = {"str", "int", "float", "round", "Path", "pathlib", "timezone"}.union(*_FLEETING)
_BY_NAME = ("setattr", "delattr", "__setattr__", "__delattr__")  # they are given a name as a text
# An instruction: its name, the name or constant that it uses, or where it jumps to, or else its argument; its argument
# as it is; its offset. `dis` has the same, and takes twenty times as long
_Step = tuple[str, Any, int, int]


def once(make: Callable[..., _T]) -> Callable[..., _T]:
    """Return a function of code that keeps its results, by identity: to hash code is to hash all code in it."""
    known: dict[tuple[Any, ...], tuple[CodeType, _T]] = {}

    def of(code: CodeType, *more: Any) -> _T:
        key = id(code), *more
        if key not in known:
            known[key] = code, make(code, *more)
        return known[key][1]

    return of


@lru_cache(maxsize=64)
def _steps_of(code: CodeType) -> list[_Step]:
    steps: list[_Step] = []
    raw, above, has_names = code.co_code, 0, not code.co_flags & _IS_FUNCTION
    fast, cells = code.co_varnames, (*code.co_cellvars, *code.co_freevars)
    if _VERSION >= (3, 11):  # cells that are arguments have one number
        fast = cells = (*fast, *(one for one in cells if one not in fast))
    tables: tuple[Any, ...] = (code.co_names, code.co_consts, fast, cells, dis.cmp_op)
    for number, op in enumerate(raw[::2]):
        if op in _NO_STEPS:
            above = (above | raw[2 * number + 1]) << 8 if op == _MORE else 0
            continue
        name, at, arg, above = _NAMES[op], 2 * number, above | raw[2 * number + 1], 0
        if op in _PAIRS:
            parts = zip(_PAIRS[op], (arg >> 4, arg & 15), strict=True)
            steps += [(f"{part}_FAST", fast[local], local, at) for part, local in parts]
            continue
        value: Any = _target(raw, at, arg) if name in _JUMP_NAMES else arg
        if op in _MEANT:
            table, shift = _MEANT[op]
            value = tables[table][arg >> shift]
        if has_names and name == "STORE_NAME" and value in _UNSAID and steps[-1][0] == "LOAD_CONST":
            steps.pop()
        else:
            steps.append((name, value, arg, at))
    return steps


def _target(raw: bytes, at: int, arg: int) -> int:
    if raw[at] in dis.hasjabs:
        return 2 * arg
    after = at + 2
    while raw[after : after + 1] == b"\0":  # room for the interpreter
        after += 2
    return after + (-2 if "BACKWARD" in dis.opname[raw[at]] else 2) * arg


def _hash(code: CodeType, steps: list[_Step], body: bool = False) -> str:
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags & _FLAGS)
    parts = (counts, code.co_varnames, code.co_freevars, code.co_cellvars, _flow(code, steps, body))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:DIGITS]


def _flow(code: CodeType, steps: list[_Step], body: bool) -> list[Any]:
    flow: list[Any] = [
        (op, value if type(value) is str or type(value) is int else (_steady(value, body),))
        for op, value, _, _ in steps
    ]
    has_tries = getattr(code, "co_exceptiontable", b"")  # since Python 3.11
    if not has_tries and _JUMP_NAMES.isdisjoint(step[0] for step in steps):
        return flow
    offsets = [step[3] for step in steps]
    jumps = {at: bisect_left(offsets, step[1]) for at, step in enumerate(steps) if step[0] in _JUMP_NAMES}
    ops = {at: steps[at][0] for at in jumps}
    # on one line a truth is not asked for again, as after the `or` of `a and (b or c) and d`
    for at in sorted(jumps, reverse=True):  # the last first: where it goes on is known
        test, then = ops[at].removesuffix("_OR_POP"), ops.get(to := jumps[at], "")
        if test != ops[at] and then.endswith(("JUMP_IF_TRUE", "JUMP_IF_FALSE", "_OR_POP")):
            ops[at], jumps[at] = (then, jumps[to]) if test in then else (f"POP_{test}", to + 1)
    always = {at: to for at, to in jumps.items() if ops[at] in _ALWAYS}

    def end(at: int) -> int:
        for _ in always:  # no more often: a loop may be empty
            if at not in always:
                break
            at = always[at]
        return at

    caught = {
        at: (bisect_left(offsets, one.target), one.depth)
        for one in getattr(dis.Bytecode(code) if has_tries else None, "exception_entries", ())
        for at in range(bisect_left(offsets, one.start), bisect_left(offsets, one.end))
    }
    kept = [at for at in range(len(steps)) if at not in always]
    numbers = {at: number for number, at in enumerate(kept)}
    for at in numbers.keys() & (jumps.keys() | caught.keys() | {at - 1 for at in always}):
        op = ops.get(at, steps[at][0])
        after = [*([] if op in _LAST else [at + 1]), *([jumps[at]] if at in jumps else [])]
        after = [*(after[::-1] if op in _OTHERWISE else after), *caught.get(at, ())[:1]]
        steps_to = [numbers.get(end(one), 0) - numbers[at] for one in after]
        value = "" if at in jumps else flow[at][1]
        flow[at] = (_OTHERWISE.get(op, op), value, steps_to, caught.get(at, ())[1:])
    return [flow[at] for at in kept]


def _steady(value: Any, body: bool = False) -> str:
    if isinstance(value, CodeType):
        is_left_out = body and value.co_flags & _IS_FUNCTION and value.co_name[:1] != "<"
        return value.co_name if is_left_out else body_of(value).hash if body else facts_of(value).hash
    if isinstance(value, (tuple, frozenset)):
        parts = [_steady(one) for one in value]
        return f"{type(value).__name__} {parts if isinstance(value, tuple) else sorted(parts)}"
    return f"{type(value).__name__} {value!r}"


class Body:
    """A module's code, or a class's: each statement that defines a name and does nothing else, and the rest."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.definitions: dict[str, str] = {}  # hashes
        self.constants: dict[str, Any] = {}  # set once, to a literal
        self.literals: set[str] = set()  # and those that are set to lists, dicts and sets of literals
        self.fleeting = fleeting_in(code)
        steps, rest, program = _steps_of(code), list[_Step](), 0
        stores = ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME")
        self.times = Counter(step[1] for step in steps if step[0] in stores)  # a name is set
        for part in _statements(steps):
            if [step[1] for step in part[:-1]] == _IS_PROGRAM and part[-1][0].endswith("JUMP_IF_FALSE"):
                program = part[-1][1]  # up to here it runs only where a module is the program
            elif part[0][3] >= program and not self._defines(part):
                rest += part
        self.hash = _hash(code, rest, True)  # without definitions and lines for the program

    def _defines(self, part: list[_Step]) -> bool:
        ops = Counter(step[0] for step in part)
        names = {step[1]: at for at, step in enumerate(part) if step[0] == "STORE_NAME"}
        plain = sum(step[:2] in _PLAIN_CALLS for step in part)
        hears_all = ops["MAKE_FUNCTION"] and plain < sum(ops[one] for one in _CALLS)  # a decorator
        is_other = not ops.keys() <= _DEFINING or any(self.times[name] > 1 for name in names)
        if not names or hears_all or is_other:
            return False
        for name, at in names.items():  # of `from a import b, c` each by itself
            counts = [part[0], part[2], part[at - 1]] if ops["IMPORT_NAME"] else part
            said = repr([(step[0], _steady(step[1], True)) for step in counts])
            self.definitions[name] = hashlib.sha256(said.encode()).hexdigest()[:DIGITS]
        for inner in (step[1] for step in part if isinstance(step[1], CodeType)):
            if not inner.co_flags & _IS_FUNCTION:
                found = body_of(inner).definitions
                self.definitions |= {f"{part[-1][1]}.{key}": one for key, one in found.items()}
        if ops.keys() <= _LITERAL:
            self.literals.update(names)
            self.constants |= {part[-1][1]: part[-2][1]} if part[-2][0] == "LOAD_CONST" else {}
        return True


body_of = once(Body)


def _statements(steps: list[_Step]) -> Iterator[list[_Step]]:
    begin, depth, until, depths, offsets = 0, 0, 0, dict[int, int](), [step[3] for step in steps]
    for at, (op, value, arg, _) in enumerate(steps):
        if depths.get(at) == 0 and begin < at > until:  # after a loop, say
            yield steps[begin:at]
            begin = at
        before, given = depths.get(at, depth), (_OPS[op], arg if _OPS[op] in _WITH_ARGUMENT else None)
        # an exception that is caught is on the stack
        depth = max(before + dis.stack_effect(*given, jump=False), 0)
        there = before + dis.stack_effect(*given, jump=True) if op in _JUMP_NAMES else 0
        if op in _JUMP_NAMES:
            # its target may be a step that is left out, such as the first half of a long one
            depths[to := bisect_left(offsets, value)] = there
            until = max(until, to if there and "JUMP" in op else 0)  # there an `or` goes on with its value
        if (not depth and at >= until) or at + 1 == len(steps):
            yield steps[begin : at + 1]
            begin = at + 1


def _inner_codes(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]


@once
def words_in(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names and the texts in a piece of code and its inner functions."""
    names, texts, left = set[str](), set[Any](), [code]
    for one in left:  # which grows
        left += _inner_codes(one)
        names.update(one.co_names)
        steps = _steps_of(one) if _IMPORT in one.co_code[::2] else []
        taken = [
            before[1] for before, step in pairwise(steps) if step[0] == "IMPORT_NAME"
        ]  # names are no texts
        for each in one.co_consts:
            texts.update((each,) if type(each) is not tuple else () if each in taken else each)
    return frozenset(names), frozenset(one for one in texts if type(one) is str)


class Facts:
    """The hash of a piece of code, and the names and attributes outside of it that it and its inner functions use."""

    def __init__(self, code: CodeType) -> None:
        steps, inner = _steps_of(code), [*map(facts_of, _inner_codes(code))]
        self.hash = _hash(code, steps)
        self.names, self.texts = words_in(code)
        self.reads: set[str] = set().union(*(one.reads for one in inner))  # names of the module
        self.bare: set[str] = set().union(*(one.bare for one in inner))  # those that it hands on
        self.asked: set[tuple[str, str]] = set().union(*(one.asked for one in inner))  # with an attribute
        self.around: set[str] = set().union(*(one.around for one in inner))  # so of the functions around it
        for (op, value, arg, _), (after, attribute, *_) in pairwise(steps):
            if op in _GLOBALS:
                self.reads.add(value)
                self.asked.add((value, attribute if after in _ATTRIBUTES else "__call__"))
                is_called = _VERSION >= (3, 11) and op == "LOAD_GLOBAL" and arg & 1
                self.bare.update([] if is_called or after in _ATTRIBUTES else [value])
            elif op in _DEREFS and after not in _ATTRIBUTES:
                self.around.add(value)


facts_of = once(cache(Facts))  # code that is equal has equal lines, and constants of the same types


@once
def functions_in(code: CodeType, around: str = "") -> dict[str, list[CodeType]]:
    """Return the functions that code defines, by qualified name."""
    found: dict[str, list[CodeType]] = defaultdict(list)
    for one in _inner_codes(code):
        name, is_function = getattr(one, "co_qualname", around + one.co_name), one.co_flags & _IS_FUNCTION
        if is_function and "<generic parameters" not in one.co_name:
            found[name].append(one)
        for each, more in functions_in(one, f"{name}.<locals>." if is_function else f"{name}.").items():
            found[each] += more
    return found


def classes_in(code: CodeType) -> dict[str, list[str]]:
    """Return the names that classes define, by the class's qualified name: methods last, in no order of theirs."""
    found = dict[str, list[str]]()
    for one in _inner_codes(code):
        if not one.co_flags & _IS_FUNCTION:
            methods = {each.co_name for each in _inner_codes(one)}
            names = dict.fromkeys(step[1] for step in _steps_of(one) if step[0] == "STORE_NAME")
            inner = {f"{one.co_name}.{name}": each for name, each in classes_in(one).items()}
            found |= {one.co_name: sorted(names, key=lambda name: name if name in methods else ""), **inner}
    return found


@once
def imports_in(code: CodeType, package: str, at_once: bool = False) -> list[tuple[str, str]]:
    """Return the absolute names of what code of a package imports, and their names there; "" for modules."""
    steps, found, base, taken = _steps_of(code) if _IMPORT in code.co_code[::2] else [], [], "", ()
    for at, (op, value, *_) in enumerate(steps):
        if op == "IMPORT_NAME":
            level, taken = steps[at - 2][1], steps[at - 1][1] or ()
            base = absolute(value, level if type(level) is int else 0, package)
            found.append((base, "*" if "*" in taken else ""))
        elif op == "IMPORT_FROM" and value in taken:  # else `import a.b as c`
            found.append((f"{base}.{value}", str(steps[at + 1][1])))
    for one in _inner_codes(code):
        if not (at_once and one.co_flags & _IS_FUNCTION):  # which does not run as the module is imported
            found += imports_in(one, package, at_once)
    return found


@once
def fleeting_in(code: CodeType) -> frozenset[str]:
    """Return the variables and attributes that code sets by nothing but the clock, the process and the like."""
    found, read, names, chain = set[str](), set[tuple[str, ...]](), set[str](), [""]
    for op, value, *_ in _steps_of(code):
        chain = [*chain, value] if op in _ATTRIBUTES else [value] if op in _GLOBALS else [""]
        read.add((chain[0], chain[-1]))
        if op in _GLOBALS or (op.startswith("BUILD_") and op not in ("BUILD_STRING", "BUILD_SLICE")):
            names.add(chain[0] or op)
        if op.startswith(_TAKERS):
            is_new = read & _FLEETING or names & found
            if is_new and names <= _SAME | found and op in ("STORE_NAME", "STORE_GLOBAL", "STORE_ATTR"):
                found.add(value)
            read, names = set(), set()
    for one in _inner_codes(code):
        found.update(
            f"{one.co_name}.{name}" for name in ([] if one.co_flags & _IS_FUNCTION else fleeting_in(one))
        )
    return frozenset(found)


@once
def changes_of(code: CodeType) -> frozenset[_Place]:
    """Return the places that code changes and has not made itself; "[]" at the end means changed in place."""
    changes_none = _STORES.isdisjoint(code.co_code[::2]) and CHANGERS.isdisjoint(code.co_names)  # most code
    found = () if changes_none else filter(None, _changes(code))
    return frozenset(found).union(*map(changes_of, _inner_codes(code)))


def _changes(code: CodeType) -> Iterator[_Place | None]:
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    arguments = code.co_varnames[:count]
    known: dict[str, _Place | None] = {name: ("argument", name) for name in arguments}
    known |= {name: ("first",) for name in arguments[:1] if code.co_argcount}
    known |= {name: ("free", name) for name in code.co_freevars}
    steps = _steps_of(code)
    for at, (op, name, _, _) in enumerate(steps):
        if op in _KINDS and name not in code.co_cellvars:
            yield (_KINDS[op], name, WITHIN)
        elif op.startswith("STORE_FAST") or op == "STORE_DEREF":
            known[name] = _place(steps, at, 0, known)
        elif op in _SETTERS or (op in _PARTS and steps[at - 1][0].startswith(_COPIES)):  # as in `+=`
            yield _part(steps, at, known)
        elif op in _ATTRIBUTES and name in CHANGERS:
            yield _part(steps, at, known, f"{name}()")


def is_within(name: str) -> bool:
    """Tell whether the end of a place means that the value itself is changed: something in it, or by a method."""
    return name == WITHIN or name.endswith("()")


def may_change(value: Any, end: str) -> bool:
    """Tell whether what stands at the end of a place may change a value: not if it is a plain formula of the user's."""
    if is_a(value, (ModuleType, type)):
        return not end.endswith("()")
    method = getattr_static(type(value), end.removesuffix("()"), None)
    if not (is_a(method, FunctionType) and is_users(method)) or _inner_codes(method.__code__):
        return True
    return bool(changes_of(method.__code__)) or any(
        step[0].startswith("CALL") for step in _steps_of(method.__code__)
    )


def _part(steps: list[_Step], at: int, known: dict[str, _Place | None], name: str = "") -> _Place | None:
    op, read, *_ = steps[at]
    owner = _place(steps, at, _KEYS.get(op, 0), known)
    is_whole = owner is None or is_within(owner[-1])
    return owner if is_whole else (*(owner or ()), name or (WITHIN if op in _KEYS else read))


def _place(steps: list[_Step], at: int, below: int, known: dict[str, _Place | None]) -> _Place | None:
    """Return the place of the value that lies so far below the top of the stack before a step, if it is known."""
    while at > 0 and (below or steps[at - 1][0].startswith(_TAKERS)):
        at -= 1
        op, _, arg, _ = steps[at]
        if op == "DUP_TOP_TWO" and below == 1:  # as far down in what it has copied
            continue
        below -= dis.stack_effect(_OPS[op], arg if _OPS[op] in _WITH_ARGUMENT else None, jump=False)
        below -= op == "END_FOR"  # it also takes the value that the end of a loop would have left
        if below < 0 or op.startswith(_TURNS):
            return None
    op, name, arg, _ = steps[at - 1]
    if op.startswith(_COPIES):
        return _place(steps, at - 1, _DEPTHS.get(op, arg) - 1, known)
    if op in _GLOBALS:
        return ("global", name)
    is_local = op.startswith("LOAD_FAST") or op == "LOAD_DEREF"
    return known.get(name) if is_local else _part(steps, at - 1, known) if op in _PARTS else None


def closure_of(function: FunctionType) -> dict[str, tuple[Any, Any]]:
    """Return what a function uses of the function around it: the variables that are bound, each with its cell."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not bound yet
            found[name] = cell, cell.cell_contents
    return found


# A function, the class that it is a method of, whether it is given this class, and how code calls it: by its name, or
# "name=" if setting an attribute calls it
Function = namedtuple("Function", "function kind of_class called", defaults=(None, False, ""))


class Changed:
    """Variables and attributes that functions change as items run.

    A method runs with the items if such code names it, or if this layer calls it (`called`).
    """

    def __init__(self, functions: Iterable[Function], called: Iterable[str]) -> None:
        # names, by the identity of what has them, a module's names or an object: those that may be, and surely are
        self._of: dict[int, set[str]] = defaultdict(set)
        self._surely: dict[int, set[str]] = defaultdict(set)
        self._asked: dict[int, set[str]] = defaultdict(set)  # methods, by that of a variable's value
        # by that of a class, what its methods change: which does, whether it is the class's too, and the names there
        self._by_methods: dict[int, set[tuple[str, bool, tuple[str, ...]]]] = defaultdict(set)
        self._loose: set[str] = set()  # that code sets on what it is given
        self._handed_on: set[int] = set()  # the identities of what reached code hands on
        self._names = {*called}  # in code that runs with the items; "name=" where it sets one
        waiting, before = list(functions), -1
        while len(waiting) != before:
            before, waiting = len(waiting), [one for one in waiting if not self._takes(one)]
        # what methods that do not run with the items change, and what nothing else reads
        changers, readers = Counter[tuple[int, str]](), Counter[str]()
        for met in waiting:
            code, world = met.function.__code__, id(met.function.__globals__)
            readers.update(facts_of(code).names)
            places = changes_of(code)
            ends = (one for one in places if one[0] == "global" and len(one) == 3 and is_within(one[2]))
            changers.update({(world, name) for _, name, _ in ends})
        for (world, name), times in changers.items():
            if name not in self._names and readers[name] == times:
                self._surely[world].add(name)

    def _takes(self, met: Function) -> bool:
        in_place = met.called.startswith("__i") and hasattr(int, f"__{met.called[3:]}")  # as `+=` calls them
        is_special = met.called.startswith("__") and met.called.endswith("__") and not in_place
        runs = met.called not in _MAKERS and (is_special or met.called in self._names)
        if met.kind is not None and not runs:
            return False
        world, code = met.function.__globals__, met.function.__code__
        facts, changes = facts_of(code), changes_of(code)
        of_kind = set() if met.kind is None else self._by_methods[id(met.kind)]
        self._names |= facts.names | facts.texts
        self._handed_on |= {id(world[name]) for name in facts.bare if name in world}
        if any("__dict__" in place for place in changes) or not facts.names.isdisjoint(_BY_NAME):
            self._loose |= facts.texts
            of_kind |= {("", False, (name,)) for name in facts.texts}
        for variable, method in facts.asked:
            self._asked[id(world.get(variable))].add(method)
        cells = closure_of(met.function)
        around = {name: one for name, (_, one) in cells.items()}
        for root, *place in changes:
            in_place = is_within(place[-1]) if place else False
            names = place[:-1] if in_place and len(place) > 1 else place
            if not in_place:
                self._names.add(f"{names[-1]}=")
            if root == "global":
                self._at(self._surely, world, names, place[-1])
            elif root == "free" and names[0] in cells:  # which may be of other functions, too
                self._at(self._surely, around, names, place[-1], cells[names[0]][0])
            elif root == "first" and met.kind is not None:
                of_kind.add((met.called, met.of_class or in_place, tuple(names)))
            elif not in_place:
                self._loose.add(names[-1])
        return True

    def _at(
        self, of: dict[int, set[str]], value: Any, names: Sequence[str], end: str = "", cell: Any = None
    ) -> None:
        owner = value
        for name in names:
            owner = vars(value) if is_a(value, ModuleType) else value
            value = dict.get(owner, name) if is_a(owner, dict) else getattr_static(owner, name, None)
        if not is_within(end) or may_change(value, end):
            of[id(owner if cell is None or names[1:] else cell)].add(names[-1])

    def of(self, value: Any, surely: bool = False) -> set[str]:
        """Return the names of a module, or the attributes of an object or a class, that may be changed.

        With `surely` those that code changes by a variable, or by a method of a variable's value.
        """
        is_class, asked = is_a(value, type), self._asked.get(id(value), set())
        found = set(self._loose if id(value) in self._handed_on and not surely else ())
        modules = {base.__module__ for base in type(value).__mro__}
        if OF_LAYERS in modules and not self._names.isdisjoint(("eval", "train")):
            found.add("training")  # these methods of torch set it
        for base in value.__mro__ if is_class else type(value).__mro__:
            for maker in () if is_class else map(vars(base).get, ("__init__", "__post_init__")):
                found |= fleeting_in(maker.__code__) if is_a(maker, FunctionType) else set()
            for name, one in vars(base).get("__dataclass_fields__", {}).items():
                found |= {name} if getattr(one.default_factory, "__name__", "") in _FLEETING_NAMES else set()
            for method, on_class, names in self._by_methods.get(id(base), ()):
                if surely and method not in asked:
                    continue
                if len(names) > 1:
                    self._at(self._surely if surely else self._of, value, names)
                elif on_class or not is_class:
                    found.update(names)
        found |= self._surely.get(id(value), set())
        return found if surely else found | self._of.get(id(value), set())
