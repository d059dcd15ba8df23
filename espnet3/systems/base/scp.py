"""`.scp` files: one `utt_id value` line per utterance, what infer writes and measure reads.

The first space ends the id; the rest of the line is the value, which may hold spaces and may be
empty. Lines end with a line feed and nothing else, the text is UTF-8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.components.data.files import write_text_atomic


def scp_id(value: Any) -> str:
    """Return an utterance id as text.

    Raises:
        TypeError: It is not a string or an integer.
        ValueError: It is empty or holds whitespace, which would end the id within the line.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeError(f"an utterance id must be a string or an integer, not {type(value).__name__}")
    text = str(value)
    if not text or text.split() != [text]:
        raise ValueError(
            f"utterance id {text!r} is empty or holds whitespace; replace it, for example by '_'"
        )
    return text


def is_array(value: Any) -> bool:
    """Whether a value is an array or a scalar of numpy, torch or the like."""
    return not isinstance(value, (str, int, float)) and callable(getattr(type(value), "item", None))


def scp_value(value: Any) -> str:
    """Return a value as the text of one line.

    Raises:
        TypeError: It is not a string, a number, or a numpy or torch scalar.
        ValueError: It holds a line break, or cannot be written as UTF-8.
    """
    if is_array(value):
        if math.prod(getattr(value, "shape", ())) != 1:
            raise TypeError(
                f"an array of shape {tuple(value.shape)} does not fit on a line; write it to a file in a "
                "writer hook, and put its path here"
            )
        value = value.item()
    if not isinstance(value, (str, int, float)):
        raise TypeError(f"a value must be a string or a number, not {type(value).__name__}")
    text = str(value)
    if "\n" in text or "\r" in text:
        raise ValueError(f"the value {text!r} holds a line break; a line of an .scp file is one utterance")
    if not text.isascii():
        text.encode("utf-8")  # a lone surrogate: UnicodeEncodeError is a ValueError that names it
    return text


def write_scp(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write `(utt_id, value)` rows in their order; the file is replaced as a whole.

    An empty value is written without the space that would end its line.
    """
    write_text_atomic(
        path, "".join(f"{utt_id} {value}\n" if value else f"{utt_id}\n" for utt_id, value in rows)
    )


def read_scp(path: Path) -> dict[str, str]:
    """Read an .scp file.

    Raises:
        FileNotFoundError: It is not there.
        ValueError: A line has no id, or an id is repeated; the message has file and line.
    """
    rows: dict[str, str] = {}
    # newline="\n": str.splitlines and universal newlines would also split at "\x0b", "\u2028", ...
    with open(path, encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            utt_id, _, value = line.removesuffix("\n").partition(" ")
            if not utt_id:
                raise ValueError(f"{path}, line {number}: no utterance id before the first space")
            if utt_id in rows:
                raise ValueError(f"{path}, line {number}: utterance {utt_id!r} is in the file twice")
            rows[utt_id] = value
    return rows


def read_aligned(folder: Path, inputs: Mapping[str, str]) -> dict[str, list[str]]:
    """Read several .scp files of one folder as columns of one table.

    Args:
        folder: Where the files are.
        inputs: Column name to file name without `.scp`.

    Returns:
        `utt_id` and the columns, aligned by id, in the order of the first file.

    Raises:
        FileNotFoundError: A file is not there; the message lists those that are.
        ValueError: The files do not hold the same ids.
    """
    tables: dict[str, dict[str, str]] = {}
    for column, name in inputs.items():
        path = folder / f"{name}.scp"
        if not path.is_file():
            there = ", ".join(sorted(p.name for p in folder.glob("*.scp"))) or "no .scp file"
            raise FileNotFoundError(f"{path} is not there ({folder} has {there}); run the infer stage first")
        tables[column] = read_scp(path)
    ids: list[str] = list(next(iter(tables.values()))) if tables else []
    for column, table in tables.items():
        if table.keys() != set(ids):
            odd: Sequence[str] = sorted(table.keys() ^ set(ids))
            raise ValueError(
                f"{folder}: {inputs[column]}.scp and {next(iter(inputs.values()))}.scp hold different "
                f"utterances ({len(odd)} are in one only, such as {odd[0]!r})"
            )
    return {
        "utt_id": ids,
        **{column: [table[utt_id] for utt_id in ids] for column, table in tables.items()},
    }
