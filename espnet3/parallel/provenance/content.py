"""Hashes of values by content: equal values have the same hash in every process, others have another one.

Order, type and structure count. An object is its class, its text, number or elements, and its attributes; no code of
the user's is called: no property, no `__getattr__`, no `__reduce__`. A part without content (a lock) drops out alone.
"""

from __future__ import annotations

import copyreg
import hashlib
import marshal
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import cached_property, lru_cache, partial
from itertools import filterfalse, repeat
from pathlib import PurePath
from types import CodeType, FunctionType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a, loaded, own_attribute
from espnet3.parallel.errors import is_ours
from espnet3.parallel.provenance import EXECUTION, NAMESPACES
from espnet3.parallel.provenance.code import FLEETING_NAMES, OF_LAYERS, facts_of, fleeting_in
from espnet3.parallel.provenance.modules import MAIN, is_users, module_of, name_of

PLAIN: frozenset[Any] = frozenset({bool, int, float, complex, str, bytes, type(None)})
# Wrappers of functions, and the attributes that hold these
WRAPPERS: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((staticmethod, classmethod), ("__func__",)),
    property: ("fget", "fset", "fdel"),
    cached_property: ("func",),
    type(lru_cache(len)): ("__wrapped__",),
    MethodType: ("__func__", "__self__"),
}
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_OF_C = (
    *(*_BOUND, types.ClassMethodDescriptorType, types.GetSetDescriptorType),
    *(MemberDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType),
)
# Functions of Cython: a type of each version, and an attribute may be an address
_CYTHON = "cython_function_or_method"
# Classes, or their modules, of objects that never decide a result, and of those that differ at each start
_NOTHING = {"_thread", "threading", "logging", "_io", "io", "weakref", "_weakref", "_weakrefset", "_abc",
    "os._Environ", "multiprocessing.queues", "multiprocessing.synchronize", "subprocess.Popen", "psutil.Process",
    "ctypes.CDLL", "loguru._logger", "pydantic._internal._validate_call"}  # fmt: skip
_ONCE = {"_random", "random", "numpy.random._generator", "numpy.random.mtrand", "contextvars", "_contextvars"}
_OF_START = {"pydantic._internal._decorators": {"cls_ref"}}  # attributes that are addresses
# By type, a function that reads its content as bytes, a text or a container, past methods of a subclass
_INSIDE: dict[type, Callable[[Any], Any]] = {
    **{kind: kind.__repr__ for kind in PLAIN - {str, bytes}},
    int: lambda one: int.__format__(one, "x"),  # of any size
    str: lambda one: str.encode(one, "utf-8", "surrogatepass"),
    **dict.fromkeys((bytes, bytearray), lambda one: b"".join([one])),
    memoryview: lambda one: [one.format, one.shape, one.tobytes()],
    list: lambda one: list(list.__iter__(one)),
    tuple: lambda one: list(tuple.__iter__(one)),
    OrderedDict: lambda one: dict(OrderedDict.items(one)),
    defaultdict: lambda one: [vars(defaultdict)["default_factory"].__get__(one), dict.copy(one)],
    dict: dict.copy,  # which asks no key for its hash
    set: lambda one: set(set.__iter__(one)),
    frozenset: lambda one: set(frozenset.__iter__(one)),
    deque: lambda one: [list(deque.__iter__(one)), vars(deque)["maxlen"].__get__(one)],
}
_SETS = 3 << 29  # sets within sets, of which two are looked into, each a depth of -2^30
_MOST = 1000  # parts of settings: more are data
_DEEP = 50  # objects within objects, before one waits until the others are hashed: the stack is not endless
_NO_CONTENT = "{} is a {.__qualname__}, which has no content that could be compared"
_MADE_BY_PYTHON = 1 << 9  # of a class: a class statement, or `type`, has made it
_OWN = "attributes"  # of an object: hashed as a dict is, but nothing in them comes later
_PICKLING = ("__reduce__", "__reduce_ex__", "__getstate__")


