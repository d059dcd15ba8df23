"""Datasets and feature extractors that tests name by `_target_`; other processes import them too."""

from typing import Any

import numpy


class Noise:
    """Items of pseudo-random int16 samples, of lengths from 500 to 4000; the same in every process."""

    def __init__(self, n: int = 40, first: int = 0, bad: int | None = None) -> None:
        self.n = n
        self.first = first
        self.bad = bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.bad:
            raise OSError("bad audio")
        draw = numpy.random.default_rng(self.first + index)
        size = int(draw.integers(500, 4000))
        return {
            "utt_id": f"u{self.first + index}",
            "speech": draw.integers(-9000, 9000, size).astype("int16"),
            "text": "word " * (index % 3),
        }


class Frames:
    """Features of floats with awkward last bits: frames of 100 samples, 7 dimensions."""

    supports_batch = True

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __call__(self, speech: Any) -> Any:
        if isinstance(speech, list):
            return [self(one) for one in speech]
        frames = speech[: len(speech) // 100 * 100].reshape(-1, 100).astype("float64")
        return numpy.sin(frames[:, :7] * self.scale) * 10.0 ** numpy.arange(-9, 12, 3)


class Holes(Frames):
    """Puts a value into each recording's features that has no sum."""

    supports_batch = False

    def __init__(self, value: str) -> None:
        super().__init__()
        self.value = float(value)

    def __call__(self, speech: Any) -> Any:
        found = super().__call__(speech)
        found[1, 2] = self.value
        return found


class Model:
    """A model as ESPnet has them: a batch with lengths goes in, and comes out."""

    def collect_feats(self, speech: Any, speech_lengths: Any) -> dict[str, Any]:
        assert speech.shape == (1, int(speech_lengths[0]))
        frames = speech[:, : speech.shape[1] // 10 * 10].reshape(1, -1, 10) / 3.0
        padded = numpy.concatenate([frames, numpy.full((1, 2, 10), numpy.nan)], axis=1)
        return {
            "feats": padded,
            "feats_lengths": numpy.array([frames.shape[1]]),
            "energy": speech.astype("float64").std(axis=1, keepdims=True),
        }


def make_upper() -> Any:
    return lambda item: {**item, "text": item["text"].upper()}


def make_marked(mark: str) -> Any:
    return lambda item: {**item, "text": item["text"] + mark}
