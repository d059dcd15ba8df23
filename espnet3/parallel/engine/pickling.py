"""Pickle by value what the caller's own script defines, and keep the identity of its classes.

cloudpickle sends such a class whole. On the way back it would write the worker's copy of every
method and attribute over the class it came from, and it makes classes with `__slots__` without
them, so that their instances cannot return. Here a class that comes home is the one that left.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import re
import sys
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec
from itertools import accumulate
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import cloudpickle

from espnet3.parallel.checks import is_installed, own_attribute
from espnet3.parallel.dask_compat import code_with_file, is_class_by_value
from espnet3.parallel.engine.lines import LineStream
from espnet3.parallel.messages import brief

_tokens: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
_home: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
_GENERIC = {"registry", "dispatch", "register", "__wrapped__"}  # attributes of a `functools.singledispatch`
_looked_for: dict[str, tuple[Any, bool]] = {}  # modules by name, and whether an import leads to them


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle is untyped
    """A cloudpickle `Pickler` that keeps the identity of classes on the way back and the files of code.

    It pickles `functools` caches and generic functions, too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._of_main: dict[str, Any] = {}  # functions of the caller's `__main__`

    def reducer_override(self, obj: Any) -> Any:
        """Reduce an object; a class that is pickled by value takes its token along."""
        if isinstance(obj, _NAMED) and (found := self._named(obj)):
            return found
        if type(obj) is CodeType:  # tracebacks name its file, and show its lines
            return code_with_file(self, obj)
        if isinstance(obj, (io.TextIOBase, LineStream)) and (name := _standard_stream(obj)):
            return getattr, (sys, name)
        if isinstance(obj, io.TextIOWrapper):
            # cloudpickle would send its whole text, as a StringIO
            raise TypeError(f"cannot pickle the open file {obj.name!r:.200}; its path can be sent")
        if isinstance(obj, memoryview):  # cloudpickle would send its bytes, which are something else
            raise TypeError("cannot pickle a memoryview; bytes(...) of it can be sent")
        if type(obj) is functools.cached_property:  # holds a lock before Python 3.12
            return functools.cached_property, (obj.func,), {"attrname": obj.attrname}
        reduced = super().reducer_override(obj)
        if not is_class_by_value(obj, reduced):
            return reduced
        make, args, state, _, _, fill = reduced
        names = obj.__qualname__, _is_in_main(obj)
        made_from = (_token_of(obj), make, _with_slots(obj, args), *names)
        return _arrive, made_from, state, None, None, functools.partial(_fill, fill)

    def _named(self, obj: Any) -> tuple[Any, ...] | None:
        if isinstance(obj, MainNames):
            return _put_into_main, (_token_of(MainNames), self._of_main, _script())
        if isinstance(obj, ModuleType):
            _is_found(obj.__name__)
            return None
        if not isinstance(obj, type) and _is_in_main(obj):
            self._of_main[obj.__qualname__] = obj
        is_found = _is_found(obj.__module__) and "<locals>" not in obj.__qualname__
        if is_found or isinstance(obj, type):
            return None
        if isinstance(obj, functools._lru_cache_wrapper):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        if not vars(obj).keys() >= _GENERIC:
            return None
        state = vars(obj)["__wrapped__"], dict(vars(obj)["registry"])
        return _generic, (obj.__name__, obj.__qualname__, obj.__module__), state, None, None, _register


class MainNames:
    """Puts those functions of the caller's `__main__` that a run sends into the worker's; it stands last.

    There, code of an item that pickles them by their names finds them, as in the caller's process. Classes are put
    there wherever they arrive.
    """


_NAMED = (FunctionType, type, ModuleType, functools._lru_cache_wrapper, MainNames)


def dumps(obj: Any) -> bytes:
    """Pickle an object for `pickle.loads` in another process; parts that cannot be imported there go by value."""
    file = io.BytesIO()
    Pickler(file, 5).dump(obj)
    return file.getvalue()


