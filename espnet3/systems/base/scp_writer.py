"""Writes inference results to `.scp` files, checked and in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.parallel.records import ItemFailure
from espnet3.systems.base.scp import scp_id, scp_value, write_scp

IDX_KEY = "utt_id"


def key_list(keys: str | Iterable[str] | None) -> list[str]:
    """Return one key, several (a list, a tuple, an OmegaConf list) or none as a list."""
    if keys is None:
        return []
    return [keys] if isinstance(keys, str) else [str(key) for key in keys]


def output_keys_of(options: Mapping[str, Any]) -> list[str]:
    """Return a runner's output keys: `output_keys`, or else hypotheses and references."""
    return key_list(options.get("output_keys")) or [
        *key_list(options.get("hyp_key", "hyp")),
        *key_list(options.get("ref_key", "ref")),
    ]


def check_output(result: Any, idx: Any, idx_key: str, output_keys: Sequence[str]) -> None:
    """Check the form of one result.

    Raises:
        TypeError: It is not a dict, or its id is not a single value.
        ValueError: A key is missing, or an output is an empty list.
    """
    if not isinstance(result, dict):
        raise TypeError(
            f"item {idx!r}: the output must be a dict with the keys {[idx_key, *output_keys]}, got "
            f"{type(result).__name__}; write an output_fn that makes one of the model's output"
        )
    missing = [key for key in (idx_key, *output_keys) if key not in result]
    if missing:
        raise ValueError(
            f"item {idx!r}: the output has {', '.join(map(repr, result))} and lacks "
            f"{', '.join(map(repr, missing))}; return it from output_fn, or change idx_key, hyp_key, ref_key "
            "or output_keys"
        )
    if isinstance(result[idx_key], (list, tuple, dict)):
        raise TypeError(
            f"item {idx!r}: {idx_key!r} must be a single value, not a {type(result[idx_key]).__name__}"
        )
    for key in output_keys:
        if isinstance(result[key], (list, tuple)) and not result[key]:
            raise ValueError(f"item {idx!r}: {key!r} is an empty list; return at least one entry, such as ''")


class ScpWriter:
    """Collects results and writes them as `.scp` files.

    Args:
        idx_key: Key of the utterance id.
        output_keys: Keys that get a file each.
    """

    def __init__(self, idx_key: str, output_keys: Sequence[str]) -> None:
        self.idx_key = idx_key
        self.output_keys = list(output_keys)
        self.failures: list[ItemFailure] = []
        self._rows: dict[str, list[tuple[str, str]]] = {}
        self._listed: dict[str, bool] = {}
        self._seen: dict[str, Any] = {}

    def add(self, idx: Any, result: Any) -> None:
        """Add the result of one item, or the failure in its place.

        Raises:
            TypeError: The result or a value has the wrong type.
            ValueError: A key is missing, a value does not fit on a line, or the id was used before.
        """
        if isinstance(result, ItemFailure):
            self.failures.append(result)
            return
        check_output(result, idx, self.idx_key, self.output_keys)
        try:
            utt_id = scp_id(result[self.idx_key])
            rows = [row for key in self.output_keys for row in self._place(key, result[key])]
        except (TypeError, ValueError) as error:
            raise _again(error, f"item {idx!r}: {error}") from error
        names = [name for name, _ in rows]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"item {idx!r}: two outputs go to {min(twice)}.scp; rename an output key")
        if utt_id in self._seen:
            raise ValueError(
                f"items {self._seen[utt_id]!r} and {idx!r} have the same utterance id {utt_id!r}"
            )
        self._seen[utt_id] = idx
        for name, value in rows:
            self._rows.setdefault(name, []).append((utt_id, value))

    def _place(self, key: str, value: Any) -> list[tuple[str, str]]:
        """Return (file name, text) for a value, or for each entry of a list."""
        listed = isinstance(value, (list, tuple))
        if self._listed.setdefault(key, listed) != listed:
            raise TypeError(f"{key!r} is a list for some items and a single value for others; choose one")
        if not listed:
            return [(key, _text(key, value))]
        return [(f"{key}{n}", _text(f"{key}[{n}]", one)) for n, one in enumerate(value)]

    def write(self, folder: Path) -> list[Path]:
        """Write the files; those of an earlier run that this one does not write are removed.

        Returns:
            The `.scp` files written.
        """
        # A run without a single success leaves empty files, not those of the run before.
        names = list(self._rows) or self.output_keys
        written = [folder / f"{name}.scp" for name in names]
        for path, name in zip(written, names, strict=True):
            write_scp(path, self._rows.get(name, []))
        ours = re.compile("(" + "|".join(map(re.escape, self.output_keys)) + r")\d*\.scp")
        for path in folder.glob("*.scp"):
            if ours.fullmatch(path.name) and path not in written:
                path.unlink()
        return written


def _text(what: str, value: Any) -> str:
    try:
        return scp_value(value)
    except (TypeError, ValueError) as error:
        raise _again(error, f"{what!r}: {error}") from error


def _again(error: Exception, message: str) -> Exception:
    """Return the same kind of error with a message that says where."""
    return TypeError(message) if isinstance(error, TypeError) else ValueError(message)
