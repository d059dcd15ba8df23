"""Audio read with soundfile: a file, a stretch of one, or bytes."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any


def read_audio(
    source: str | Path | IO[bytes],
    named: str,
    dtype: str = "float32",
    begin: float = 0.0,
    end: float | None = None,
) -> tuple[Any, int]:
    """Read samples.

    Args:
        source: A file's path, or an open binary file.
        named: What it is called in messages.
        dtype: "float32" (from -1 to 1), "float64", "int16" or "int32".
        begin: Where to begin, in seconds.
        end: Where to stop, in seconds; None: at the end.

    Returns:
        The samples, a numpy array (samples,) or (samples, channels), and their rate in hertz.

    Raises:
        ValueError: It is no audio, or ends before `begin`.
    """
    soundfile = require_soundfile()
    try:
        with soundfile.SoundFile(str(source) if isinstance(source, Path) else source) as file:
            rate = int(file.samplerate)
            first, last = round(begin * rate), file.frames if end is None else round(end * rate)
            if first >= file.frames and first:
                raise ValueError(
                    f"{named} is {file.frames / rate:g} s long, and the utterance begins at {begin:g} s"
                )
            if first:
                file.seek(first)
            return file.read(min(last, file.frames) - first, dtype=dtype), rate
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{named} cannot be read as audio: {error}") from error


def check_rate(found: int, wanted: int | None, named: str) -> None:
    """Check a sampling rate.

    Raises:
        ValueError: It is another one than is wanted; None takes any.
    """
    if wanted is not None and found != wanted:
        raise ValueError(
            f"{named} has {found} Hz and not {wanted} Hz. Convert it, for example: "
            f"ffmpeg -i IN.wav -ar {wanted} OUT.wav"
        )


def require_soundfile() -> Any:
    """Import soundfile, or say how to get it."""
    try:
        import soundfile
    except ImportError as error:
        raise ImportError(
            "reading audio needs the package soundfile; install it with: pip install 'espnet3-parallel[recipe]'"
        ) from error
    return soundfile
