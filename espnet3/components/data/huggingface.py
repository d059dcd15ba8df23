"""A dataset of the library `datasets`, with the fields that stages use."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from espnet3.components.data.audio import check_rate, read_audio
from espnet3.components.data.files import places_of
from espnet3.components.instantiate import require

_FIELDS = {"speech": "audio", "text": "text"}
_BATCH = 10_000  # rows that are hashed at a time


class HuggingFaceDataset:
    """Rows of a dataset of the library `datasets`; audio is decoded with soundfile, item by item.

    An item is `{utt_id, ...}` and the `fields`. With an `id_column` items are named by it, so that a run's indices are
    those ids; otherwise by their position. No row travels to a worker.

    Args:
        path: What `datasets.load_dataset` is given: a name, or a format such as "parquet" with `data_files`.
        saved: In place of `path`, a folder that `save_to_disk` has written.
        fields: Field of an item -> column; `speech: audio` and `text: text` when left out.
        id_column: The column with the utterance ids; None where there is none.
        rate: The sampling rate, in hertz, that audio must have; None: that of the column's feature `Audio`, if it
            has one. Nothing is resampled.
        dtype: Of samples: "float32" (from -1 to 1), "int16", ...
        **options: Further arguments of `load_dataset`, such as `split`, `name`, `revision` or `data_files`.

    Raises:
        ValueError: Both or neither of `path` and `saved` are given.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        saved: str | os.PathLike[str] | None = None,
        fields: Mapping[str, str] | None = None,
        id_column: str | None = None,
        rate: int | None = None,
        dtype: str = "float32",
        **options: Any,
    ) -> None:
        if (path is None) == (saved is None):
            raise ValueError("give either path, for load_dataset, or saved, a folder of save_to_disk")
        self.path = path
        self.saved = saved
        self.fields = dict(_FIELDS if fields is None else fields)
        self.id_column = id_column
        self.rate = rate
        self.dtype = dtype
        self.options = options
        if id_column is not None:
            self.keys = self._keys  # only where there are ids: `indices_of` looks for it

    @cached_property
    def rows(self) -> Any:
        """The `datasets.Dataset`, with audio columns as bytes or paths."""
        datasets = require("datasets", "data", "this dataset")
        if self.saved is not None:
            found = datasets.load_from_disk(os.fspath(self.saved))
        else:
            found = datasets.load_dataset(self.path, **self.options)
        if not isinstance(found, datasets.Dataset):
            if isinstance(found, (datasets.IterableDataset, datasets.IterableDatasetDict)):
                raise TypeError("a stream has no length and no places: leave out streaming: true")
            names = ", ".join(found) if isinstance(found, Mapping) else type(found).__name__
            raise TypeError(f"this is not one split but {names}: set split, or save one of them")
        for column in self._columns:
            if column not in found.column_names:
                there = ", ".join(found.column_names)
                raise ValueError(f"there is no column {column!r}; the dataset has {there}")
        for column, kind in found.features.items():
            if isinstance(kind, datasets.Audio):
                bare = datasets.Audio(sampling_rate=kind.sampling_rate, decode=False)
                found = found.cast_column(column, bare)
        return found

    @property
    def _columns(self) -> list[str]:
        return sorted({*self.fields.values(), *([] if self.id_column is None else [self.id_column])})

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return places_of(self.rows[self.id_column], "rows")

    def fingerprint(self) -> str:
        """Return a hash of all rows, so that a changed one is noticed; of audio, path and size count."""
        digest = hashlib.sha256()
        for batch in self.rows.select_columns(self._columns).with_format("arrow").iter(_BATCH):
            for column in self._columns:
                digest.update(repr(self._content(column, batch[column])).encode())
        return digest.hexdigest()[:16]

    def _content(self, column: str, values: Any) -> list[Any]:
        if not self._is_audio(column):
            return values.to_pylist()  # type: ignore[no-any-return]  # of pyarrow, which has no types
        compute = require("pyarrow.compute", "data", "the hash of a dataset")  # datasets brings it
        sizes = compute.binary_length(compute.struct_field(values, "bytes"))
        return [compute.struct_field(values, "path").to_pylist(), sizes.to_pylist()]

    def _keys(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | str) -> dict[str, Any]:
        place = self._places[index] if isinstance(index, str) else index
        row = self.rows[place]
        utt_id = str(place if self.id_column is None else row[self.id_column])
        fields = {name: self._value(utt_id, column, row[column]) for name, column in self.fields.items()}
        return {"utt_id": utt_id, **fields}

    def _value(self, utt_id: str, column: str, value: Any) -> Any:
        if not self._is_audio(column):
            return value
        named = f"{utt_id}, column {column!r}"
        if not value or not (value["bytes"] or value["path"]):
            raise ValueError(f"{named} has no audio")
        source = io.BytesIO(value["bytes"]) if value["bytes"] else Path(value["path"])
        samples, rate = read_audio(source, named, self.dtype)
        check_rate(rate, self.rate or self.rows.features[column].sampling_rate, named)
        return samples

    def _is_audio(self, column: str) -> bool:
        return isinstance(self.rows.features[column], require("datasets", "data", "this dataset").Audio)
