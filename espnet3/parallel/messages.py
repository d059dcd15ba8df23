"""Names, guesses and values in messages: short, stable, and without secrets; warnings that point at the caller."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

# Patterns are texts: `re` compiles one at its first use and keeps it, so that a start need not wait for all of them
_WIDTH = 80  # characters of a value in a message
_MASK = "***"
_LONGEST_NAME = 100  # characters; in a longer text, such as a whole file, a search would take minutes
# control characters except tab and newline, Unicode's line ends, and characters that turn the writing direction
_OBEYED = "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
# A name is a secret's by its words. Every speech config has tokens, so of those only a name that ends with the word
# "token" is one, unless a word before it names the kind of token: pad_token.
_WORDS = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+"
_SECRET_NAME = (
    r"pass(?:word|wd|phrase|code)|secret(?!ar)|credential|authorization|(?:api|access|private|signing|encryption)_?key"
    r"|(?:^|_)(?:pwd|(?:db|user|smtp|mysql|redis|root)_pass|(?:o|basic|http|proxy)?auth|bearer|jwt|dsn|(?:set)?cookies?"
    r"|(?:api|auth|access|hub)?token)(?:_\d+)?$"
)
_SPOKEN = (
    r"_?(?:sos|eos|bos|pad|unk|mask|cls|sep|blank|special|start|end|begin|stop|lang|language|task|next|first|last|space|sil"
    r"|oov|word|sub|per|each|max|min|num|by|sentence|segment|speaker|turn|audio|text|speech|image|video|noise|time"
    r"|timestamp|target|source|src|tgt|prompt|input|output)_token(?:_\d+)?$"
)
# Texts name a secret as well: export API_KEY=..., --token ..., 'password': ..., Cookie: ...
_HINT = r"(?i)pass|pwd|secret|token|credential|key|auth|bearer|jwt|dsn|cookie"
_OF_NAMES = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_REST = rf"[\w-]{{0,{_LONGEST_NAME}}}"
_SIGN = r"\\*[\"']?(?:\s{0,9}(?P<sign>[=:])\s{0,9}|[ \t]{1,9}(?!-))"
_VALUE = (
    r"(?!None\b|null\b|True\b|False\b|\*\*\*)"
    r"""(?:\\*"(?:[^"\\\n]|\\.)*"?|\\*'(?:[^'\\\n]|\\.)*'?|\S+)"""
)
_LINE = r"(?!\*\*\*)[^\"'\n]+"
_CALL = r"[A-Za-z_][\w.]*[(\[]"
_ORDINARY = ("token", "auth", "dsn", "bearer", "jwt")  # words with other meanings in a text
# Secrets by themselves, or by the text around them; the parts in groups stay
_SECRETS = (
    r"(?P<url>://[^\s/:@\"']{0,200}:)[^\s/\"']{1,500}(?=@)|(?P<user>://)[\w-]{20,200}(?=@)"
    r"|(?P<bearer>\b[Bb](?i:earer)\s{1,9})(?=[^\s\"']{0,99}\d|[^\s\"']{16})[\w.~+/=-]{6,}"
    r"|(?P<query>[?&][\w-]{0,30}(?i:signature|sig|key)=)[^&\s\"']+"
    r"|\b(?:hf_(?:[A-Za-z0-9]{16,}|(?=[A-Za-z0-9]{0,16}[A-Z])(?=[A-Za-z0-9]{0,16}\d)[A-Za-z0-9]{8,})"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|sk-(?=[\w-]{0,60}\d)[\w-]{16,}|xox[a-z]-[\w-]{8,}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)"
    r"|(?P<pem>-----BEGIN [A-Z0-9 ]{1,60}-----)(?s:.)*?(?=-----END [A-Z0-9 ]{1,60}-----|\Z)"
)
_MARKS = r"://|earer|EARER|[?&]|hf_|AKIA|ASIA|gh[pousr]_|github_pat|glpat|sk-|xox|AIza|eyJ|-----BEGIN"