class NoContentError(TypeError):
    """A value has no content that could be compared, and may decide a result."""


def content_hash(value: Any, place: str = "value") -> str:
    """Return the hash of a value's content, or raise a NoContentError, which calls the value `place`."""
    # a class of the script is `__main__`'s here and on a worker, which does not know the script's file
    return Content(lambda name: MAIN[0] if name in MAIN else name).hash(value, place)


def as_containers(value: Any, resolve: bool = True) -> Any:
    """Return an OmegaConf config as plain containers, resolved as far as it can be; anything else as it is."""
    omegaconf = None if type(value) in _INSIDE else loaded("omegaconf")  # its values are of no such type
    if omegaconf is None or not is_a(value, omegaconf.Container):
        return value
    try:
        return omegaconf.OmegaConf.to_container(value, resolve=resolve)
    except omegaconf.errors.OmegaConfBaseException:  # a variable that is not set, say: as it is written, then
        return omegaconf.OmegaConf.to_container(value, resolve=False)


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an object's own attributes, those in slots too; no property is asked."""
    own: Any = None
    with suppress(AttributeError):  # all of it is in slots
        own = object.__getattribute__(value, "__dict__")
    found = dict(own) if type(own) is dict else {}
    for kind in type(value).__mro__:
        for name, slot in list(vars(kind).items()) if "__slots__" in vars(kind) else ():
            if type(slot) is MemberDescriptorType and kind.__flags__ & _MADE_BY_PYTHON:
                with suppress(AttributeError):  # no value yet
                    found[name] = slot.__get__(value)
    if is_a(value, BaseException):
        found.pop("__notes__", None)  # a run adds them where it raises one
    return found


def is_settings(value: Any) -> bool:
    """Return whether a value is data in containers and in objects of the user's own, and not much of it."""
    left, is_part = [as_containers(value)], (type(value).__name__, type(value).__module__) in NAMESPACES
    for one in left:  # which grows
        base = next((each for each in (dict, list, tuple) if is_a(one, each)), None)
        if base is not None:
            left += dict.values(one) if base is dict else base.__iter__(one)
        elif is_users(type(one)) or (type(one).__name__, type(one).__module__) in NAMESPACES:
            left += attributes_of(one).values()
        elif type(one) not in PLAIN and not issubclass(type(one), PurePath):
            return False
        if len(left) > _MOST:  # or parts that hold each other
            return False
    return (value is None or type(value) not in PLAIN) and not is_part  # of a namespace a part counts


