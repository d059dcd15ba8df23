"""A block as YAML, with a comment on each line that says where it came from."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator

from espnet3.cli.migrate.block import Block
from espnet3.cli.migrate.wanted import Entry

_PLAIN = re.compile(r"[A-Za-z][\w./@-]*|\d+[GM]iB")
_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
_COLUMN = 34  # where comments begin, unless the value is longer
_WIDTH = 110


def yaml_text(block: Block, head: str) -> str:
    """Return the text of a file with the block."""
    lines = [f"# {head}", *_aligned(_lines(block))]
    if block.notes:
        lines += ["", "# Notes, and what has no equivalent here:"]
        for note in block.notes:
            lines += textwrap.wrap(
                note, _WIDTH, initial_indent="# - ", subsequent_indent="#   ", break_long_words=False
            )
    return "\n".join(lines) + "\n"


def _lines(block: Block) -> Iterator[tuple[str, str]]:
    """Yield each line's text and its comment."""
    yield "parallel:", ""
    yield f"  env: {_scalar(block.env.value)}", block.env.why
    yield f"  n_workers: {block.n_workers.value}", block.n_workers.why
    if block.options:
        yield "  options:", ""
    for name, value in block.options.items():
        if isinstance(value, Entry):
            yield f"    {name}: {_scalar(value.value)}", value.why
            continue
        yield f"    {name}:", ""
        for each in value:
            yield f"      - {_scalar(each.value)}", each.why


def _aligned(lines: Iterator[tuple[str, str]]) -> Iterator[str]:
    for text, comment in lines:
        if comment:
            yield f"{text.ljust(_COLUMN - 2)}  # {comment}"
        else:
            yield text


def _scalar(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # OmegaConf would look ${USER} up in the config: with a backslash it is text
    return json.dumps(text.replace("${", "\\${"), ensure_ascii=False)
