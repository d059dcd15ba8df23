"""Any value as a hash of its content: the same for equal values in every process, and for no others.

Never by `repr`, which cuts long arrays and shows addresses. Numbers, texts and containers by themselves; arrays,
tensors and tables by type, shape and bytes; functions and classes of the user's by their code, others by name; any
other object by its class and its state, as pickling would take it apart. What has none of these is refused.
"""

from __future__ import annotations

import copyreg
import hashlib
import marshal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from enum import Enum
from functools import cached_property, lru_cache, partial
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from espnet3.parallel.checks import is_a, is_path
from espnet3.parallel.provenance.modules import module_of

_LONG = 1000  # elements: a longer list of simple values is hashed in one go
_SIMPLE = frozenset({bool, int, float, str, bytes, type(None)})
_CACHED = type(lru_cache(len))  # what `lru_cache` and `cache` make of a function
_WRAPPED = (staticmethod, classmethod, property, cached_property)
_CODE = (FunctionType, BuiltinFunctionType, type, ModuleType, MethodType, partial, _CACHED, *_WRAPPED)
# of the standard library, whose objects never change
_FIXED = frozenset(
    {"builtins", "datetime", "decimal", "_decimal", "fractions", "ipaddress", "re", "uuid", "zoneinfo"}
)

# Says what a function, class or module of the user's is: its code. None: it is installed, its name says it.
OfCode = Callable[[Any], "str | None"]
# Returns what an object consists of; None: nobody can say what of it is there from the beginning
OfObject = Callable[[Any], "Mapping[str, Any] | None"]


class NoContentError(TypeError):
    """A value has no content that could be compared.

    Attributes:
        place: Where it stands, such as `config.model.lock`.
        kind: The name of its type.
    """

    def __init__(self, place: str, kind: str, why: str = "") -> None:
        super().__init__(
            f"{place} is a {kind}, which has no content that could be compared{why and f' ({why})'}"
        )
        self.place = place
        self.kind = kind


def by_name(value: Any) -> None:
    """The `OfCode` that takes every function, class and module for an installed one."""


def content_hash(
    value: Any, place: str = "value", of_code: OfCode = by_name, of_object: OfObject | None = None
) -> str:
    """Return the hash of a value's content."""
    try:
        return _Hasher(of_code, of_object).of(value, place).hex()
    except RecursionError:
        raise NoContentError(place, type(value).__qualname__, "it is nested too deeply") from None


def as_containers(value: Any, resolve: bool = True) -> Any:
    """Return an OmegaConf config as plain containers, resolved as far as it can be; anything else as it is."""
    omegaconf = sys.modules.get("omegaconf")  # a value can only be OmegaConf's where it is loaded
    if omegaconf is None or not issubclass(type(value), omegaconf.Container):
        return value
    try:
        return omegaconf.OmegaConf.to_container(value, resolve=resolve)
    except omegaconf.errors.OmegaConfBaseException:
        # something in it cannot be resolved here (a variable that is not set): as it is written, then
        return omegaconf.OmegaConf.to_container(value, resolve=False)


