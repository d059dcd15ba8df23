"""A `CutSet` of lhotse, with the fields that stages use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from espnet3.components.data.audio import check_rate
from espnet3.components.data.files import sha256_of


class LhotseDataset:
    """The cuts of a manifest, by their ids; audio is loaded by lhotse, item by item.

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
    def cuts(self) -> Any:
        """The `CutSet`, with all cuts in memory, so that each is found by its id."""
        try:
            from lhotse import CutSet
        except ImportError as error:
            raise ImportError(
                "this dataset needs the package lhotse; install it with: pip install 'espnet3-parallel[data]'"
            ) from error
        return CutSet.from_file(self.path).to_eager()

    @cached_property
    def _ids(self) -> list[str]:
        return [str(each) for each in self.cuts.ids]

    def keys(self) -> Iterator[str]:
        """Return the ids, in the order of the manifest."""
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int | str) -> dict[str, Any]:
        cut = self.cuts[index if isinstance(index, str) else self._ids[index]]
        check_rate(cut.sampling_rate, self.rate, f"the cut {cut.id}")
        samples = cut.load_audio()
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
