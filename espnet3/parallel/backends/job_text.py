"""The one rule for text that goes into a job's script, with a driver and in detached runs.

directives     a line each: no line break or other control character in any option
worker command   each word is quoted: `$NAME` is still expanded on the node, nothing else is
prologue       the user's own shell code, as it is
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

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
    return (
        '"' + "".join(part if at % 2 else _SPECIAL.sub(r"\\\1", part) for at, part in enumerate(parts)) + '"'
    )


def quoted_words(text: str) -> list[str]:
    """Return the words of a text, as a shell would separate them, each quoted."""
    return [quoted_word(word) for word in shlex.split(text)]


def word_problem(text: Any) -> str:
    """Return why a text cannot be taken apart into words; "" if it can."""
    try:
        shlex.split(str(text))
    except ValueError as error:
        return f"cannot be read as words of a shell: {str(error).lower()}"
    return ""