class Content:
    """Hashes values; a subclass also takes in the code in them."""

    def __init__(self, module_name: Callable[[str], str] = name_of, lenient: bool = False) -> None:
        self.compared: Any = None  # returns what counts of a variable: nothing, or one value
        self._module_name = module_name
        self._lenient = lenient  # any value without content drops out
        self._modes: set[str] = set()  # attributes of layers of torch that do not count
        self._come_later: set[str] = set()  # modules whose functions and classes are missing as a run begins
        # by identity: in which order objects were met, since a part may be met again in itself or elsewhere
        self._met: dict[int, tuple[int, Any]] = {}
        self._depth, self._waiting = 0, list[tuple[Any, str]]()  # objects too deep in others for now
        self._known: dict[int, tuple[str, Any]] = {}
        # by identity: a class's hash, its bases that are the user's, the names of all, and of their modules, and the
        # attributes that do not count
        self._classes: dict[int, tuple[bytes, list[type], set[str], set[str], type]] = {}

    def add(self, thing: Any) -> None:
        """Take in a function, a class, a module, or the dotted name of one."""

    def hash(self, value: Any, place: str) -> str:
        """Return the hash of a value."""
        if id(value) not in self._known:
            try:
                digest = self._of(value, place)
                for one, where in self._waiting:  # which grows
                    self._depth = 0
                    digest = _digest("deep", digest, self._content(one, where))
                found = digest.hex()
            except RecursionError:
                if not self._lenient:
                    raise NoContentError(f"{place} is nested too deeply to be compared") from None
                found = "deep"
            finally:
                self._depth, self._met, self._waiting = 0, {}, []
            self._known[id(value)] = found, value
        return self._known[id(value)][0]

    def _of(self, value: Any, place: str) -> bytes:
        kind = type(value)
        if kind in PLAIN:
            return self._inside(kind.__name__, _INSIDE[kind](value), place)
        if issubclass(kind, (FunctionType, type, ModuleType, *_OF_C)) or kind.__name__ == _CYTHON:
            return self._of_code(value, place)
        if id(value) in self._met:
            return _digest("again", str(self._met[id(value)][0]).encode())
        if kind not in (tuple, frozenset):  # of these nobody can tell whether there are one or two
            self._met[id(value)] = len(self._met), value
        if self._depth == _DEEP:
            self._waiting.append((value, place[:_DEEP]))
            return _digest("later")
        self._depth += 1
        digest = self._content(value, place)
        self._depth -= 1
        return digest

    def _content(self, value: Any, place: str) -> bytes:
        kind = type(value)
        if kind in _INSIDE:
            return self._inside(kind.__name__, _INSIDE[kind](value), place)
        if issubclass(kind, PurePath):
            return _digest("path", PurePath.__str__(value).encode())
        if (other := _instead(value, kind)) is not value:
            return self._of(other, place)
        base = next((each for each in kind.__mro__ if each in _INSIDE), None)
        inside = self._inside(base.__name__, _INSIDE[base](value), place) if base is not None else b""
        return self._object(value, kind, place, inside)

    def _inside(self, name: str, inside: Any, place: str) -> bytes:
        if isinstance(inside, (bytes, str)):
            text = inside if isinstance(inside, bytes) else inside.encode()
            return _digest(name, hashlib.sha256(text).digest())  # it may be long: no copy
        if isinstance(inside, dict):
            if type(inside.get("_target_")) is str:
                self.add(inside["_target_"])
            inside = self._without_execution(inside)
        flat = [*inside, *(inside.values() if isinstance(inside, dict) else ())]
        if PLAIN.issuperset(map(type, flat)):  # all at once, a hundred times as fast
            flat = sorted(map(marshal.dumps, flat, repeat(0))) if isinstance(inside, set) else flat
            return _digest(f"plain {name}", marshal.dumps(flat, 0))  # of this version: no references
        if isinstance(inside, set):
            met, depth, found = self._met, self._depth, []
            if depth < -_SETS:  # of objects that hold each other in sets there would be no end of ways
                return _digest(name, str(len(inside)).encode())
            for one in filterfalse(self._comes_later, inside):  # in no order: each by itself
                self._met, self._depth = dict(met), min(depth, 0) - (1 << 30)
                found.append(self._of(one, f"an element of {place}"))
            self._met, self._depth = met, depth
            return _digest(name, *sorted(found))
        if isinstance(inside, dict):
            pairs = [pair for pair in inside.items() if name == _OWN or not self._comes_later(pair[1])]
            placed = [each for key, one in pairs for each in ((key, place), (one, f"{place}.{key}"))]
        else:
            here = [one for one in inside if name != "list" or not self._comes_later(one)]
            placed = [(one, f"{place}[{at}]") for at, one in enumerate(here)]
        return _digest(name, *[self._of(*each) for each in placed])

    def _without_execution(self, entries: dict[Any, Any]) -> dict[Any, Any]:
        how = [name for name in EXECUTION if name in entries] if self.compared else []
        # the number of a device may be data
        how = [name for name in how if name[:6] != "device" or not is_a(entries[name], int)]
        out = {name for name in how if not self.compared(name, entries[name])}
        return {key: one for key, one in entries.items() if key not in out} if out else entries

    def _comes_later(self, value: Any) -> bool:
        return is_a(value, (FunctionType, type)) and module_of(value) in self._come_later

    def _of_code(self, value: Any, place: str) -> bytes:
        self.add(value)
        owner = getattr(value, "__objclass__", value) if is_a(value, _OF_C) else value
        module = module_of(owner)
        read = type.__getattribute__ if is_a(value, type) else getattr
        name = module if is_a(value, ModuleType) else read(value, "__qualname__")
        full = f"{self._module_name(module)}:{name}".encode()
        if is_a(value, type) and "<" in name and is_users(value) and id(value) not in self._met:
            # a function may make several of that name
            self._met[id(value)] = len(self._met), value
            own = {key: one for key, one in vars(value).items() if key[:2] != "__" or is_a(one, FunctionType)}
            return _digest("code", full, self._inside(_OWN, own, place), self._of(value.__bases__, place))
        if not is_a(value, FunctionType):
            held = value.__self__ if is_a(value, _BOUND) else None  # such as `TABLE.get`
            is_free = is_a(held, (ModuleType, type, types.NoneType))
            return _digest("code", full, b"" if is_free else self._of(held, place))
        full += b" " + value.__code__.co_name.encode()
        known = getattr(value.__code__, "co_qualname", "")  # since Python 3.11
        is_named = "<" not in value.__qualname__ + known and (known or "__wrapped__" not in vars(value))
        is_named = is_named and value.__name__ != "_"  # as those are called that a decorator registers
        if id(value) in self._met or (is_named and (is_users(value) or not value.__closure__)):
            return _digest("code", full)  # its name says which it is, and its code counts there
        self._met[id(value)] = len(self._met), value
        said = facts_of(value.__code__).hash.encode() if is_users(value) else b""
        around = [vars(value).get(name) for name in ("__wrapped__", "raw_function")]  # pydantic's
        given = given_to(value, "", self.compared).values()
        return _digest("code", full, said, self._of((*given, *around), place))

    def _object(self, value: Any, kind: type, place: str, inside: bytes) -> bytes:
        if id(kind) not in self._classes:
            names = {base.__module__ for base in kind.__mro__}
            names |= {f"{base.__module__}.{base.__name__}" for base in kind.__mro__}
            users = [*filter(is_users, kind.__mro__)]
            self._classes[id(kind)] = self._of(kind, place), users, names, _uncounted(kind), kind
        digest, users, names, out, _ = self._classes[id(kind)]
        out = out | self._modes if OF_LAYERS in names else out
        if names & _NOTHING or (self._lenient and names & _ONCE):
            return _digest("nothing", digest if users else kind.__qualname__.encode())
        attributes = attributes_of(value)
        is_stream = not users and (hasattr(kind, "__next__") or kind.__module__ in ("socket", "_socket"))
        taken = None if inside or is_stream else _taken(value, kind, users, bool(attributes))
        if taken is not None and not users:
            return self._of(("object", kind, *taken), place)
        is_empty = not (inside or taken or attributes or kind.__flags__ & _MADE_BY_PYTHON or kind is object)
        if is_empty or is_stream:
            if not self._lenient:
                raise NoContentError(_NO_CONTENT.format(place, kind))
            return _digest("nothing", digest)
        if (kind.__name__, kind.__module__) in NAMESPACES and self.compared:
            attributes = {name: one for name, part in attributes.items() for one in self.compared(name, part)}
        own = self._inside(_OWN, {name: one for name, one in attributes.items() if name not in out}, place)
        return _digest("object", inside, digest, self._of(taken, place), own)