class _Hasher:
    def __init__(self, of_code: OfCode, of_object: OfObject | None) -> None:
        self._of_code = of_code
        self._of_object = of_object
        self._open: dict[int, int] = {}  # objects that are being hashed, for those that hold themselves

    def of(self, value: Any, place: str) -> bytes:
        """Return the digest of a value."""
        if value is None or is_a(value, (bool, str, int, float, complex, bytes, bytearray, memoryview)):
            return _plain(value)
        if id(value) in self._open:
            return _digest("again", str(self._open[id(value)]).encode())
        self._open[id(value)] = len(self._open)
        try:
            return self._container(value, place)
        finally:
            del self._open[id(value)]

    def _container(self, value: Any, place: str) -> bytes:
        config = as_containers(value)
        if config is not value:
            return self.of(config, place)
        kind = type(value)
        if is_a(value, Mapping) and _is_builtin(kind):
            pairs = [
                self.of(key, f"a key of {place}") + self.of(one, f"{place}.{key}")
                for key, one in value.items()
            ]
            return _digest(_kind_of_mapping(kind), *sorted(pairs))
        if kind in (list, tuple):
            if len(value) > _LONG and all(type(one) in _SIMPLE for one in value):
                # of this version: no references, no interning
                return _digest("long" if kind is list else "long tuple", marshal.dumps(list(value), 0))
            name = "sequence" if kind is list else "tuple"
            return _digest(name, *(self.of(one, f"{place}[{at}]") for at, one in enumerate(value)))
        if is_a(value, Set) and _is_builtin(kind):
            return _digest("set", *sorted(self.of(one, f"an element of {place}") for one in value))
        if is_path(value):
            return _plain(str(value))
        if is_a(value, Enum):
            return _digest("enum", self.of(kind, place), value.name.encode())
        if is_a(value, _CODE):
            return self._code(value, place)
        return self._array(value, place) or self._object(value, place)

    def _code(self, value: Any, place: str) -> bytes:
        if is_a(value, MethodType):
            return _digest("method", self.of(value.__self__, place), value.__func__.__name__.encode())
        if is_a(value, partial):
            parts = (value.func, value.args, value.keywords)
            return _digest("partial", *(self.of(part, place) for part in parts))
        if is_a(value, _CACHED):
            return _digest("cached", self.of(value.__wrapped__, place))
        if is_a(value, _WRAPPED):
            inner = [getattr(value, name, None) for name in ("__func__", "func", "fget", "fset", "fdel")]
            return _digest(type(value).__name__, *(self.of(one, place) for one in inner))
        own = self._of_code(value)
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "?")
        full = f"{module_of(value)}:{name}"
        made = self._given(value, place) if is_a(value, FunctionType) else b""
        return _digest("code", full.encode(), (own or "").encode(), made)

    def _given(self, function: FunctionType, place: str) -> bytes:
        """Return the digest of what a function was made with: defaults, and variables of the function around it."""
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        held = {name: cell.cell_contents for name, cell in cells if name != "__class__" and is_full(cell)}
        parts = (function.__defaults__, function.__kwdefaults__, held)
        return b"".join(self.of(part, f"{place} ({function.__name__})") for part in parts)

    def _array(self, value: Any, place: str) -> bytes | None:
        """Return the digest of an array, tensor or table; None for anything else."""
        numpy, torch, pandas = (sys.modules.get(name) for name in ("numpy", "torch", "pandas"))
        if numpy is not None and is_a(value, (numpy.ndarray, numpy.generic)):
            return self._numpy(value, numpy, place)
        if torch is not None and is_a(value, torch.Tensor) and value.layout is torch.strided:
            bare = value.detach().cpu().contiguous()
            raw = bare.view(torch.uint8) if bare.dim() else bare.reshape(1).view(torch.uint8)
            return _digest("tensor", str((value.dtype, tuple(value.shape))).encode(), raw.numpy().tobytes())
        if pandas is not None and is_a(value, (pandas.DataFrame, pandas.Series, pandas.Index)):
            return self._table(value, pandas, place)
        return None

    def _numpy(self, value: Any, numpy: Any, place: str) -> bytes:
        if is_a(value, numpy.ma.MaskedArray):
            inner = (numpy.ma.getdata(value), numpy.ma.getmaskarray(value))
            return _digest("masked", *(self.of(part, place) for part in inner))
        if is_a(value, numpy.generic) and value.dtype.str[1:] in ("b1", "i8"):  # as Python's own
            return self.of(value.item(), place)
        if value.dtype.hasobject:
            return _digest("objects", str(value.shape).encode(), self.of(value.tolist(), place))
        return _raw(value)

    def _table(self, value: Any, pandas: Any, place: str) -> bytes:
        kind = type(value).__name__
        if is_a(value, pandas.DataFrame):
            columns = [(name, value.iloc[:, at]) for at, name in enumerate(value.columns)]
            parts = [self.of(value.index, place), *(self.of(list(pair), place) for pair in columns)]
            return _digest(kind, *parts)
        head = self.of([str(value.dtype), value.name], place)
        rest = self.of(value.index, place) if is_a(value, pandas.Series) else b""
        return _digest(kind, head, rest, self.of(value.to_numpy(), place))

    def _object(self, value: Any, place: str) -> bytes:
        """Return the digest of an object by its class and its state."""
        kind = type(value)
        if self._of_object is not None and kind.__module__ not in _FIXED:
            parts = self._of_object(value)
            if parts is None:
                raise NoContentError(place, kind.__qualname__, "it may change as it is used")
            return _digest("record", self.of(kind, place), self.of(dict(parts), place))
        try:
            reduce = copyreg.dispatch_table.get(kind)
            taken = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        except Exception as error:  # a class may raise anything where it cannot be taken apart
            raise NoContentError(place, kind.__qualname__, str(error)) from error
        if isinstance(taken, str):  # a name in its module
            return _digest("named", self.of(kind, place), taken.encode())
        make, args, state, items, pairs = (*taken, None, None, None, None)[:5]
        state = [kind, make, args, state, _listed(items), _listed(pairs)]
        return _digest("object", *(self.of(part, f"{place} ({kind.__qualname__})") for part in state))


def _listed(items: Iterable[Any] | None) -> list[Any] | None:
    return None if items is None else list(items)


def _plain(value: Any) -> bytes:
    if is_a(value, (bytes, bytearray, memoryview)):
        return _digest("bytes", bytes(value))
    if is_a(value, str):
        return _digest("str", str.__str__(value).encode("utf-8", "surrogatepass"))
    kinds: tuple[Any, ...] = (bool, int, float, complex, type(None))
    base = next(kind for kind in kinds if is_a(value, kind))
    return _digest(base.__name__, base.__repr__(value).encode())


def _raw(value: Any) -> bytes:
    return _digest("array", str((value.dtype.str, value.shape)).encode(), value.tobytes())


def _kind_of_mapping(kind: type) -> str:
    return "mapping" if kind in (dict, MappingProxyType) else f"mapping {kind.__qualname__}"


def _is_builtin(kind: type) -> bool:
    """Whether a container is nothing but its items, so that a subclass's own attributes are not passed over."""
    return kind.__module__ in ("builtins", "collections", "types") and kind is not defaultdict


def is_full(cell: Any) -> bool:
    """Tell whether a variable of a function around has a value yet."""
    try:
        return cell.cell_contents is not None or True
    except ValueError:  # not bound yet
        return False


def _digest(kind: str, *parts: bytes) -> bytes:
    found = hashlib.sha256(kind.encode())
    for part in parts:  # each with its length: "ab", "c" is not "a", "bc"
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()