def culprit(value: Any, name: str, inside: tuple[Any, ...] = ()) -> str:
    """Locate the part of a value that cannot be pickled, with its type; "" where all can be."""
    if any(value is each for each in inside):
        return ""
    try:
        dumps(value)
    except Exception:  # pickling raises what the value's own class raises
        found = (culprit(part, label, (*inside, value)) for label, part in _parts(value, name))
        return next(filter(None, found), f"{name} (of type {type(value).__qualname__})")
    return ""


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, FunctionType):
        with suppress(ValueError):  # a cell is empty so far
            used = inspect.getclosurevars(value)
            yield from sorted({**used.globals, **used.nonlocals}.items())
    elif isinstance(value, Mapping):
        yield from ((f"{name}[{brief(key, 80)}]", part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}[{n}]", part) for n, part in enumerate(value))
    elif not isinstance(value, type):
        yield from ((f"{name}.{each}", part) for each, part in getattr(value, "__dict__", {}).items())


def _standard_stream(obj: Any) -> str:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if obj is stream or (isinstance(stream, LineStream) and obj is stream.stream):
            return name
    return ""


def _is_found(name: Any) -> bool:
    module = sys.modules.get(name) if isinstance(name, str) else None
    if not isinstance(module, ModuleType) or name == "__main__":  # cloudpickle sends __main__ by value itself
        return False
    known = _looked_for.get(name)
    if known is None or known[0] is not module:
        known = _looked_for[name] = module, _leads_to(name, own_attribute(module, "__file__"))
        if not known[1]:
            cloudpickle.register_pickle_by_value(module)
    return known[1]


def _leads_to(name: str, file: Any) -> bool:
    if not isinstance(file, str) and "." in name:  # made by the package that it is in
        return True
    if isinstance(file, str) and is_installed(file):
        return True
    folders: Any = None
    origin: str | None = None
    for part in accumulate(name.split("."), "{}.{}".format):
        found = (finder.find_spec(part, folders) for finder in sys.meta_path)
        spec = next(filter(None, found), None)
        if spec is None:
            return False
        # nothing is below a module that is no package
        folders, origin = spec.submodule_search_locations or [], spec.origin
    return not isinstance(file, str) or origin is None or os.path.realpath(origin) == os.path.realpath(file)


def _cached(func: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(func)


def _generic(name: str, qualname: str, module: str) -> Any:
    def unknown(*_: object) -> None: ...

    unknown.__name__, unknown.__qualname__, unknown.__module__ = name, qualname, module
    return functools.singledispatch(unknown)


def _register(made: Any, state: tuple[Any, dict[type, Any]]) -> None:
    functools.update_wrapper(made, state[0])
    for kind, function in state[1].items():
        made.register(kind, function)


def _script() -> tuple[str, str]:
    # the file of the caller's script, and its name as a module
    main = sys.modules["__main__"]
    file, spec = own_attribute(main, "__file__"), own_attribute(main, "__spec__")
    return os.path.abspath(file) if isinstance(file, str) else "", spec.name if spec else ""


def stand_for_script(file: str, name: str = "") -> None:
    """Have children that `multiprocessing` spawns from this process load the caller's script, if it has a guard."""
    main: Any = sys.modules["__main__"]
    with suppress(OSError), open(file, "rb") as source:
        if re.search(rb"^if\b.*\b__name__\b", source.read(), re.MULTILINE):
            main.__file__, main.__spec__ = file, ModuleSpec(name, None) if name else None


def _put_into_main(token: str, values: dict[str, Any], script: tuple[str, str]) -> MainNames:
    if token not in _home:  # else this is the caller's own process
        for value in values.values():
            _show_in_main(value)
        stand_for_script(*script)
    return MainNames()


def _is_in_main(obj: Any) -> bool:
    main = sys.modules["__main__"] if obj.__module__ == "__main__" else None
    return functools.reduce(own_attribute, obj.__qualname__.split("."), main) is obj


def _show_in_main(value: Any) -> None:
    place: Any = sys.modules["__main__"]
    *above, name = value.__qualname__.split(".")
    for part in above:
        if own_attribute(place, part) is None:
            setattr(place, part, SimpleNamespace())
        place = own_attribute(place, part)
    if own_attribute(place, name) is not value:
        setattr(place, name, value)


def _with_slots(cls: type, args: Any) -> Any:
    slots = vars(cls).get("__slots__")
    if slots is None or issubclass(cls, tuple):  # a tuple's are empty, and NamedTuple writes its own
        return args
    return tuple({**arg, "__slots__": slots} if isinstance(arg, dict) else arg for arg in args)


def _token_of(cls: type) -> str:
    token = _tokens.get(cls)
    if token is None:  # two threads may each give it one: both lead home
        token = _tokens[cls] = uuid.uuid4().hex
        _home[token] = cls
    return token


def _arrive(token: str, make: Callable[..., type], args: tuple[Any, ...], name: str, in_main: bool) -> type:
    own = _home.get(token)
    if own is not None:
        return own
    cls = make(*args)
    _tokens[cls] = token
    cls.__qualname__ = name
    if in_main:
        _show_in_main(cls)
    return cls


def _fill(fill: Callable[[type, Any], Any], cls: type, state: Any) -> None:
    if _home.get(_tokens.get(cls, "")) is not cls:  # else it has come home
        fill(cls, state)
