"""The `ItemError` of an item is also an instance of what the item raised, so that `except ValueError` catches it.

For each type of exception a class is made of it and `ItemError`. It is called `ItemError` as well, and looks like it.
"""

from __future__ import annotations

import types
from contextlib import suppress
from functools import lru_cache
from typing import Any

from espnet3.parallel.errors import ItemError
from espnet3.parallel.records import ItemFailure

# `raise` in a generator turns these two into another error
_NOT_TO_RAISE = (StopIteration, StopAsyncIteration)
# Fields that say more about the message, which a traceback would print in place of ours or beside it
_OF_THE_MESSAGE = (SyntaxError, NameError, AttributeError)
_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_OWN = frozenset({"failure", "index", "worker", "args", "__notes__"})
_MOST_TYPES = 256  # classes kept: a program that makes exception types as it goes must not grow by it
_KIND = "_espnet3_kind"


def item_error_of(error: BaseException, failure: ItemFailure) -> ItemError:
    """Return an item's `ItemError` for the exception it raised; that is its cause.

    It is an instance of the exception's type too, with its attributes, unless the type is not an `Exception`, or cannot
    be combined with another class (other C fields or `__slots__`, attributes that cannot be set, ...).
    """
    kind = getattr(type(error), _KIND, type(error))  # of an item in whose own run an item has failed
    found: ItemError | None = None
    if _is_combined(kind):
        with suppress(Exception):  # user classes may raise anything when one derives from them
            found = _rebuilt(kind, failure, _fields(error), dict(vars(error)))
    found = found if found is not None else ItemError(failure)
    found.__cause__ = error
    return found


def _is_combined(kind: type[BaseException]) -> bool:
    known = issubclass(ItemError, kind) or issubclass(kind, ItemError)
    return not known and issubclass(kind, Exception) and not issubclass(kind, _NOT_TO_RAISE)


@lru_cache(_MOST_TYPES)
def _combined(kind: type[Any]) -> type[ItemError]:
    """Return the class of both."""

    def body(names: dict[str, Any]) -> None:
        names.update(_LOOKS)
        names[_KIND] = kind

    made: Any = types.new_class(ItemError.__name__, (ItemError, kind), exec_body=body)
    return made  # type: ignore[no-any-return]  # new_class knows no more than that it is a class


def _reduced(error: ItemError, _: object = None) -> Any:
    attributes = {name: value for name, value in vars(error).items() if name not in _OWN}
    state = {"__notes__": error.__notes__} if "__notes__" in vars(error) else None
    return _rebuilt, (getattr(type(error), _KIND), error.failure, _fields(error), attributes), state


# What both classes may have, and an `ItemError` is to have as it always has it.
_LOOKS: dict[str, Any] = {
    "__doc__": ItemError.__doc__,
    "__module__": ItemError.__module__,
    "__qualname__": ItemError.__qualname__,
    "__str__": ItemError.__str__,
    "__repr__": BaseException.__repr__,
    "__reduce_ex__": _reduced,
    "__reduce__": _reduced,  # what tblib asks for, which distributed has pickle exceptions of the time of its import
    "__eq__": object.__eq__,
    "__hash__": object.__hash__,
}


def _fields(error: BaseException) -> dict[str, Any]:
    """Return what an exception's constructor has put into fields that are in no `__dict__`: errno, filename, ..."""
    if isinstance(error, _OF_THE_MESSAGE):
        return {}
    names = {
        name
        for base in type(error).__mro__
        if base not in (BaseException, Exception, object)
        for name, one in vars(base).items()
        if isinstance(one, _FIELDS) and not name.startswith("__")
    }
    return {name: getattr(error, name) for name in sorted(names - _OWN) if hasattr(error, name)}


def _rebuilt(
    kind: type[Any], failure: ItemFailure, fields: dict[str, Any], attributes: dict[str, Any]
) -> ItemError:
    """Make the error of an item; also where it is unpickled."""
    made: Any = _combined(kind)  # type: ignore[arg-type]  # mypy takes a class for one of its instances
    error: ItemError = made(failure)
    for name, value in fields.items():
        with suppress(AttributeError, TypeError):  # one that is read only, or that takes no None
            setattr(error, name, value)
    vars(error).update({name: value for name, value in attributes.items() if name not in _OWN})
    if isinstance(error, SyntaxError):
        error.msg = ItemError.__str__(error)  # a traceback prints this in place of the text
    return error
