"""A recording as a person brings it: any rate, any channels, any file; samples for a model, or a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from espnet3.components.data.audio import NoSamplesError, read_audio


class RefusedError(ValueError):
    """A recording is not taken; the text is for the person at the page."""


def read_recording(path: str | Path | None, rate: int, max_seconds: float) -> Any:
    """Read a recording as a model wants it: 16-bit mono, its channels averaged, brought to a rate in hertz.

    A file without audio, an empty one and one that is too long are a RefusedError.
    """
    if path is None:
        raise RefusedError("Choose a sound file or record something first.")
    path = Path(path)
    try:
        samples, found = read_audio(path, path.name, end=max_seconds + 1)
    except NoSamplesError:
        raise RefusedError(f"{path.name} holds no sound: it is 0 seconds long.") from None
    except (OSError, ValueError):  # libsndfile's own words would say little to the person at the page
        kind = (
            "is empty"
            if path.is_file() and not path.stat().st_size
            else "is not a sound file that can be read"
        )
        raise RefusedError(f"{path.name} {kind}. A wav, flac or ogg file will do.") from None
    if len(samples) > max_seconds * found:
        raise RefusedError(f"{path.name} is longer than {max_seconds:g} seconds; give a shorter one.")
    import numpy

    mono = samples.mean(axis=1) if samples.ndim > 1 else samples
    # read_audio divides by 2 ** 15: this gives back the samples of a 16-bit file as they were
    whole = numpy.rint(numpy.nan_to_num(_resampled(mono, found, rate)) * 32768.0)
    return whole.clip(-32768, 32767).astype(numpy.int16)


def _resampled(samples: Any, found: int, wanted: int) -> Any:
    """Bring samples to another rate, by cutting or lengthening their spectrum."""
    import numpy

    if found == wanted:
        return samples
    length = max(1, round(len(samples) * wanted / found))
    spectrum = numpy.fft.rfft(samples)[: length // 2 + 1]
    return numpy.fft.irfft(spectrum, n=length) * (length / len(samples))
