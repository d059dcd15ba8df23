"""Compiled code: its hash, without lines, file and docstring, and what it reads, imports and changes as it runs.

The hash covers the instructions, the names and constants in them, and the jumps. It differs between minor versions
of Python, which compile differently.
"""

from __future__ import annotations

import dis
import hashlib
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any, TypeVar

from espnet3.parallel.provenance.modules import absolute

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
_READS = _GLOBALS | _ATTRIBUTES | {"LOAD_CONST"}
_DEREFS = frozenset(name for name in dis.opmap if name.endswith("DEREF"))
OF_LAYERS = "torch.nn.modules.module"  # the module of the base of all layers and models
# How many keys stand between the owner of a part and the top of the stack
_KEYS = {"BINARY_SUBSCR": 1, "STORE_SUBSCR": 1, "DELETE_SUBSCR": 1, "BINARY_SLICE": 2, "STORE_SLICE": 2}
_DEPTHS = {"DUP_TOP": 1, "DUP_TOP_TWO": 1}  # Python 3.10 has these in names, and not as arguments
_SETTERS = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
_TAKERS = ("STORE_", "DELETE_", "POP_", "END_")  # they leave no value
_COPIES, _TURNS, _TESTS = ("COPY", "DUP_"), ("SWAP", "ROT_"), ("COMPARE", "CONTAINS", "IS_OP", "UNARY_NOT")
# Methods of containers that change them
_CHANGERS = frozenset({"append", "appendleft", "add", "clear", "discard", "extend", "extendleft", "insert", "popitem",
    "pop", "popleft", "remove", "reverse", "setdefault", "sort", "update", "difference_update", "move_to_end"}
)  # fmt: skip
# What is another one at each start, by the first and the last name that lead there; and names that say the same of it
_FLEETING = {("time", name) for name in ("time", "time_ns", "monotonic", "perf_counter", "strftime", "ctime")}
_FLEETING |= {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today"),
    ("os", "getpid"), ("uuid", "uuid4"), ("socket", "gethostname"), ("tempfile", "mkdtemp"),
    ("tempfile", "TemporaryDirectory")}  # fmt: skip
FLEETING_NAMES = {name for _, name in _FLEETING}
_SAME = {"str", "int", "float", "round", "Path", "pathlib", "timezone"}.union(*_FLEETING)
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
        if code.co_name == BODY and name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            name = name.replace("GLOBAL", "NAME")  # one of its functions says `global`
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

    caught = dict[int, tuple[int, int]]()
    for one in getattr(dis.Bytecode(code) if has_tries else None, "exception_entries", ()):
        covered = range(bisect_left(offsets, one.start), bisect_left(offsets, one.end))
        caught |= dict.fromkeys(covered, (bisect_left(offsets, one.target), one.depth))
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
        stores = ("STORE_NAME", "DELETE_NAME")
        self.times = Counter(step[1] for step in steps if step[0] in stores)  # a name is set
        for part in _statements(steps):
            if [step[1] for step in part[:-1]] == _IS_PROGRAM and part[-1][0].endswith("JUMP_IF_FALSE"):
                program = part[-1][1]  # up to here it runs only where a module is the program
            elif part[0][3] >= program:
                rest += [] if self._defines(part) else part
                for inner in _classes_in(step[1] for step in part if isinstance(step[1], CodeType)):
                    for name, one in body_of(inner).definitions.items():  # two classes may have one name
                        full = f"{inner.co_name}.{name}"
                        self.definitions[full] = self.definitions.get(full, "") + one
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


def _classes_in(codes: Iterable[CodeType]) -> Iterator[CodeType]:
    for one in codes:
        if not one.co_flags & _IS_FUNCTION:
            yield one
        elif "<generic parameters" in one.co_name:  # since Python 3.12, around a class
            yield from _classes_in(_inner_codes(one))


