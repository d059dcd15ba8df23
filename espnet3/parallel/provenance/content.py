"""Any value as a hash of its content: the same for equal values in every process, and for no others.

Never by `repr`, which cuts long arrays and shows addresses. Order, type and structure count. Objects are taken apart
into their class, what they are as a text, number, container or array, and their attributes; nothing of the user's is
called for it: no property, no `__getattr__`, no `__reduce__`. What has no content, such as a lock, drops out alone.
"""

from __future__ import annotations

import hashlib
import marshal
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator
from enum import Enum
from functools import cached_property, lru_cache, partial
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from espnet3.parallel.provenance.code import code_hash
from espnet3.parallel.provenance.modules import is_users, name_of

_LONG = 1000  # elements: a longer list of simple values is hashed in one go
_SIMPLE = frozenset({bool, int, float, str, bytes, type(None)})
_CACHED = type(lru_cache(len))  # what `lru_cache` and `cache` make of a function
WRAPPERS = (staticmethod, classmethod, property, cached_property, _CACHED)
_OF_C: tuple[type, ...] = (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
# The parts of values that never decide a result, and those that are another one at each start
_NOTHING = frozenset(
    {"_thread", "threading", "logging", "_io", "io", "weakref", "_weakref", "_weakrefset", "_abc"}
)
_ONCE = frozenset(
    {"_random", "random", "numpy.random._generator", "numpy.random.mtrand", "contextvars", "_contextvars"}
)
# By type, how what is in it is read without what a subclass may have made of it
_INSIDE: dict[type, Callable[[Any], Any]] = {
    bool: repr,
    str: lambda one: str.encode(one, "utf-8", "surrogatepass"),
    int: int.__repr__,
    float: float.__repr__,
    complex: complex.__repr__,
    bytes: lambda one: b"".join([one]),
    bytearray: lambda one: b"".join([one]),
    memoryview: lambda one: [one.format, one.shape, one.tobytes()],
    list: lambda one: list(list.__iter__(one)),
    tuple: lambda one: list(tuple.__iter__(one)),
    OrderedDict: lambda one: list(OrderedDict.items(one)),
    defaultdict: lambda one: [_factory(one), list(dict.items(one))],
    dict: lambda one: list(dict.items(one)),
    MappingProxyType: lambda one: list(one.items()),
    set: lambda one: set(set.__iter__(one)),
    frozenset: lambda one: set(frozenset.__iter__(one)),
    deque: lambda one: [list(deque.__iter__(one)), _longest(one)],
    PurePath: PurePath.__str__,
}
_factory: Any = vars(defaultdict)["default_factory"].__get__
_longest: Any = vars(deque)["maxlen"].__get__


class NoContentError(TypeError):
    """A value has no content that could be compared, and may decide a result.

    Attributes:
        place: Where it stands, such as `config.words`.
        kind: The name of its type.
    """

    def __init__(self, place: str, kind: str, why: str = "") -> None:
        super().__init__(
            f"{place} is a {kind}, which has no content that could be compared{why and f' ({why})'}"
        )
        self.place = place
        self.kind = kind


def content_hash(value: Any, place: str = "value") -> str:
    """Return the hash of a value's content."""
    return Content().hash(value, place)


def as_containers(value: Any, resolve: bool = True) -> Any:
    """Return an OmegaConf config as plain containers, resolved as far as it can be; anything else as it is."""
    omegaconf = sys.modules.get("omegaconf")  # a value can only be OmegaConf's where it is loaded
    if omegaconf is None or not any(base.__module__.startswith("omegaconf.") for base in type(value).__mro__):
        return value
    if not omegaconf.OmegaConf.is_config(value):
        return value
    try:
        return omegaconf.OmegaConf.to_container(value, resolve=resolve)
    except omegaconf.errors.OmegaConfBaseException:
        # something in it cannot be resolved here (a variable that is not set): as it is written, then
        return omegaconf.OmegaConf.to_container(value, resolve=False)


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an object's own attributes, those in slots too; no property is asked."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = None
    found = dict(own) if type(own) is dict else {}
    for kind in type(value).__mro__:
        for name, slot in list(vars(kind).items()):
            if type(slot) is MemberDescriptorType and kind.__flags__ & _MADE_BY_PYTHON:
                try:
                    found[name] = slot.__get__(value)
                except AttributeError:  # no value yet
                    continue
    return found


_MADE_BY_PYTHON = 1 << 9  # of a class: a class statement, or `type`, has made it


class Content:
    """Hashes values that may share parts.

    Args:
        of_code: Takes the functions, classes and modules that are met.
        left_out: Returns the names of an object's attributes that do not count.
        lenient: What has no content drops out, whatever it is.
        later: Modules that are imported as a run goes on: what they register somewhere is not there at its beginning.
    """

    def __init__(
        self,
        of_code: Callable[[Any], Any] = lambda thing: None,
        left_out: Callable[[Any], Iterable[str]] = lambda value: (),
        lenient: bool = False,
        later: Container[str] = (),
    ) -> None:
        self._of_code = of_code
        self._left_out = left_out
        self._lenient = lenient
        self._later = later
        self._open: dict[int, int] = {}  # objects that are being hashed, for those that hold themselves
        self._lowest = sys.maxsize  # of these, the outermost that something inside has led back to
        # what has been hashed inside something that is still open and that it leads back to: its place in the order
        self._parts: dict[int, tuple[int, int]] = {}
        self._order: list[Any] = []
        self._known: dict[int, tuple[Any, bytes]] = {}

    def hash(self, value: Any, place: str) -> str:
        """Return the hash of a value."""
        try:
            return self.of(value, place).hex()
        except RecursionError:
            for each in (self._open, self._parts, self._order):
                each.clear()
            self._lowest = sys.maxsize
            if self._lenient:
                return "deep"
            raise NoContentError(place, type(value).__qualname__, "it is nested too deeply") from None

    def of(self, value: Any, place: str) -> bytes:
        """Return the digest of a value."""
        kind = type(value)
        if kind in _SIMPLE:
            return _digest(kind.__name__, repr(value).encode("utf-8", "surrogatepass"))
        key = id(value)
        if key in self._known:
            return self._known[key][1]
        if key in self._open:
            self._lowest = min(self._lowest, self._open[key])
            return _digest("again", str(len(self._open) - self._open[key]).encode())
        if key in self._parts:
            at, lowest = self._parts[key]
            self._lowest = min(self._lowest, lowest)
            return _digest("as before", str(len(self._order) - at).encode())
        outside, self._lowest, begin = self._lowest, sys.maxsize, len(self._order)
        depth = self._open[key] = len(self._open)
        try:
            found = self._whole(value, kind, place)
        finally:
            self._open.pop(key, None)
        if self._lowest >= depth:  # nothing in it leads to what it is in
            self._known[key] = (value, found)
            for at, part in enumerate(self._order[begin:]):
                del self._parts[id(part)]
                self._known[id(part)] = (part, _digest("part", found, str(at).encode()))
            del self._order[begin:]
            self._lowest = outside
        else:
            self._parts[key] = (len(self._order), self._lowest)
            self._order.append(value)
            self._lowest = min(self._lowest, outside)
        return found

    def _whole(self, value: Any, kind: type, place: str) -> bytes:
        config = as_containers(value)
        if config is not value:
            return self.of(config, place)
        if issubclass(kind, (FunctionType, type, ModuleType, *_OF_C)):
            return self._code(value, place)
        if kind in (MethodType, partial, *WRAPPERS):
            return _digest(type(value).__name__, *(self.of(part, place) for part in _wrapped(value)))
        if Enum in kind.__mro__:
            own = attributes_of(value)
            return _digest(
                "enum", *(self.of(one, place) for one in (kind, own.get("_name_"), own.get("_value_")))
            )
        table = self._table(value, kind, place)
        if table is not None:
            return table
        for base in kind.__mro__:
            if base in _INSIDE:
                inside = self._inside(base, _INSIDE[base](value), place)
                return inside if base is kind else self._object(value, kind, place, inside)
        return self._object(value, kind, place, self._native(value, kind, place))

    def _inside(self, base: type, inside: Any, place: str) -> bytes:
        name = base.__name__ if base is not MappingProxyType else "dict"
        if base in (list, tuple) and len(inside) > _LONG and all(type(one) in _SIMPLE for one in inside):
            return _digest(f"long {name}", marshal.dumps(inside, 0))  # of this version: no references
        if base in (dict, OrderedDict, MappingProxyType):
            inside = [pair for pair in inside if not self._comes_later(pair[1])]
            pairs = (
                part for key, one in inside for part in (self.of(key, place), self.of(one, f"{place}.{key}"))
            )
            return _digest(name, *pairs)
        if base in (list, set):
            inside = [one for one in inside if not self._comes_later(one)]
        if base in (set, frozenset):
            return _digest(name, *sorted(self.of(one, f"an element of {place}") for one in inside))
        if isinstance(inside, list):
            return _digest(name, *(self.of(one, f"{place}[{at}]") for at, one in enumerate(inside)))
        if base is PurePath:
            name = "path"
        return _digest(name, inside if isinstance(inside, bytes) else inside.encode("utf-8", "surrogatepass"))

    def _comes_later(self, value: Any) -> bool:
        if not isinstance(value, (FunctionType, type)) or value.__module__ not in self._later:
            return False
        self._of_code(value)
        return True

    def _code(self, value: Any, place: str) -> bytes:
        self._of_code(value)
        owner = value if isinstance(value, ModuleType) else getattr(value, "__objclass__", value)
        module = _plain_attribute(owner, "__module__") or _plain_attribute(owner, "__name__")
        name = _plain_attribute(value, "__qualname__") or _plain_attribute(value, "__name__")
        full = f"{name_of(module) if isinstance(module, str) else ''}:{name}".encode()
        if not isinstance(value, FunctionType):
            return _digest("code", full)
        full += b" " + value.__code__.co_name.encode()
        if not is_anonymous(value) and (is_users(value) or not value.__closure__):
            return _digest("code", full)  # its name says which it is, and its code counts there
        said = code_hash(value.__code__).encode() if is_users(value) else b""
        return _digest("code", full, said, *(self.of(one, place) for one in given_to(value).values()))

    def _table(self, value: Any, kind: type, place: str) -> bytes | None:
        """Return the digest of an array, tensor or table; None for anything else."""
        numpy, torch, pandas = (sys.modules.get(name) for name in ("numpy", "torch", "pandas"))
        if (
            numpy is not None
            and issubclass(kind, numpy.generic)
            and value.dtype.str[1:] in ("b1", "i8", "f8")
        ):
            return self.of(value.item(), place)  # as Python's own
        if numpy is not None and issubclass(kind, (numpy.ndarray, numpy.generic)):
            inside = self._array(value, numpy, place)
            return (
                inside
                if kind is numpy.ndarray or issubclass(kind, numpy.generic)
                else (self._object(value, kind, place, inside))
            )
        if torch is not None and issubclass(kind, torch.Tensor) and value.layout is torch.strided:
            bare = value.detach().cpu().contiguous()
            raw = bare.view(torch.uint8) if bare.dim() else bare.reshape(1).view(torch.uint8)
            said = str((value.dtype, tuple(value.shape))).encode()
            return _digest("tensor", self.of(kind, place), said, raw.numpy().tobytes())
        if pandas is not None and issubclass(kind, (pandas.DataFrame, pandas.Series, pandas.Index)):
            return _digest("table", self.of(kind, place), self.of(_cells(value, pandas), place))
        return None

    def _array(self, value: Any, numpy: Any, place: str) -> bytes:
        said = repr((value.dtype, value.shape)).encode()
        if issubclass(type(value), numpy.ma.MaskedArray):
            hidden = self._array(numpy.ma.getmaskarray(value), numpy, place)
            return _digest("masked", self._array(numpy.ma.getdata(value), numpy, place), hidden)
        bare = numpy.asarray(value).view(numpy.ndarray)
        if value.dtype.hasobject:
            return _digest("objects", said, self.of(bare.tolist(), place))
        return _digest("array", said, bare.tobytes())

    def _object(self, value: Any, kind: type, place: str, inside: bytes | None) -> bytes:
        """Return the digest of an object by its class, what is inside it, and its attributes."""
        if self._is_nothing(kind):
            return _digest("nothing", kind.__qualname__.encode())
        attributes = attributes_of(value)
        if inside is None and not attributes and not is_users(kind) and kind is not object:
            if not self._lenient and not kind.__flags__ & _MADE_BY_PYTHON:
                raise NoContentError(place, kind.__qualname__)
            return _digest("nothing", self.of(kind, place))
        out = {*self._left_out(value), *_properties_kept(kind)}
        parts = [
            part
            for name, one in attributes.items()
            if name not in out
            for part in (name.encode("utf-8", "surrogatepass"), self.of(one, f"{place}.{name}"))
        ]
        for name in out & attributes.keys():  # the code in it counts all the same
            self.of(attributes[name], place)
        return _digest("object", self.of(kind, place), inside or b"", *parts)

    def _is_nothing(self, kind: type) -> bool:
        """Tell whether objects of a class have no content: what is never part of a result, or differs at each start."""
        modules = {base.__module__ for base in kind.__mro__}
        return not modules.isdisjoint(_NOTHING) or (self._lenient and not modules.isdisjoint(_ONCE))

    def _native(self, value: Any, kind: type, place: str) -> bytes | None:
        """Return the digest of what an object keeps where Python does not see it, as pickling would take it along."""
        if self._is_nothing(kind):
            return None
        if hasattr(kind, "__next__") or kind.__module__ in ("socket", "_socket"):
            if self._lenient:
                return None
            raise NoContentError(place, kind.__qualname__)
        users = [base for base in kind.__mro__ if base.__flags__ & _MADE_BY_PYTHON and is_users(base)]
        for base in kind.__mro__[:-1]:
            for name in ("__reduce_ex__", "__reduce__"):
                reduce = vars(base).get(name)
                if reduce is None or base in users or (users and isinstance(reduce, FunctionType)):
                    continue
                return self._taken(reduce, (value, 4) if name == "__reduce_ex__" else (value,), place)
        if users or attributes_of(value):
            return None
        return self._taken(object.__reduce_ex__, (value, 4), place)

    def _taken(self, reduce: Any, args: tuple[Any, ...], place: str) -> bytes | None:
        try:
            taken = reduce(*args)
        except Exception:  # it cannot be taken apart: of an object with attributes, these count alone
            return None
        if isinstance(taken, str):  # a name in its module
            return _digest("named", taken.encode())
        _, made_with, state, items, pairs = (*taken, None, None, None, None)[:5]
        rest = [None if each is None else list(each) for each in (items, pairs)]
        return _digest("state", *(self.of(part, place) for part in (made_with, state, *rest)))


def is_anonymous(function: FunctionType) -> bool:
    """Tell whether a function's name does not say which it is: it was made in another one, or is a lambda."""
    known = getattr(function.__code__, "co_qualname", None)  # since Python 3.11
    return (
        "<" in function.__qualname__
        or "<" in (known or "")
        or (not known and "__wrapped__" in vars(function))
    )


def given_to(function: FunctionType) -> dict[str, Any]:
    """Return what a function was made with: its defaults, and the variables of the function around it that it reads."""
    names = function.__code__.co_freevars
    cells = zip(names, function.__closure__ or (), strict=True)
    held = {
        f"{name} of NAME": cell.cell_contents for name, cell in cells if name != "__class__" and is_full(cell)
    }
    both = {
        "the defaults of NAME": function.__defaults__,
        "the keyword defaults of NAME": function.__kwdefaults__,
    }
    return {**{name: one for name, one in both.items() if one}, **held}


def is_full(cell: Any) -> bool:
    """Tell whether a variable of a function around has a value yet."""
    try:
        return cell.cell_contents is not None or True
    except ValueError:  # not bound yet
        return False


def _wrapped(value: Any) -> Iterator[Any]:
    """Yield what a method, a partial function, a property or a cached function consists of."""
    names = {
        MethodType: ("__func__", "__self__"),
        partial: ("func", "args", "keywords"),
        property: ("fget", "fset", "fdel"),
        cached_property: ("func",),
        _CACHED: ("__wrapped__",),
    }.get(type(value), ("__func__",))
    yield from (getattr(value, name) for name in names)


def _plain_attribute(thing: Any, name: str) -> Any:
    return type.__getattribute__(thing, name) if isinstance(thing, type) else getattr(thing, name, None)


def _properties_kept(kind: type) -> Iterator[str]:
    """Yield the attributes in which cached properties keep their values."""
    for base in kind.__mro__:
        yield from (name for name, one in vars(base).items() if type(one) is cached_property)


def _cells(value: Any, pandas: Any) -> Any:
    """Return a table, a column or an index as plain containers and arrays."""
    if isinstance(value, pandas.DataFrame):
        columns = [value.iloc[:, at] for at in range(len(value.columns))]
        return [value.index, value.columns, columns, value.attrs]
    if isinstance(value, pandas.MultiIndex):
        return [list(value.names), [list(row) for row in value.tolist()]]
    head = [str(value.dtype), value.name]
    if isinstance(value.dtype, pandas.CategoricalDtype):
        kinds = value.dtype
        codes = (value.cat if isinstance(value, pandas.Series) else value).codes
        head += [kinds.categories, kinds.ordered, list(codes)]
    else:
        head.append(value.to_numpy())
    return [*head, value.index, value.attrs] if isinstance(value, pandas.Series) else head


def _digest(kind: str, *parts: bytes) -> bytes:
    found = hashlib.sha256(kind.encode())
    for part in parts:  # each with its length: "ab", "c" is not "a", "bc"
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()
