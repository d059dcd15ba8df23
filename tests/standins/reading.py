"""Options of submission commands: from the command line and from the script's directives."""

import re
import shlex
import sys
from collections.abc import Iterable
from typing import NoReturn


def refuse(command: str, text: str, code: int = 1) -> NoReturn:
    """Print what is wrong to standard error, and exit."""
    print(f"{command}: {text}", file=sys.stderr)
    sys.exit(code)


def options(
    command: str, words: list[str], with_value: Iterable[str], flags: Iterable[str] = ()
) -> tuple[dict[str, list[str]], list[str]]:
    """Return options with their values, and the words after them; an unknown option is refused."""
    found: dict[str, list[str]] = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        if word in flags:
            found.setdefault(word, []).append("")
            at += 1
        elif word in with_value:
            if at + 1 >= len(words):
                refuse(command, f"option requires an argument -- '{word[1:]}'", 2)
            found.setdefault(word, []).append(words[at + 1])
            at += 2
        else:
            refuse(command, f"illegal option {word}", 2)
    return found, words[at:]


def directives(text: str, mark: str) -> list[str]:
    """Return the words of a script's directive lines."""
    words: list[str] = []
    for line in text.splitlines():
        if line.startswith(mark):
            words += shlex.split(line[len(mark) :], comments=False)
    return words


def indices(spec: str) -> list[int] | None:
    """Return the numbers of "1-4", "0-8:2" or "1,3,5-6"; None if it is none of these."""
    found: list[int] = []
    for part in spec.split(","):
        numbers = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if numbers is None:
            return None
        first, last, step = int(numbers[1]), int(numbers[2] or numbers[1]), int(numbers[3] or 1)
        found += range(first, last + 1, step)
    return found


def seconds(clock: str, *, minutes_last: bool = False) -> float | None:
    """Return the seconds of "HH:MM:SS", "MM:SS" or "SS" (or, for LSF, "HH:MM" and "MM")."""
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts):
        return None
    total = 0
    for part in parts:
        total = total * 60 + int(part)
    return float(total * 60 if minutes_last else total)
