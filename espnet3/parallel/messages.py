"""How names, guesses and values are written in messages: short, stable, and without secrets; where warnings point."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

_WIDTH = 80  # characters of a value that a message shows
_MASK = "***"
_LONGEST_NAME = 100  # characters; for a text beyond, such as a whole file's, the search would take minutes
# not "tokenizer", which every speech config has
_SECRET_WORDS = r"pass(?:word|wd|phrase)|secret|token(?!i[sz])|credential|(?:api|access|private)[-_]?key"
_SECRET_NAME = re.compile(_SECRET_WORDS, re.IGNORECASE)
# Scheduler options hold shell text: "export WANDB_API_KEY=..." or "--token=..." names its secret there.
# The name is found as a whole and once, by a look ahead: going back over a text of thousands of letters takes minutes.
_SECRET_ASSIGNMENT = re.compile(
    rf"(?<![\w-])(?=[\w-]*?(?:{_SECRET_WORDS}))(?=([\w-]+))\1(\s*=\s*)(\S+)", re.IGNORECASE
)


def did_you_mean(word: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return " Did you mean 'x'?" for the closest known name, or an empty string.

    Args:
        word: What was written; only a string, and not one as long as a page, can have a close match.
        known: The names it may have been meant for.
        cutoff: Least similarity, from 0 (anything) to 1 (equal), as in `difflib`.
    """
    if not isinstance(word, str) or len(word) > _LONGEST_NAME:
        return ""
    from difflib import get_close_matches  # here: only a mistake asks for it

    by_lower = {name.lower(): name for name in sorted(known)}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: "1 item", "12,000 items", "2 processes"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}{'es' if noun.endswith('s') else 's'}"


def masked(value: Any, name: object = "") -> Any:
    """Return a copy of `value` in which what looks like a secret is replaced by `***`.

    Args:
        value: Any value; mappings and sequences are walked, other objects are kept.
        name: The key the value stands under: `password: x` is a secret because of its key.
    """
    if isinstance(name, str) and _SECRET_NAME.search(name) and value is not None:
        return _MASK
    if isinstance(value, str):
        return _SECRET_ASSIGNMENT.sub(rf"\1\2{_MASK}", value)
    if isinstance(value, Mapping):
        # Kubernetes writes variables as {"name": "API_TOKEN", "value": "..."}: the name is a value.
        named = value.get("name")
        return {k: masked(v, named if k == "value" else k) for k, v in value.items()}
    if isinstance(value, (Sequence, Set)) and not isinstance(value, (bytes, bytearray)):
        return [masked(item) for item in value]
    return value


def named(key: Any) -> str:
    """Return a key as part of a place in a configuration: a name as it is, anything else as a value."""
    return key if isinstance(key, str) and len(key) <= _LONGEST_NAME else shown(key)


def brief(value: Any, most: int = 200) -> str:
    """Return a value's repr, cut; a value whose repr raises is named by its type."""
    try:
        return f"{value!r:.{most}}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a message is no place to end the program
        return f"<a value of type {type(value).__name__}, whose repr raises {type(error).__name__}>"


def shown(value: Any, name: object = "") -> str:
    """Return the value as a message shows it: masked, on one line, at most 80 characters.

    A value that cannot be shown (its `repr` raises, it contains itself, a number of thousands of digits) is named by
    its type.
    """
    try:
        text = " ".join(repr(masked(value, name)).split())
    except Exception as error:  # user classes may raise anything here
        return f"<a value of type {type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a small table for a notebook's cell: names and values, texts escaped.

    Args:
        title: What it is about, for screen readers too.
        rows: Pairs of a name and a value.
    """
    from html import escape  # here: only a notebook asks for it

    cells = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(str(value))}</td></tr>'
        for name, value in rows
    )
    return f"<table><caption>{escape(title)}</caption><tbody>{cells}</tbody></table>"


def warn_caller(message: str) -> None:
    """Warn at the first line outside of this package."""
    level, frame = 1, inspect.currentframe()
    while (
        frame is not None
        and frame.f_back is not None
        and frame.f_globals.get("__name__", "").startswith("espnet3.")
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)
