"""Log-mel features with numpy alone."""

from __future__ import annotations

from typing import Any


class LogMel:
    """Computes the logarithm of mel-scaled energies, frame by frame.

    The bits of a recording's features depend on its samples alone, not on what else is computed with it: each
    recording goes through the transform by itself, and no matrix product is used, whose order of additions would
    change with the number of threads.

    Args:
        rate: Sampling rate of the audio, in hertz.
        n_mels: Bands.
        window: Length of a frame, in seconds.
        shift: Seconds from one frame to the next.
    """

    supports_batch = True

    def __init__(
        self, rate: int = 16000, n_mels: int = 80, window: float = 0.025, shift: float = 0.01
    ) -> None:
        import numpy

        self.window = round(window * rate)
        self.shift = round(shift * rate)
        self.n_fft = 1 << (self.window - 1).bit_length()
        self.taper = numpy.hanning(self.window + 1)[:-1]
        self.bands = _bands(rate, n_mels, self.n_fft)

    def __call__(self, speech: Any) -> Any:
        """Return the features of a recording, float32 of shape (frames, bands); of a list, a list.

        Args:
            speech: 16-bit mono samples, a numpy array; or several of them.
        """
        if isinstance(speech, list):
            return [self._of_one(one) for one in speech]
        return self._of_one(speech)

    def _of_one(self, speech: Any) -> Any:
        import numpy

        samples = numpy.asarray(speech, dtype=numpy.float64) / 32768
        if len(samples) < self.window:  # shorter than a frame: silence behind it
            samples = numpy.pad(samples, (0, self.window - len(samples)))
        frames = numpy.lib.stride_tricks.sliding_window_view(samples, self.window)[:: self.shift]
        power = numpy.abs(numpy.fft.rfft(frames * self.taper, self.n_fft)) ** 2
        mel = [
            (power[:, begin : begin + len(weights)] * weights).sum(axis=1) for begin, weights in self.bands
        ]
        return numpy.log(numpy.maximum(numpy.stack(mel, axis=1), 1e-10)).astype(numpy.float32)


def _bands(rate: int, n_mels: int, n_fft: int) -> list[tuple[int, Any]]:
    """Return each band's first bin of the spectrum, and the weights of its bins: a triangle on the mel scale."""
    import numpy

    top = 2595 * numpy.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (numpy.linspace(0, top, n_mels + 2) / 2595) - 1) * n_fft / rate
    bins = numpy.arange(n_fft // 2 + 1)
    found = []
    for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
        weights = numpy.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)).clip(min=0)
        inside = numpy.flatnonzero(weights)
        # a low band may fall between two bins: it takes the nearest one
        begin, end = (inside[0], inside[-1] + 1) if len(inside) else (round(middle), round(middle) + 1)
        found.append((int(begin), weights[begin:end] if len(inside) else numpy.ones(1)))
    return found
