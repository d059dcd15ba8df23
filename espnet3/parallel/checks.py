"""Values that users give, checked: one kind for each sort of value words every refusal of it.

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
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Protocol

from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean, shown

MOST_SECONDS = 1e9  # thirty years; systems refuse to wait for some hundred
_LONGEST_NAME = 255  # bytes, on nearly all systems
_LONGEST_PATH = 4000  # bytes; a run folder's own files need some of 4096
_STDLIB = os.path.dirname(os.__file__) + os.sep  # sysconfig would say it too, and takes a millisecond to load
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Kind(Protocol):
    """A sort of value."""

    def refusal(self, value: Any) -> str:
        """Return what the value must be, beginning with "must be", or "" where it is that."""
        ...


def argument(name: str, value: Any, kind: Kind) -> Any:
    """Return an argument of a call as a plain Python value."""
    refusal = kind.refusal(value)
    if refusal:
        raise ConfigError(f"{name} {refusal}, not {shown(value, name)}")
    return as_python(value)


def problem(place: str, value: Any, refusal: str) -> str:
    """Word what is wrong with an entry of a configuration: where, the value and a kind's refusal of it."""
    return f"{place} = {shown(value, place)}: {refusal}"


def as_python(value: Any) -> Any:
    """Return a number of another library as Python's own; anything else as it is."""
    if is_whole(value):
        return int(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class _Optional:
    """A kind whose value may be left open: `none` is how None is called where it is allowed, such as "null"."""

    none: str = ""

    def refusal(self, value: Any) -> str:
        """As `Kind`."""
        return "" if value is None and self.none else self._refusal(value)

    def _refusal(self, value: Any) -> str:
        raise NotImplementedError

    def _must_be(self, what: str, example: str = "") -> str:
        such_as = f", such as {example}" if example else ""
        return f"must be {what}{such_as}{f', or {self.none}' if self.none else ''}"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Number(_Optional):
    """A finite number within bounds; `called` names it in the message, which the bounds do otherwise."""

    above: float | None = None
    least: float | None = None
    most: float | None = None
    example: str = ""
    called: str = ""

    def _refusal(self, value: Any) -> str:
        if (
            not self._is_one(value)
            or (self.above is not None and value <= self.above)
            or (self.least is not None and value < self.least)
        ):
            return self._must_be(self.called or self._words(), self.example)
        return "" if self.most is None or value <= self.most else self._must_be(f"{self.most:,.0f} at most")

    def _is_one(self, value: Any) -> bool:
        return is_number(value)

    def _words(self) -> str:
        bound = f" above {self.above:g}" if self.above is not None else ""
        return f"a number{bound}{f', {self.least:g} or more' if self.least is not None else ''}"


class Whole(Number):
    """A whole number."""

    def _is_one(self, value: Any) -> bool:
        return is_whole(value)

    def _words(self) -> str:
        if self.least == 1:
            return "a positive integer"
        return "an integer" if self.least is None else f"an integer, {self.least} or more"


@dataclass(slots=True, eq=False, repr=False)
class Choice:
    """One of a few values.

    Attributes:
        values: The allowed values.
        quoted: Write texts among them in quotes, as in Python; a configuration file needs none.
    """

    values: tuple[Any, ...]
    quoted: bool = False

    def refusal(self, value: Any) -> str:
        """As `Kind`."""
        if isinstance(value, Hashable) and value in self.values:  # an array would be compared item by item
            return ""
        names = [f'"{each}"' if self.quoted and isinstance(each, str) else str(each) for each in self.values]
        guess = did_you_mean(value, [each for each in self.values if isinstance(each, str)])
        # in parentheses: in the message of an `argument` the value follows
        aside = f" (d{guess.removeprefix(' D')})" if guess else ""
        return f"must be {', '.join(names[:-1])} or {names[-1]}{aside}"


RESUME = Choice((True, False, "force"), quoted=True)
"""Of a run in a folder that holds one: go on, start anew, or go on whatever has changed."""


@dataclass(slots=True, eq=False, repr=False)
class Fits(_Optional):
    """A value that passes a test.

    Attributes:
        test: Returns whether a value is right.
        called: What it must be.
    """

    test: Callable[[Any], bool]
    called: str

    def _refusal(self, value: Any) -> str:
        return "" if self.test(value) else self._must_be(self.called)


class Flag(Fits):
    """True or false."""

    def __init__(self) -> None:
        super().__init__(lambda value: isinstance(value, bool), "true or false")


def names_of(what: str, none: str = "") -> Fits:
    """Return the kind of a list of texts, which are names of something."""
    return Fits(
        lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
        f"a list of names of {what}",
        none=none,
    )


@dataclass(slots=True, eq=False, repr=False)
class Location(_Optional):
    """A path of a file or folder, as text or a `Path`."""

    def _refusal(self, value: Any) -> str:
        if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
            return self._must_be("a path", '"exp/run"')
        return _unusable_path(os.fspath(value))


class Inside(Location):
    """A path of a folder in another one: relative, and without steps back."""

    def _refusal(self, value: Any) -> str:
        refusal = super()._refusal(value)
        if not refusal and (os.path.isabs(value) or os.pardir in os.fspath(value).split(os.sep)):
            return 'must be a path inside output_dir, such as "dev"'
        return refusal


def _unusable_path(path: str) -> str:
    """Return why no file system takes a path, "" where one may."""
    if "\0" in path:
        return "must be a path without the character NUL"
    try:
        longest = max(len(os.fsencode(name)) for name in path.split(os.sep))
    except UnicodeEncodeError:
        return "must be a path in this system's encoding of file names"
    if longest > _LONGEST_NAME:
        return f"must be a path whose names have {_LONGEST_NAME} bytes at most (one has {longest})"
    if len(os.fsencode(path)) > _LONGEST_PATH:
        return f"must be a path of {_LONGEST_PATH} bytes at most"
    return ""


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; True, False and 2.0 are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; True and False are not."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits: no float can hold it
        return False


class SignatureOfInit:
    """The `__signature__` of a class whose `__new__` takes anything: that of its `__init__`, for help() and editors."""

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        """Return it for a class; an object of the class has none."""
        if instance is not None:
            raise AttributeError("__signature__")
        import inspect

        whole = inspect.signature(owner.__init__)
        given = list(whole.parameters.values())[1:]
        return whole.replace(parameters=given, return_annotation=inspect.Signature.empty)


def refuse_incomplete(cls: type, base: type) -> None:
    """Raise a TypeError where a subclass lacks a method that it must have; it names one that may have been meant."""
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if not missing:
        return
    own_classes = [each for each in cls.__mro__ if each.__module__.startswith("espnet3.")]
    ours = {name for each in own_classes for name in vars(each)}  # overridden: no slips
    users = [each for each in cls.__mro__ if not issubclass(base, each)]
    own = {name for each in users for name in vars(each) if not name.startswith("__")} - ours
    guess = did_you_mean(missing[0], own)
    its = f" It has {guess.split(chr(39))[1]!r}: is that its name misspelt?" if guess else ""
    raise TypeError(f"{cls.__qualname__} must define {' and '.join(missing)}.{its}")


def is_path(value: Any) -> bool:
    """Whether a value is one of `pathlib`, which a worker's start has no other need of, and no time for."""
    module = sys.modules.get("pathlib")
    return module is not None and issubclass(type(value), module.PurePath)


def search_path() -> list[str]:
    """Return `sys.path` for another process: relative entries spelled out, and without those that Python skips.

    It skips entries that are not text, and a relative entry where the working directory is deleted.
    """
    here = working_folder()
    entries = [entry for entry in sys.path if isinstance(entry, str)]
    return [
        os.path.normpath(os.path.join(here or "", entry)) for entry in entries if here or os.path.isabs(entry)
    ]


def surroundings() -> tuple[str, dict[str, str], list[str]]:
    """Return this process's folder ("" where it is gone), environment and search path, as they are: to see a change."""
    try:
        folder = os.getcwd()
    except OSError:
        folder = ""
    return folder, dict(os.environ), list(sys.path)


def working_folder() -> str | None:
    """Return the working directory; None where it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def own_attribute(value: Any, name: str) -> Any:
    """Return an attribute that an object or a module has of its own, or None, without running any code of its class.

    An answer of `__getattr__` does not count: the method may answer to any name, load a module, or raise anything.
    """
    try:
        return object.__getattribute__(value, "__dict__").get(name)
    except AttributeError:  # of a class with slots
        return None


def is_a(value: Any, kinds: Any) -> bool:
    """Return what `isinstance` does, by the type alone: an object may say that its class is another, or raise there."""
    return issubclass(type(value), kinds)


def is_installed(file: str) -> bool:
    """Whether a module's file is of the standard library or an installed package."""
    return file.startswith(_STDLIB) or any(each in file for each in _PACKAGES)
