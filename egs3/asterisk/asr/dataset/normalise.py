"""Transcripts as they are spoken: lower-case words, no digits, no signs."""

from __future__ import annotations

import re

# fmt: off
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
# fmt: on

# Read differently from what the general rules would make of them. Longer entries come first.
_SPOKEN = (
    ("www.asterisk.org", "w w w dot asterisk dot org"),
    ("28.8", "twenty eight point eight"),
    ("H.323", "h three two three"),
    ("A.M.", "a m"),
    ("P.M.", "p m"),
    ("3D", "three d"),
    ("*", "star"),
    ("#", "pound"),
)
_STAGE_DIRECTIONS = re.compile(r"\[.*?\]|\(.*?\)|<.*?>")  # [tones], (1 second of silence), <beep>
_NUMBER = re.compile(r"[0-9]+")
_NO_WORD = re.compile(r"[^a-z']+")
_QUOTE = re.compile(r"(?<![a-z])'|'(?![a-z])")  # an apostrophe counts within a word only


def normalise(text: str) -> str:
    """Return the spoken words of a prompt's transcript, lower case, one space between them.

    The result is empty where nothing is said.
    """
    text = _STAGE_DIRECTIONS.sub(" ", text)
    for written, spoken in _SPOKEN:
        text = text.replace(written, f" {spoken} ")
    text = _NUMBER.sub(lambda match: f" {_say(match.group())} ", text)
    text = _NO_WORD.sub(" ", text.lower())
    return " ".join(_QUOTE.sub(" ", text).split())


def _say(digits: str) -> str:
    """Say a number as the prompts do: "five hundred", but "one two three four"."""
    number = int(digits)
    if number < len(_ONES) and len(digits) <= 2:
        return _ONES[number]
    if len(digits) == 3 and number % 100 == 0:
        return f"{_ONES[number // 100]} hundred"
    return " ".join(_ONES[int(digit)] for digit in digits)
