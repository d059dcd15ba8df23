"""Audio read with soundfile: a file, a stretch of one, or bytes."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import IO, Any

from espnet3.components.instantiate import require

_FLOATS = ("FLOAT", "DOUBLE")
# libsndfile reads what is there of a file that its header announces more of, and says so in its log alone. Who writes
# to a pipe announces about 2 or 4 GiB, and some programs the header's own bytes as well
_SIZES = re.compile(r": (\d+) \(should be (\d+)\)")
_STREAMED, _SLACK = 0x7FFF0000, 512


class NoSamplesError(ValueError):
    """A file of audio has no samples."""


def read_audio(
    source: str | Path | IO[bytes],
    named: str,
    dtype: str = "float32",
    begin: float = 0.0,
    end: float | None = None,
    overshoot: float = math.inf,
) -> tuple[Any, int]:
    """Read samples, a numpy array (samples,) or (samples, channels), and their rate in hertz.

    `named` is what the source, a path or an open binary file, is called in messages. `dtype` is "float32" (from -1 to
    1), "float64", "int16" or "int32". `begin` and `end` are seconds; None is the end of the source, and `end` may lie
    so many seconds behind it as `overshoot` says. A source without samples is a NoSamplesError; one that is no audio,
    is cut short or does not hold the stretch is a ValueError.
    """
    soundfile = require("soundfile", "recipe", "reading audio")
    if isinstance(source, Path) and source.suffix.lower() == ".raw":
        raise ValueError(f"{named} has no header with its rate and format: write it as WAV or FLAC")
    try:
        with soundfile.SoundFile(str(source) if isinstance(source, Path) else source) as file:
            rate, length = int(file.samplerate), file.frames / file.samplerate
            first, last = round(begin * rate), file.frames if end is None else round(end * rate)
            if not file.frames:
                raise NoSamplesError(f"{named} has no samples: its header has none, or it is cut short")
            for announced, there in _SIZES.findall(file.extra_info):
                if int(there) + _SLACK < int(announced) < _STREAMED:
                    raise ValueError(
                        f"{named} is cut short: it holds {there} of the header's {announced} bytes"
                    )
            if first >= file.frames:
                raise ValueError(f"{named} is {length:g} s long, and the utterance begins at {begin:g} s")
            if end is not None and end > length + overshoot:
                raise ValueError(f"{named} is {length:g} s long, and the utterance ends at {end:g} s")
            wanted = min(last, file.frames) - first
            if first:
                file.seek(first)
            samples = _scaled(file, wanted, dtype)
            if len(samples) < wanted or not wanted:
                raise ValueError(
                    f"{named} is cut short: {len(samples)} of {max(wanted, 1)} samples are there"
                )
            return samples, rate
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{named} cannot be read as audio: {error}") from error


def _scaled(file: Any, frames: int, dtype: str) -> Any:
    if file.subtype not in _FLOATS or not dtype.startswith("int"):
        return file.read(frames, dtype=dtype)
    import numpy

    limits = numpy.iinfo(dtype)
    samples = numpy.rint(file.read(frames, dtype="float64") * -float(limits.min))
    return samples.clip(limits.min, limits.max).astype(dtype)


def check_rate(found: int, wanted: int | None, named: str) -> None:
    """Check a sampling rate; None takes any."""
    if wanted is not None and found != wanted:
        said = f"{named} has {found} Hz and not {wanted} Hz. Convert it, for example: "
        raise ValueError(f"{said}ffmpeg -i IN.wav -ar {wanted} OUT.wav")
