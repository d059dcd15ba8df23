"""`manifest.json`: how a run with files of its own is cut, in the form that ESPnet3's tools read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espnet3.parallel.checks import as_python
from espnet3.parallel.ledger.files import write_json
from espnet3.parallel.ledger.folder import MANIFEST
from espnet3.parallel.ledger.values import encode
from espnet3.parallel.runner.writers.hooks import folder_entries

_VERSION = 1  # of ESPnet3's form


def write_manifest(folder: Path, shard_subdir: str, begins: Sequence[int], items: Sequence[Any]) -> None:
    """Write the file beside `run.json`; nothing here reads it."""
    ends = [*begins[1:], len(items)] if begins else []  # without items there is no shard
    shards = [
        {"shard_id": number, "items": [encode(as_python(item), "index") for item in items[begin:end]]}
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]
    write_json(
        folder / MANIFEST, {"version": _VERSION, **folder_entries(folder, shard_subdir), "shards": shards}
    )
