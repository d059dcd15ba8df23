"""The recipe's log-mel features: right, and the same bits in any company."""

import numpy
import pytest

from src.features import LogMel


def noise(seconds: float, seed: int = 0) -> numpy.ndarray:
    return numpy.random.default_rng(seed).integers(-8000, 8000, int(seconds * 16000)).astype("int16")


def test_frames_and_bands() -> None:
    """A second has 98 frames of 25 ms every 10 ms; a recording shorter than a frame has one."""
    features = LogMel()
    assert features(noise(1)).shape == (98, 80)
    assert features(noise(1)).dtype == numpy.float32
    assert features(noise(0.001)).shape == (1, 80)
    assert features(numpy.zeros(0, dtype="int16")).shape == (1, 80)
    assert LogMel(rate=8000, n_mels=40)(noise(1)[:8000]).shape == (98, 40)


@pytest.mark.parametrize("hertz", [300, 1000, 4000])
def test_a_tone_is_loudest_in_its_band(hertz: int) -> None:
    """The band with the most energy is the one whose middle is nearest to the tone, on the mel scale."""
    tone = (8000 * numpy.sin(2 * numpy.pi * hertz * numpy.arange(16000) / 16000)).astype("int16")
    mel = 2595 * numpy.log10(1 + hertz / 700)
    middles = numpy.linspace(0, 2595 * numpy.log10(1 + 8000 / 700), 82)[1:-1]
    assert abs(int(LogMel()(tone).mean(axis=0).argmax()) - int(abs(middles - mel).argmin())) <= 1


def test_the_company_changes_no_bit() -> None:
    """A recording alone and in a list with others has the same bits."""
    recordings = [noise(0.3 * (k + 1), k) for k in range(4)]
    features = LogMel()
    for alone, listed in zip(map(features, recordings), features(recordings), strict=True):
        assert alone.tobytes() == listed.tobytes()
