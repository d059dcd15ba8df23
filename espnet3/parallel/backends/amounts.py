"""Times and sizes as people write them, and as schedulers want them."""

from __future__ import annotations

import re
from typing import Any

from espnet3.parallel.checks import is_number

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_WORDS = re.compile(
    r"(\d+(?:\.\d+)?)\s*(d(?:ays?)?|h(?:ours?|rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)(?![a-z])"
)
_SIZE = re.compile(r"\d+(\.\d+)?\s*([kmgtp]i?)?b?", re.IGNORECASE)


def walltime_seconds(value: Any, *, minutes_last: bool = False) -> int | None:
    """Return the seconds of a walltime such as "04:00:00", "1-12:00:00", "90m" or "2 days"."""
    text = str(value).strip().lower()
    days, dash, rest = text.rpartition("-")
    if re.fullmatch(r"\d+", days) and dash:  # SLURM: days-hours[:minutes[:seconds]]
        parts = rest.split(":")
        if all(part.isdigit() for part in parts) and len(parts) <= 3:
            hours, minutes, seconds = (*map(int, parts), 0, 0)[:3]
            return int(days) * 86400 + hours * 3600 + minutes * 60 + seconds
        return None
    if re.fullmatch(r"\d+(:\d+){1,3}", text):
        numbers = [int(part) for part in text.split(":")]
        if minutes_last and len(numbers) == 2:
            numbers.append(0)
        weights = (1, 60, 3600, 86400)
        return sum(n * w for n, w in zip(reversed(numbers), weights, strict=False))
    found = _WORDS.findall(text)
    if found and not re.sub(r"[\s,]|and", "", _WORDS.sub("", text)):
        return round(sum(float(number) * _UNITS[unit[0]] for number, unit in found))
    return None


def clock(seconds: int, *, writes_seconds: bool = True) -> str:
    """Write seconds as "HH:MM:SS", or as "HH:MM" (rounded up) without `writes_seconds`."""
    if not writes_seconds:
        minutes = -(-seconds // 60)
        return f"{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def walltime_text(value: Any, *, minutes_last: bool, writes_seconds: bool) -> str:
    """Return a walltime as a scheduler reads it; one that is not understood stays as it is."""
    text, seconds = str(value), walltime_seconds(value, minutes_last=minutes_last)
    has_colons = ":" in text or "-" in text  # each scheduler reads those in its own way
    if seconds is None or (has_colons and writes_seconds):
        return text
    return clock(seconds, writes_seconds=writes_seconds)


def is_size(value: Any) -> bool:
    """Return whether it is a size in bytes, such as "32GB" or 34359738368."""
    if isinstance(value, bool):
        return False
    if isinstance(value, (int, float)):
        return value >= 1 << 20  # "memory: 32" means 32 bytes to Dask alone
    return (
        isinstance(value, str) and _SIZE.fullmatch(value.strip()) is not None and not value.strip().isdigit()
    )


def is_memory_limit(value: Any) -> bool:
    """Return whether it is a limit of a local worker's memory: a size, a share of all memory, "auto", or 0 for none."""
    if isinstance(value, str):
        text = value.strip().lower()
        return text in ("auto", "0") or is_size(text) or (text.isdigit() and is_size(int(text)))
    return is_number(value) and (0 <= value <= 1 or is_size(value))
