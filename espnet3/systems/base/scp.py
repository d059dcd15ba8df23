"""`.scp` files: one `utt_id value` line per utterance, what infer writes and measure reads.

The first space ends the id; the rest of the line, which may be empty, is the value. Lines end with a line feed and
nothing else, the text is UTF-8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.components.data.files import utterance_id, write_text_atomic
from espnet3.parallel.records import ItemFailure

IDX_KEY = "utt_id"


class OutputsError(FileNotFoundError):
    """The outputs of the stage infer are not there."""


def scp_id(value: Any) -> str:
    """Return an utterance id, a string or an integer, as text."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeError(f"an utterance id must be a string or an integer, not {type(value).__name__}")
    return utterance_id(value)


def is_array(value: Any) -> bool:
    """Return whether a value is an array or a scalar of numpy, torch or the like."""
    return not isinstance(value, (str, int, float)) and callable(getattr(type(value), "item", None))


def scp_value(value: Any) -> str:
    """Return a value, a string, a number or a scalar of numpy or torch, as the text of one line."""
    if is_array(value):
        if math.prod(getattr(value, "shape", ())) != 1:
            raise TypeError(
                f"an array of shape {tuple(value.shape)} does not fit on a line; write it to a file in a "
                "writer hook, and put its path here, or give the runner an output_dir"
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
    """Write `(utt_id, value)` rows in their order; an empty value without a space that would end its line."""
    lines = (f"{utt_id} {value}\n" if value else f"{utt_id}\n" for utt_id, value in rows)
    write_text_atomic(path, "".join(lines))


def read_scp(path: Path) -> dict[str, str]:
    """Read an .scp file."""
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
    """Read several .scp files of one folder, column -> name without `.scp`, as columns of one table.

    The table has `utt_id` and the columns, aligned by id, in the order of the first file; of a file in `dataset/`,
    which has the whole data, only the ids that the others have.
    """
    tables: dict[str, dict[str, str]] = {}
    for column, name in inputs.items():
        path = folder / f"{name}.scp"
        if not path.is_file():
            there = ", ".join(sorted(p.name for p in folder.glob("*.scp"))) or "no .scp file"
            raise OutputsError(f"{path} is not there ({folder} has {there}); run the infer stage first")
        tables[column] = read_scp(path)
    outputs = [column for column, name in inputs.items() if not name.startswith("dataset/")] or list(tables)
    ids: list[str] = list(tables[outputs[0]]) if outputs else []
    for column, table in tables.items():
        # the data has items that were not decoded, too
        odd: Sequence[str] = sorted(table.keys() ^ set(ids) if column in outputs else set(ids) - table.keys())
        if odd:
            here, there = f"{inputs[column]}.scp", f"{inputs[outputs[0]]}.scp"
            said = f"hold different utterances ({len(odd)} are in one only, such as {odd[0]!r})"
            raise ValueError(f"{folder}: {here} and {there} {said}")
    return {"utt_id": ids, **{column: [table[utt_id] for utt_id in ids] for column, table in tables.items()}}


def key_list(keys: str | Iterable[str] | None) -> list[str]:
    """Return one key, several (a list, a tuple, an OmegaConf list) or none as a list."""
    if keys is None:
        return []
    return [keys] if isinstance(keys, str) else [str(key) for key in keys]


def output_keys_of(
    output_keys: Any = None, hyp_key: Any = "hyp", ref_key: Any = "ref", **_: Any
) -> list[str]:
    """Return the output keys by the arguments of a runner: `output_keys`, or else hypotheses and references."""
    return key_list(output_keys) or [*key_list(hyp_key), *key_list(ref_key)]


def check_output(result: Any, idx: Any, idx_key: str, output_keys: Sequence[str]) -> None:
    """Check the form of one result."""
    if not isinstance(result, dict):
        raise TypeError(
            f"item {idx!r}: the output must be a dict with the keys {[idx_key, *output_keys]}, got "
            f"{type(result).__name__}; write an output_fn that makes one of the model's output"
        )
    missing = ", ".join(repr(key) for key in (idx_key, *output_keys) if key not in result)
    if missing:
        raise ValueError(
            f"item {idx!r}: the output has {', '.join(map(repr, result))} and lacks {missing}; return it from "
            "output_fn, or change idx_key, hyp_key, ref_key or output_keys"
        )
    if isinstance(result[idx_key], (list, tuple, dict)):
        kind = type(result[idx_key]).__name__
        raise TypeError(f"item {idx!r}: {idx_key!r} must be a single value, not a {kind}")
    for key in output_keys:
        if isinstance(result[key], (list, tuple)) and not result[key]:
            raise ValueError(f"item {idx!r}: {key!r} is an empty list; return at least one entry, such as ''")


class ScpWriter:
    """Collects results and writes them as `.scp` files, one for each output key, checked and in order."""

    def __init__(self, idx_key: str, output_keys: Sequence[str]) -> None:
        self.idx_key = idx_key
        self.output_keys = list(output_keys)
        self.failures: list[ItemFailure] = []
        self._rows: dict[str, list[tuple[str, str]]] = {}
        self._listed: dict[str, bool] = {}
        self._seen: dict[str, Any] = {}

    def add(self, idx: Any, result: Any) -> None:
        """Add the result of one item, or the failure in its place."""
        if isinstance(result, ItemFailure):
            self.failures.append(result)
            return
        check_output(result, idx, self.idx_key, self.output_keys)
        rows: list[tuple[str, str]] = []
        named = ""
        try:
            utt_id = scp_id(result[self.idx_key])
            for key in self.output_keys:
                for name, value in self._files(key, result[key]):
                    named = f"{name!r}: "
                    rows.append((name, scp_value(value)))
                named = ""
        except (TypeError, ValueError) as error:
            # the kind alone: a UnicodeEncodeError, which is a ValueError too, takes no other message
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"item {idx!r}: {named}{error}") from error
        names = [name for name, _ in rows]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"item {idx!r}: two outputs go to {min(twice)}.scp; rename an output key")
        if utt_id in self._seen:
            both = f"{self._seen[utt_id]!r} and {idx!r}"
            raise ValueError(f"items {both} have the same utterance id {utt_id!r}")
        self._seen[utt_id] = idx
        for name, value in rows:
            self._rows.setdefault(name, []).append((utt_id, value))

    def _files(self, key: str, value: Any) -> list[tuple[str, Any]]:
        listed = isinstance(value, (list, tuple))
        if self._listed.setdefault(key, listed) != listed:
            raise TypeError(f"{key!r} is a list for some items and a single value for others; choose one")
        return [(f"{key}{n}", one) for n, one in enumerate(value)] if listed else [(key, value)]

    def write(self, folder: Path) -> None:
        """Write the files; those of an earlier run that this one does not write are removed."""
        # A run without a single success leaves empty files, not those of the run before.
        names = list(self._rows) or self.output_keys
        for name in names:
            write_scp(folder / f"{name}.scp", self._rows.get(name, []))
        ours = re.compile("(" + "|".join(map(re.escape, self.output_keys)) + r")\d*\.scp")
        for path in folder.glob("*.scp"):
            if ours.fullmatch(path.name) and path.stem not in names:
                path.unlink()
