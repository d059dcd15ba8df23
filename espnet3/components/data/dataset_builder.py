"""Builders of datasets that know when they are already built."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.components.data.files import sha256_of, write_text_atomic

logger = logging.getLogger(__name__)

MARKER = "built.json"
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class BuiltFiles:
    """The files that `DatasetBuilder.make` wrote, as paths under the data folder.

    Attributes:
        index: Small files that describe the data (manifest, transcripts): checked by content.
        payload: The data itself (audio): checked by size, which stays cheap for a large corpus.
        facts: Figures worth keeping (utterances, seconds, source version): stored in the marker.
    """

    index: Iterable[Path]
    payload: Iterable[Path] = ()
    facts: Mapping[str, Any] | None = None


class SourceError(RuntimeError):
    """The source of a dataset cannot be had; the message has the way out."""


class DatasetBuilder:
    """Prepares a dataset in one folder, once, in two steps: its source, and what stages read.

    The stage `create_dataset` asks `is_built`; where it is not, it calls `prepare_source` unless `is_source_prepared`,
    and then `build`. All of them are given the entries of the block `create_dataset` by name, unless the builder was
    made from that block.

    A subclass writes `make`. `build` calls it when the folder is not complete and then writes the marker `built.json`,
    last: a folder without it was never finished. `is_built` compares the marker with the files and with the options, so
    that a lost file, an edited manifest, another option or a newer builder lead to a new build. A subclass may also
    write `is_built` and `build` itself; it then needs neither `make` nor a `data_dir`.

    Args:
        data_dir: The folder that holds the dataset.
    """

    version: int = 1
    """Increase it when `make` writes something else than before for the same options."""

    def __init__(self, data_dir: str | os.PathLike[str] = ".") -> None:
        self.data_dir = Path(data_dir)

    def is_source_prepared(self, **kwargs: Any) -> bool:
        """Tell whether what the dataset is built from is there, without looking at all of it."""
        return True

    def prepare_source(self, **kwargs: Any) -> None:
        """Download or unpack what the dataset is built from; a SourceError where it cannot be had."""

    def make(self) -> BuiltFiles:
        """Write the dataset under `data_dir` and say which files belong to it."""
        raise NotImplementedError(f"{type(self).__name__} must write make, or is_built and build")

    def options(self) -> Mapping[str, Any]:
        """Return the JSON-able options that the content depends on."""
        return {}

    @property
    def marker(self) -> Path:
        """The file that says the dataset is complete."""
        return self.data_dir / MARKER

    def why_not_built(self) -> str | None:
        """Return what is missing or different, or None when the dataset is complete."""
        try:
            marker = json.loads(self.marker.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return f"{self.marker} is not there"
        except json.JSONDecodeError as error:
            return f"{self.marker} is not JSON ({error})"
        for name, wanted in _identity(self).items():
            if marker.get(name) != wanted:
                return f"{name} is {wanted!r}, the folder was built with {marker.get(name)!r}"
        for name, known in marker["files"].items():
            path = self.data_dir / name
            if not path.is_file():
                return f"{path} is not there"
            if path.stat().st_size != known["bytes"]:
                return f"{path} has {path.stat().st_size} bytes, not {known['bytes']}"
            if "sha256" in known and sha256_of(path) != known["sha256"]:
                return f"{path} was changed after the build"
        return None

    def is_built(self, **kwargs: Any) -> bool:
        """Tell whether the folder holds the complete dataset for these options."""
        return self.why_not_built() is None

    def build(self, **kwargs: Any) -> bool | None:
        """Build the dataset unless it is complete; return whether it was built now."""
        reason = self.why_not_built()
        if reason is None:
            logger.info("%s: already built in %s", type(self).__name__, self.data_dir)
            return False
        logger.info("%s: building %s (%s)", type(self).__name__, self.data_dir, reason)
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.marker.unlink(missing_ok=True)
        made = self.make()
        files: dict[str, Any] = {_name(self, path): {"bytes": path.stat().st_size} for path in made.payload}
        for path in made.index:
            files[_name(self, path)] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        content = {**_identity(self), "facts": dict(made.facts or {}), "files": dict(sorted(files.items()))}
        write_text_atomic(self.marker, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        return True

    def facts(self) -> dict[str, Any]:
        """Return the figures that `make` reported for the dataset that is in the folder."""
        return dict(json.loads(self.marker.read_text(encoding="utf-8"))["facts"])


# functions, not methods: a subclass may name its own as it likes


def _identity(builder: DatasetBuilder) -> dict[str, Any]:
    # Through JSON, so that a tuple in the options equals the list that is read back.
    options = json.loads(json.dumps(dict(builder.options())))
    name = type(builder).__name__
    return {"schema": _SCHEMA, "builder": name, "version": builder.version, "options": options}


def _name(builder: DatasetBuilder, path: Path) -> str:
    try:
        return path.relative_to(builder.data_dir).as_posix()
    except ValueError:
        said = f"which is not under its data folder {builder.data_dir}; write the dataset's files there"
        raise ValueError(f"{type(builder).__name__}.make returned {path}, {said}") from None
