"""Where a setting came from, and how a mistake in it is reported."""

from __future__ import annotations

from dataclasses import dataclass

from espnet3.parallel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Origin:
    """A place in a file.

    Attributes:
        file: The file as the user named it.
        line: Its line, from 1; 0 where it is no file, such as an option on the command line.
    """

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Setting:
    """A value as it was written, and where."""

    value: str
    origin: Origin


def mistake(origin: Origin, text: str) -> ConfigError:
    """Return the error for something wrong at a place: what, the value and what to do."""
    return ConfigError(f"{origin}: {text}")
