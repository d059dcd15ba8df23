"""Text that goes into a job's script, with a driver and in detached runs; times and sizes as people write them.

directives     a line each: no line break or other control character in any option
worker command   each word is quoted: `$NAME` is still expanded on the node, nothing else is
prologue       the user's own shell code, as it is
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

from espnet3.parallel.checks import is_number

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_VARIABLE = re.compile(r"(\$(?:\w+|\{\w+\}))", re.ASCII)
_SPECIAL = re.compile(r'([\\"$`])')

BREAKS = (
    "holds a line break or another control character, which would begin a line of its own in the job's script"
)


def breaks_lines(value: Any) -> bool:
    """Return whether a value, or anything in it, holds a line break or another control character."""
    if isinstance(value, str):
        return _CONTROL.search(value) is not None
    if isinstance(value, Mapping):
        return any(breaks_lines(each) for pair in value.items() for each in pair)
    return isinstance(value, (list, tuple)) and any(map(breaks_lines, value))


def quoted_word(text: str) -> str:
    """Return text as one word of a shell, in which only variables such as `$TMPDIR` and `${USER}` are expanded."""
    if shlex.quote(text) == text:
        return text
    parts = _VARIABLE.split(text)
    parts[::2] = [_SPECIAL.sub(r"\\\1", part) for part in parts[::2]]  # between the variables
    return f'"{"".join(parts)}"'


def quoted_words(text: str) -> list[str]:
    """Return the words of a text, as a shell would separate them, each quoted."""
    return [quoted_word(word) for word in shlex.split(text)]


_ENDLESS = ("unlimited", "infinite", "infinity")
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_WORDS = re.compile(
    r"(\d+(?:\.\d+)?)\s*(d(?:ays?)?|h(?:ours?|rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)(?![a-z])"
)
_SIZE = re.compile(r"\d+(\.\d+)?\s*([kmgtp]i?)?b?", re.IGNORECASE)


def walltime_seconds(value: Any, *, minutes_last: bool = False) -> float | None:
    """Return the seconds of a walltime such as "04:00:00", "1-12:00:00", "90m", "2 days" or "UNLIMITED" (infinity)."""
    text = str(value).strip().lower()
    if text in _ENDLESS:
        return math.inf
    if re.fullmatch(r"\d+-(\d+:){0,2}\d+|(\d+:){1,3}\d+", text):
        numbers = [int(number) for number in re.split("[-:]", text)]
        if "-" in text:  # SLURM: days-hours[:minutes[:seconds]]
            numbers = [*numbers, 0, 0][:4]
        elif minutes_last and len(numbers) == 2:
            numbers.append(0)
        return sum(n * w for n, w in zip(reversed(numbers), (1, 60, 3600, 86400), strict=False))
    found = _WORDS.findall(text)
    if found and not re.sub(r"[\s,]|and", "", _WORDS.sub("", text)):
        return round(sum(float(number) * _UNITS[unit[0]] for number, unit in found))
    return None


def clock(seconds: float, *, writes_seconds: bool = True) -> str:
    """Write seconds as "HH:MM:SS", or as "HH:MM" (rounded up) without `writes_seconds`."""
    seconds = int(seconds)
    if not writes_seconds:
        minutes = -(-seconds // 60)
        return f"{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def is_size(value: Any) -> bool:
    """Return whether it is a size in bytes, such as "32GB" or 34359738368."""
    if is_number(value):
        return bool(value >= 1 << 20)  # "memory: 32" means 32 bytes to Dask alone
    text = value.strip() if isinstance(value, str) else ""
    return _SIZE.fullmatch(text) is not None and not text.isdigit()


def is_memory_limit(value: Any) -> bool:
    """Return whether it is a limit of a local worker's memory: a size, a share of all memory, "auto", or 0 for none."""
    if isinstance(value, str):
        text = value.strip().lower()
        return text in ("auto", "0") or is_size(text) or (text.isdigit() and is_size(int(text)))
    return is_number(value) and (0 <= value <= 1 or is_size(value))
