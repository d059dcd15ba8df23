"""A `CutSet` of lhotse, with the fields that stages use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from espnet3.components.data.audio import check_rate
from espnet3.components.data.files import places_of, sha256_of
from espnet3.components.instantiate import require


class LhotseDataset:
    """The cuts of a manifest, by their ids, which must differ; audio is loaded by lhotse, item by item.

    An item is `{utt_id, speech, text, speaker, seconds}`; `text` is that of the cut's supervisions in their order, one
    space between them, and None where they have none. A run's indices are the ids: no cut travels to a worker.

    Args:
        cuts: The manifest, as `CutSet.to_file` has written it.
        rate: The sampling rate, in hertz, that every cut must have; None takes any.
    """

    def __init__(self, cuts: str | os.PathLike[str], rate: int | None = None) -> None:
        self.path = Path(cuts)
        self.rate = rate

    @cached_property
    def cuts(self) -> list[Any]:
        """All cuts, in the order of the manifest."""
        lhotse = require("lhotse", "data", "this dataset")
        try:
            found = list(lhotse.CutSet.from_file(self.path))
        except (EOFError, TypeError, ValueError) as error:  # an empty file is a TypeError inside lhotse
            raise ValueError(f"{self.path} is empty, or no manifest of cuts: {error}") from error
        if not found:
            raise ValueError(f"{self.path} has no cuts")
        return found

    @cached_property
    def _places(self) -> dict[str, int]:
        return places_of((cut.id for cut in self.cuts), f"the cuts of {self.path},")

    def keys(self) -> Iterator[str]:
        """Return the ids, in the order of the manifest."""
        return iter(self._places)

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, index: int | str) -> dict[str, Any]:
        cut = self.cuts[self._places[index] if isinstance(index, str) else index]
        check_rate(cut.sampling_rate, self.rate, f"the cut {cut.id}")
        samples = cut.load_audio()
        if samples is None or not samples.size:
            raise ValueError(f"the cut {cut.id} has no samples")
        texts = [each.text for each in cut.supervisions if each.text]
        speakers = [each.speaker for each in cut.supervisions if each.speaker]
        return {
            "utt_id": cut.id,
            "speech": samples[0] if len(samples) == 1 else samples.T,  # as soundfile has it: samples first
            "text": " ".join(texts) if texts else None,
            "speaker": speakers[0] if speakers else None,
            "seconds": cut.duration,
        }

    def fingerprint(self) -> str:
        """Return a hash of the manifest, so that a changed one is noticed."""
        return sha256_of(self.path)[:16]