@once
def words_in(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names and the texts in a piece of code and its inner functions."""
    names, texts, left = set[str](), set[Any](), [code]
    for one in left:  # which grows
        left += _inner_codes(one)
        names.update(one.co_names)
        steps = _steps_of(one) if _IMPORT in one.co_code[::2] else []
        # names are no texts
        taken = [before[1] for before, step in pairwise(steps) if step[0] == "IMPORT_NAME"]
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
        # what it hands on by a variable and attributes
        self.handed: set[tuple[str, ...]] = set().union(*(one.handed for one in inner))
        chain: list[str] = []
        bound, filled = _changed_in(steps)
        # variables of the module that it sets, and those that it changes in place
        self.bound: set[str] = bound.union(*(one.bound for one in inner))
        self.filled: set[str] = filled.union(*(one.filled for one in inner))
        for (op, value, arg, _), (after, attribute, *_) in pairwise(steps):
            if op in _GLOBALS:
                self.reads.add(value)
                self.asked.add((value, attribute if after in _ATTRIBUTES else "__call__"))
                is_called = _VERSION >= (3, 11) and op == "LOAD_GLOBAL" and arg & 1
                self.bare.update([] if is_called or after in _ATTRIBUTES else [value])
            elif op in _DEREFS and after not in _ATTRIBUTES:
                self.around.add(value)
            chain = [value] if op in _GLOBALS else [*chain, value] if chain and op in _ATTRIBUTES else []
            if len(chain) > 1 and after not in _ATTRIBUTES:
                self.handed.add(tuple(chain))


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
    for one in _classes_in(_inner_codes(code)):
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
    # by name, for each time that it is set: whether by the clock, and what else is read; what imported names stand for
    stores, taken = defaultdict[str, list[tuple[bool, set[str]]]](list), dict[str, list[str]]()
    steps, module = _steps_of(code), ""
    targets = [step[1] for step in steps if step[0] in _JUMP_NAMES]
    chain, read, used, begin = [""], set[tuple[str, ...]](), set[str](), -1
    for (op, value, _, at), (after, alias, *_) in pairwise([*steps, ("", "", 0, 0)]):
        begin = at if begin < 0 else begin
        if op.startswith("IMPORT_"):
            module, path = (value, [value]) if op == "IMPORT_NAME" else (module, [module, value])
            taken |= {alias: path} if after == "STORE_NAME" else {}
        if op in _GLOBALS:
            chain = taken.get(value, [value])
            used.add(chain[0])
        else:
            chain = [*chain, value] if op in _ATTRIBUTES else [""]
        if len(chain) > 1 or code.co_flags & _IS_FUNCTION:  # whose names may be imported by the module
            read.add((chain[0], chain[-1]))
        is_local = op[:5] == "LOAD_" and op not in _READS and after != "STORE_ATTR"
        makes = op[:6] == "BUILD_" and op not in ("BUILD_STRING", "BUILD_SLICE")
        is_of_os = chain[0] == "os" and len(chain) > 1 and (chain[0], chain[-1]) not in _FLEETING
        if is_local or makes or is_of_os or op.startswith((*_TURNS, *_TESTS, "UNPACK")):
            used.add("another value")
        if op in ("STORE_NAME", "STORE_ATTR"):
            # another way may lead into the middle, as into `a if b else c`
            is_one = not any(begin < to <= at for to in targets)
            stores[value].append((bool(read & _FLEETING), used if is_one else {"another value"}))
        if op.startswith(_TAKERS):
            read, used, begin = set(), set(), -1
    found = set[str]()
    for name in [*stores] * 2:  # some are set by others
        if all((clock or used & found) and used <= _SAME | found for clock, used in stores[name]):
            found.add(name)
    of_classes = (
        f"{one.co_name}.{name}" for one in _classes_in(_inner_codes(code)) for name in fleeting_in(one)
    )
    return frozenset(found.union(of_classes))


def _changed_in(steps: list[_Step]) -> tuple[set[str], set[str]]:
    # the variables of the module that code sets, and those that it changes by `[...] =` or as a container
    bound, filled = set[str](), set[str]()
    for at, (op, name, *_) in enumerate(steps):
        if op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            bound.add(name)
        elif op in _SETTERS or (op in _KEYS and steps[at - 1][0].startswith(_COPIES)):  # as in `+=`
            filled.add(_variable(steps, at, _KEYS[op]))
        elif op in _ATTRIBUTES and name in _CHANGERS and steps[at - 1][0] in _GLOBALS:
            filled.add(steps[at - 1][1])
    return bound, filled - {""}


def _variable(steps: list[_Step], at: int, below: int) -> str:
    """Return the variable whose value lies so far below the top of the stack before a step; "" for another value."""
    while at > 0 and (below or steps[at - 1][0].startswith(_TAKERS)):
        at -= 1
        op, _, arg, _ = steps[at]
        if op == "DUP_TOP_TWO" and below == 1:  # as far down in what it has copied
            continue
        below -= dis.stack_effect(_OPS[op], arg if _OPS[op] in _WITH_ARGUMENT else None, jump=False)
        below -= op == "END_FOR"  # it also takes the value that the end of a loop would have left
        if below < 0 or op.startswith(_TURNS):
            return ""
    op, name, arg, _ = steps[at - 1]
    if op.startswith(_COPIES):
        return _variable(steps, at - 1, _DEPTHS.get(op, arg) - 1)
    return name if op in _GLOBALS else ""
