"""The files that a model is made from: their content is a part of what a run is known by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from espnet3.components.data.files import sha256_of


def file_hashes(block: Any) -> dict[str, str]:
    """Return a hash of the content of each file whose path is a text in a config's block.

    Without it, weights that were trained anew under the same name would be taken for the ones that gave the results
    of before.
    """
    return {path: sha256_of(path)[:16] for path in sorted(set(_files(block)))}


def _files(block: Any) -> Iterator[str]:
    if isinstance(block, Mapping):
        for value in block.values():
            yield from _files(value)
    elif isinstance(block, (list, tuple)):
        for value in block:
            yield from _files(value)
    elif isinstance(block, str) and _is_file(block):
        yield block


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # a text that is no path: too long, or with a NUL
        return False
