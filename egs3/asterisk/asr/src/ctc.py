"""A small character model: convolutions over log-mel features, trained with CTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from src.features import LogMel

CHARACTERS = "_ 'abcdefghijklmnopqrstuvwxyz"
"""What the model writes; the first is CTC's blank."""
_INDEX = {character: number for number, character in enumerate(CHARACTERS)}


class CharacterCTC(nn.Module):
    """Characters from log-mel features, one for every four frames.

    What stands behind the end of a shorter recording of a batch changes nothing: each convolution is given zeros there,
    as behind the end of a recording alone.

    Args:
        stats: A file with the statistics of the features (`count`, `sum`, `sum_square`), such as
            `train/feats_stats.npz` of the stage collect_stats; None: features stay as they are.
        n_mels: Bands of the features.
        hidden: Channels.
        layers: Convolutions after the two that shorten the time.
        kernel: Their width, an odd number.
        dropout: Part of the values that training leaves out.
        masks: Stretches of time, and of bands, that training hides in each recording.
    """

    def __init__(
        self,
        stats: str | Path | None = None,
        n_mels: int = 80,
        hidden: int = 128,
        layers: int = 5,
        kernel: int = 9,
        dropout: float = 0.1,
        masks: int = 1,
    ) -> None:
        super().__init__()
        self.masks = masks
        mean, scale = _statistics(stats, n_mels)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.shorten = nn.ModuleList(
            [nn.Conv1d(size, hidden, 5, stride=2, padding=2) for size in (n_mels, hidden)]
        )
        self.layers = nn.ModuleList([_Layer(hidden, kernel, dropout) for _ in range(layers)])
        self.characters = nn.Linear(hidden, len(CHARACTERS))

    def scores(self, feats: Tensor, feats_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return log probabilities (batch, frames, characters) and the number of frames of each recording.

        Args:
            feats: Features (batch, frames, bands), with anything behind the end of a shorter one.
            feats_lengths: Frames of each.
        """
        values = (feats - self.mean) * self.scale
        if self.training:
            values = _masked(values, feats_lengths, self.masks)
        values, lengths = values.transpose(1, 2), feats_lengths
        for convolution in self.shorten:
            values = torch.relu(convolution(values * _inside(lengths, values)))
            lengths = (lengths + 1) // 2
        inside = _inside(lengths, values)
        for layer in self.layers:
            values = layer(values, inside)
        return self.characters(values.transpose(1, 2)).log_softmax(dim=2), lengths

    def forward(
        self, feats: Tensor, feats_lengths: Tensor, text: Tensor, text_lengths: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return the loss, figures to log, and the number of recordings that the loss is a mean of."""
        scores, lengths = self.scores(feats, feats_lengths)
        loss = nn.functional.ctc_loss(
            scores.transpose(0, 1), text, lengths, text_lengths, blank=0, reduction="none", zero_infinity=True
        )
        mean = (loss / text_lengths.clamp(min=1)).mean()
        return mean, {"loss": mean.detach()}, torch.tensor(len(feats))


class _Layer(nn.Module):
    """A convolution beside a way around it."""

    def __init__(self, hidden: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.convolution = nn.Conv1d(hidden, hidden, kernel, padding=kernel // 2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor, inside: Tensor) -> Tensor:
        """Return values (batch, channels, frames); `inside` is 0 behind the end of a recording."""
        normed = self.norm(values.transpose(1, 2)).transpose(1, 2)
        return values + self.dropout(torch.relu(self.convolution(normed * inside)))


class CharacterCollate:
    """Makes batches of recordings: features, computed once for each recording, and characters.

    Args:
        **features: Arguments of `LogMel`.
    """

    def __init__(self, **features: Any) -> None:
        self.log_mel = LogMel(**features)
        self._known: dict[str, Tensor] = {}

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return `feats` and `text`, padded with zeros, and their lengths."""
        return {
            **_padded("feats", [self._feats(item) for item in items]),
            **_padded("text", [torch.tensor([_INDEX[char] for char in item["text"]]) for item in items]),
        }

    def _feats(self, item: Mapping[str, Any]) -> Tensor:
        found = self._known.get(item["utt_id"])
        if found is None:
            found = self._known[item["utt_id"]] = torch.from_numpy(self.log_mel(item["speech"]))
        return found


def best_path(scores: Tensor) -> str:
    """Return the text of the best character of each frame: repetitions count once, blanks not at all."""
    best = torch.unique_consecutive(scores.argmax(dim=1)).tolist()
    return " ".join("".join(CHARACTERS[number] for number in best if number).split())


def _padded(name: str, values: Sequence[Tensor]) -> dict[str, Tensor]:
    return {
        name: pad_sequence(list(values), batch_first=True),
        f"{name}_lengths": torch.tensor([len(value) for value in values]),
    }


def _inside(lengths: Tensor, values: Tensor) -> Tensor:
    """Return 1 for each frame within a recording, and 0 behind its end, for values (batch, channels, frames)."""
    places = torch.arange(values.shape[2], device=values.device)
    return (places < lengths[:, None])[:, None, :].to(values.dtype)


def _masked(values: Tensor, lengths: Tensor, masks: int, frames: int = 20, bands: int = 12) -> Tensor:
    """Return features with some stretches of time and of bands set to the mean, as in SpecAugment."""
    values = values.clone()
    for number, length in enumerate(lengths.tolist()):
        for _ in range(masks):
            width = int(torch.randint(0, min(frames, max(1, length // 8)) + 1, ()))
            begin = int(torch.randint(0, max(1, length - width), ()))
            values[number, begin : begin + width] = 0
            width = int(torch.randint(0, bands + 1, ()))
            begin = int(torch.randint(0, values.shape[2] - width, ()))
            values[number, :, begin : begin + width] = 0
    return values


def _statistics(stats: str | Path | None, n_mels: int) -> tuple[Tensor, Tensor]:
    """Return mean and reciprocal standard deviation of each band."""
    if stats is None:
        return torch.zeros(n_mels), torch.ones(n_mels)
    with numpy.load(stats) as found:
        mean = found["sum"] / found["count"]
        variance = found["sum_square"] / found["count"] - mean**2
    return torch.from_numpy(mean).float(), torch.from_numpy(1 / numpy.sqrt(variance.clip(min=1e-8))).float()