def _uncounted(kind: type) -> set[str]:
    # attributes that are another one at each start, and those in which cached properties keep their values
    found = {*_OF_START.get(kind.__module__, ())}
    for base in kind.__mro__:
        makers = [vars(base).get(name) for name in ("__init__", "__post_init__")]
        found.update(*(fleeting_in(one.__code__) for one in makers if isinstance(one, FunctionType)))
        for name, one in vars(base).get("__dataclass_fields__", {}).items():
            found |= {name} if getattr(one.default_factory, "__name__", "") in FLEETING_NAMES else set()
        found.update(name for name, one in vars(base).items() if type(one) is cached_property)
    return found


def _instead(value: Any, kind: type) -> Any:
    torch = loaded("torch")
    if kind is MappingProxyType:
        return dict(value)
    if kind in _VIEWS or (is_ours(kind.__module__) and issubclass(kind, Sequence)):  # the results of a run
        return list(value)
    if kind in WRAPPERS:
        return (kind.__name__, *[getattr(value, name) for name in WRAPPERS[kind]])
    # a proxy made in C, such as wrapt's, stands for these
    in_c = [vars(base).get(name) for base in kind.__mro__ for name in ("__wrapped__", "_self_wrapper")]
    if slots := [slot for slot in in_c if type(slot) is types.GetSetDescriptorType]:
        return (kind.__qualname__, *[slot.__get__(value) for slot in slots])
    wrapped = own_attribute(value, "__wrapped__")
    if type(wrapped) is FunctionType and not is_users(kind) and kind is not partial:
        # an installed decorator's object, such as numba's: beside function and options it holds what a process has made
        options = own_attribute(value, "targetoptions")
        plain = sorted(options.items() if type(options) is dict else (), key=str)
        return (kind.__qualname__, wrapped, *[pair for pair in plain if type(pair[1]) in PLAIN])
    if Enum in kind.__mro__:
        own = attributes_of(value)
        return ("enum", kind, own.get("_name_"), own.get("_value_"))
    if torch is not None and issubclass(kind, torch.Tensor) and value.layout is torch.strided:
        plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        return (kind, str(value.dtype), tuple(value.shape), raw)
    return as_containers(value)


