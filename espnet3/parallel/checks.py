"""Values that users give, checked: a `Sort` of value words every refusal of it.

    Whole(least=1, example="4")     "must be a positive integer, such as 4"
    argument("batch_size", 0, ...)  raises "batch_size must be a positive integer, not 0"
    problem("n_workers", 0, ...)    returns "n_workers = 0: must be a positive integer", for a list of several

Numbers of numpy (and of other libraries that register theirs with `numbers`) are numbers, and leave as Python's own.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Hashable
from functools import partial
from numbers import Integral, Real
from typing import Any

from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean, shown

MOST_SECONDS = 1e9  # thirty years; systems refuse to wait for some hundred
_STDLIB = os.path.dirname(os.__file__) + os.sep  # sysconfig would say it too, and takes a millisecond to load
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Sort:
    """A sort of value: `must_be` describes right values for a wrong one, and gives "" for a right one."""

    def __init__(self, must_be: Callable[[Any], str], none: str = "") -> None:
        self.must_be = must_be
        self.none = none  # name of None where None is allowed, such as "null"

    def refusal(self, value: Any) -> str:
        """Return a refusal that begins with "must be", or "" for a right value."""
        what = "" if value is None and self.none else self.must_be(value)
        return what and f"must be {what}{f', or {self.none}' if self.none else ''}"


class Fits(Sort):
    """A value that passes a test; `called` describes right values."""

    def __init__(self, test: Callable[[Any], bool], called: str, none: str = "") -> None:
        super().__init__(lambda value: "" if test(value) else called, none)


class Number(Sort):
    """A finite number within bounds, perhaps whole; messages describe it by `called`, or else by the bounds."""

    def __init__(
        self,
        *,
        whole: bool = False,
        above: float = -math.inf,
        least: float = -math.inf,
        most: float = math.inf,
        example: str = "",
        unit: str = "",
        called: str = "",
        none: str = "",
    ) -> None:
        is_one = is_whole if whole else is_number
        if whole and least == 1:
            called = called or "a positive integer"
        bounds = f" above {above:g}" if above > -math.inf else ""
        bounds += f", {least:g} or more" if least > -math.inf else ""
        called = called or f"{'an integer' if whole else 'a number'}{unit}{bounds}"
        called += f", such as {example}" if example else ""

        def must_be(value: Any) -> str:
            if not is_one(value) or value <= above or value < least:
                return called
            return "" if value <= most else f"{most:,.0f} at most"

        super().__init__(must_be, none)


Whole = partial(Number, whole=True)


class Choice(Sort):
    """One of a few values; with `quoted`, texts among them are shown in quotes: a configuration file needs none."""

    def __init__(self, values: tuple[Any, ...], quoted: bool = False) -> None:
        names = [f'"{each}"' if quoted and isinstance(each, str) else str(each) for each in values]

        def must_be(value: Any) -> str:
            if isinstance(value, Hashable) and value in values:  # an array would be compared item by item
                return ""
            guess = did_you_mean(value, [each for each in values if isinstance(each, str)])
            # in parentheses: in the message of an `argument` the value follows
            aside = f" (d{guess.removeprefix(' D')})" if guess else ""
            return f"{', '.join(names[:-1])} or {names[-1]}{aside}"

        super().__init__(must_be)


FLAG = Fits(lambda value: isinstance(value, bool), "true or false")
ON_ERROR = Choice(("raise", "record"), quoted=True)
RESUME = Choice((True, False, "force"), quoted=True)  # go on, start anew, go on despite changes


def lists(kind: type) -> Callable[[Any], bool]:
    """Return the test for a list of values of a kind, none of them an empty text."""
    return lambda value: isinstance(value, list) and all(isinstance(one, kind) and one != "" for one in value)


class Location(Sort):
    """A path as text or a `Path`; `inside` another one: relative, and without steps back."""

    def __init__(self, *, inside: str = "", none: str = "") -> None:
        def must_be(value: Any) -> str:
            path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
            if not isinstance(path, str) or "\0" in path:
                return 'a path, such as "exp/run"'
            if not inside and (not path or path[0] in "~$"):
                return 'a path, such as "exp/run" (only a shell fills in ~ and $NAME; Python: os.path.expanduser)'
            if inside and (os.path.isabs(path) or os.pardir in path.split(os.sep)):
                return f'a path inside {inside}, such as "dev"'
            return ""

        super().__init__(must_be, none)


def argument(name: str, value: Any, kind: Sort) -> Any:
    """Return an argument of a call as a plain Python value."""
    refusal = kind.refusal(value)
    if refusal:
        raise ConfigError(f"{name} {refusal}, not {shown(value, name)}")
    return as_python(value)


def problem(place: str, value: Any, refusal: str) -> str:
    """Word a mistake in a configuration: its place, the value and the refusal."""
    return f"{place} = {shown(value, place)}: {refusal}"


def as_python(value: Any) -> Any:
    """Return a number of another library as Python's own; anything else as it is."""
    if is_whole(value):
        return int(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number; True, False and 2.0 are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number; True and False are not."""
    if is_whole(value):  # of any size
        return True
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def is_path(value: Any) -> bool:
    """Return whether a value is a path, without importing `pathlib`: a worker starts sooner without it."""
    return is_a(value, getattr(sys.modules.get("pathlib"), "PurePath", ()))


def loaded(name: str) -> Any:
    """Return a module that has been imported, or None: another thread may be importing it now."""
    module = sys.modules.get(name)
    return None if getattr(own_attribute(module, "__spec__"), "_initializing", False) else module


def own_attribute(value: Any, name: str) -> Any:
    """Return an attribute that an object or a module has of its own, or None, without running any code of its class.

    An answer of `__getattr__` does not count: the method may answer to any name, load a module, or raise anything.
    """
    try:
        return object.__getattribute__(value, "__dict__").get(name)
    except AttributeError:  # of a class with slots
        return None


def is_a(value: Any, kinds: Any) -> bool:
    """Return `isinstance` by the type alone: an object may pretend another class, or raise there."""
    return issubclass(type(value), kinds)


def is_installed(file: str) -> bool:
    """Return whether a module's file is of the standard library or an installed package."""
    return file.startswith(_STDLIB) or any(each in file for each in _PACKAGES)