def did_you_mean(word: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return " Did you mean 'x'?" for the closest known name, or an empty string."""
    if not isinstance(word, str) or len(word) > _LONGEST_NAME:
        return ""
    from difflib import get_close_matches  # here: only mistakes need it

    by_lower = {name.lower(): name for name in sorted(known)}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: "1 item", "12,000 items", "2 processes"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}{'es' if noun.endswith('s') else 's'}"


def duration(seconds: float) -> str:
    """Return a length of time, to two or three digits."""
    if seconds < 0.1:
        number, unit = (1e3 * seconds, "ms") if seconds >= 1e-3 else (1e6 * seconds, "µs")
        return f"{number:.2g} {unit}" if number < 10 else f"{number:.0f} {unit}"
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def shortened(lines: list[str], most: int = 10) -> list[str]:
    """Return the first lines, and how many more there are."""
    return lines if len(lines) <= most else [*lines[:most], f"... and {len(lines) - most} more"]


def printable(text: str) -> str:
    """Escape what a terminal would obey in a text from an item, a file or a scheduler; JSON stays JSON."""
    if text.isascii() and text.isprintable():
        return text
    return re.sub(_OBEYED, lambda found: f"\\u{ord(found[0]):04x}", text)


def masked(value: Any, name: object = "") -> Any:
    """Return a copy of `value` with `***` in the place of everything that looks like a secret.

    All records and output pass through here: configs, command lines, texts of exceptions, logs.
    """
    if isinstance(name, str) and name and not (value is None or isinstance(value, bool)) and _is_secret(name):
        return _MASK
    if isinstance(value, str):
        return _masked_text(value)
    if isinstance(value, Mapping):
        # Kubernetes writes variables as {"name": "API_TOKEN", "value": "..."}: the name is a value.
        named = value.get("name")
        return {k: masked(v, named if k == "value" else k) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        # of a command line: "--token", "x"
        before = ["", *(word.lstrip("-") if _is_option(word) else "" for word in value)]
        pairs = zip(before, value, strict=False)
        return [masked(item, "" if _is_option(item) else word) for word, item in pairs]
    if isinstance(value, Set):
        return [masked(item) for item in value]
    return value


def _is_option(word: object) -> bool:
    return isinstance(word, str) and word.startswith("-") and "=" not in word


def _is_secret(name: str) -> bool:
    words = "_".join(re.findall(_WORDS, name[-_LONGEST_NAME:])).lower()
    return re.search(_SECRET_NAME, words) is not None and not re.search(_SPOKEN, words)


def _masked_text(text: str) -> str:
    if re.search(_MARKS, text):
        text = re.sub(_SECRETS, lambda found: "".join(filter(None, found.groups())) + _MASK, text)
    parts, at = list[str](), 0
    for hint in re.finditer(_HINT, text):
        if hint.start() < at:
            continue
        before = text[max(at, hint.start() - _LONGEST_NAME) : hint.start()]
        begin = hint.start() - len(before) + len(before.rstrip(_OF_NAMES))
        end = re.compile(_REST).match(text, hint.end()).end()  # type: ignore[union-attr]  # it matches nothing, too
        sign = re.compile(_SIGN).match(text, end)
        name = text[begin:end]
        if sign and _is_secret(name) and (value := _value_of(text, begin, name, sign)):
            parts += [text[at : sign.end()], _MASK]
            at = value.end()
    return "".join([*parts, text[at:]])


def _value_of(text: str, begin: int, name: str, sign: re.Match[str]) -> re.Match[str] | None:
    word, end = name.lower().lstrip("-"), sign.end()
    value, whole_line = re.compile(_VALUE).match, re.compile(_LINE).match
    if sign["sign"] == ":" and ("authorization" in word or "cookie" in word):  # a header
        return whole_line(text, end) or value(text, end)
    if not sign["sign"] and not name.startswith("-"):
        return None
    if "token" in word and re.compile(_CALL).match(text, end):  # a line of code
        return None
    before = text[max(0, begin - _LONGEST_NAME) : begin]
    if sign["sign"] == ":" and not before.endswith(("'", '"')):
        # the place of a value in a message, such as options.password: must be ...; a word, as in "unknown token: x"
        line = before.rpartition("\n")[2].strip(" \t-")
        if before.endswith(".") or (line and word in _ORDINARY):
            return None
        if not line:  # of YAML
            return whole_line(text, end) or value(text, end)
    return value(text, end)


def named(key: Any) -> str:
    """Return a configuration's key for a message: a name as it is, anything else as a value."""
    return key if isinstance(key, str) and len(key) <= _LONGEST_NAME else shown(key)


def brief(value: Any, most: int | None = 200, text_of: Callable[[Any], str] = repr) -> str:
    """Return a value's repr, or another text of it, cut; if making it raises, the value's type."""
    try:
        return text_of(value)[:most]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a message must not end the program
        return f"<a value of type {type(value).__name__}; showing it raises {type(error).__name__}>"


def shown(value: Any, name: object = "") -> str:
    """Return a value for a message: masked, on one line, at most 80 characters.

    A value without a repr (it raises, contains itself, has thousands of digits) is named by its type.
    """
    text = brief(value, None, lambda value: " ".join(repr(masked(value, name)).split()))
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a small HTML table of names and values for a notebook's cell."""
    from html import escape  # here: only notebooks need it

    cells = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(str(value))}</td></tr>'
        for name, value in rows
    )
    return f"<table><caption>{escape(title)}</caption><tbody>{cells}</tbody></table>"


def warn_caller(message: str) -> None:
    """Warn at the first line outside of this package."""
    level = 1
    frame: Any = inspect.currentframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("espnet3."):
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(masked(message)), UserWarning, stacklevel=level)