def _taken(value: Any, kind: type, users: list[type], has_attributes: bool) -> list[Any] | None:
    if issubclass(kind, BaseException):
        return [vars(BaseException)["args"].__get__(value), {} if users else attributes_of(value)]
    theirs = [base for base in kind.__mro__[:-1] if base not in users and base.__module__ != OF_LAYERS]
    ways = [vars(base)[name] for base in theirs for name in _PICKLING if name in vars(base)]
    reduce: Any = copyreg.dispatch_table.get(kind) or (lambda one: one.__reduce_ex__(4))
    if users:  # nothing that calls what they override
        if not ways or is_a(ways[0], FunctionType):
            return None
        reduce = ways[0]
    elif has_attributes and not ways and kind not in copyreg.dispatch_table:
        return None
    try:
        taken = reduce(value)
    except Exception:  # it cannot be taken apart: of an object with attributes, these count alone
        return None
    parts = taken if isinstance(taken, tuple) else [taken]  # a name in its module, or a state
    return [list(part) if at > 2 and part is not None else part for at, part in enumerate(parts)]


def used(value: Any, name: str, code: CodeType, compared: Any) -> Any:
    """Return what code uses of a variable's value: of parsed arguments those that it reads, else all of it."""
    kind, facts = type(value), facts_of(code)
    if (kind.__name__, kind.__module__) not in NAMESPACES:
        return value
    is_whole = name in facts.bare | facts.around or "__dict__" in facts.names
    read = {one: part for one, part in sorted(vars(value).items()) if is_whole or one in facts.names}
    return {one: left for one, part in read.items() for left in (compared(one, part) if compared else [part])}


def given_to(function: FunctionType, called: str = "", compared: Any = None) -> dict[str, Any]:
    """Return a function's defaults, and what it reads of the function around it."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    given = {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}
    found = {
        f"the default {name} of {called}": left
        for name, one in given.items()
        for left in (compared(name, one) if compared else [one])
    }
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            one = None if name == "__class__" else cell.cell_contents
        except ValueError:  # not bound yet
            continue
        found[f"{name} of {called}"] = used(one, name, code, compared)
    return found


def _digest(kind: str, *parts: bytes) -> bytes:
    said = [len(part).to_bytes(8, "big") + part for part in parts]  # "ab", "c" is not "a", "bc"
    return hashlib.sha256(b"".join([kind.encode(), *said])).digest()
