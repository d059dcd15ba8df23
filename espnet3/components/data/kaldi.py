"""A data folder as Kaldi and ESPnet2 have it, as a dataset: `wav.scp`, `segments`, `text`, `utt2spk`, `utt2dur`."""

from __future__ import annotations

import codecs
import hashlib
import io
import math
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from espnet3.components.data.audio import check_rate, read_audio
from espnet3.parallel.checks import Choice, argument

_PIPES = Choice(("refuse", "run"), quoted=True)
_SAID = 500  # characters of what a command has said, in a message
_TO_FILES = "write the audio to files first (wav-copy of Kaldi, format_wav_scp.sh of ESPnet2)"
_INEXACT = 0.5  # seconds by which lists may differ from the audio, as for Kaldi's extract-segments
_ROUNDED = 0.01  # seconds by which a length in `utt2dur` is the audio's, rounded


@dataclass(frozen=True, slots=True)
class KaldiItem:
    """One utterance, without its audio; None is what no file says."""

    utt_id: str
    audio: str  # the file of its recording, or the command that prints it, with the `|`
    source: str  # the file and line that say so, for messages
    listed: str  # those that name the utterance
    begin: float = 0.0  # in the recording, in seconds
    end: float | None = None  # None: that of the recording
    text: str | None = None
    speaker: str | None = None
    seconds: float | None = None  # by `utt2dur` or `segments`


class KaldiDataset:
    """A data folder of Kaldi or ESPnet2; items are named by their utterance ids, or by their position.

    An item is `{utt_id, speech, text, speaker, seconds}`; the last three are None where no file says them. The
    utterances are those of `segments`, or else of `wav.scp`, in the order of that file; `text`, `utt2spk` and `utt2dur`
    are read where they are there, and must then have every utterance.

    Nothing is opened when it is made: the lists are read at first use, audio item by item.

    Args:
        data_dir: The folder.
        pipes: What to do about a recording that is a command (`sph2pipe ... |`): "refuse" it, naming its line, or "run"
            the command each time the item is read. Anybody who may write the folder then runs commands as you.
        root: The folder that relative paths in `wav.scp` are relative to, and that commands run in; the current one
            when left out, as with Kaldi.
        rate: The sampling rate, in hertz, that every recording must have; None takes any.
        dtype: Of the samples: "float32" (from -1 to 1), "int16", ...

    Raises:
        ConfigError: `pipes` is something else.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        pipes: str = "refuse",
        root: str | os.PathLike[str] | None = None,
        rate: int | None = None,
        dtype: str = "float32",
    ) -> None:
        self.data_dir = Path(data_dir)
        self.pipes = argument("pipes", pipes, _PIPES)
        self.root = Path("." if root is None else root).absolute()
        self.rate = rate
        self.dtype = dtype

    @cached_property
    def items(self) -> Sequence[KaldiItem]:
        """The utterances, without their audio."""
        return list(self._list())

    @cached_property
    def _by_id(self) -> Mapping[str, KaldiItem]:
        return {item.utt_id: item for item in self.items}

    def keys(self) -> Iterator[str]:
        """Return the utterance ids, in their order."""
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int | str) -> dict[str, Any]:
        item = self._by_id[index] if isinstance(index, str) else self.items[index]
        samples, rate = self._read(item)
        check_rate(rate, self.rate, f"{item.utt_id} ({item.audio})")
        seconds = len(samples) / rate
        off = 0.0 if item.seconds is None else abs(item.seconds - seconds)
        if off > _INEXACT:
            raise ValueError(
                f"{item.listed}: {item.utt_id!r} is {seconds:g} s long, and {self.data_dir / 'utt2dur'} says "
                f"{item.seconds:g}: write that file anew, or remove it"
            )
        return {
            "utt_id": item.utt_id,
            "speech": samples,
            "text": item.text,
            "speaker": item.speaker,
            "seconds": seconds if item.seconds is None or off > _ROUNDED else item.seconds,
        }

    def fingerprint(self) -> str:
        """Return a hash of the folder's lists, so that a changed one is noticed; audio files are not looked at."""
        digest = hashlib.sha256()
        for item in self.items:
            seen = (item.utt_id, item.audio, item.begin, item.end, item.text, item.speaker)
            digest.update(repr(seen).encode())
        return digest.hexdigest()[:16]

    def _list(self) -> Iterator[KaldiItem]:
        recordings = read_table(self.data_dir / "wav.scp")
        for utt_id, (where, value) in recordings.items():
            if value.endswith("|") and self.pipes == "refuse":
                raise ValueError(
                    f"{where}: the recording {utt_id!r} is a command ({value!r}), which runs only where you say so: "
                    f"give the dataset pipes=run (in a config pipes: run), or {_TO_FILES}"
                )
            if not value:
                raise ValueError(f"{where}: {utt_id!r} has no path behind it")
        tables = {
            name: read_table(self.data_dir / name)
            for name in ("segments", "text", "utt2spk", "utt2dur")
            if (self.data_dir / name).is_file()
        }
        segments = tables.pop("segments", None)
        listed, of = (recordings, "wav.scp") if segments is None else (segments, "segments")
        for name, table in tables.items():
            if lacking := [utt_id for utt_id in listed if utt_id not in table]:
                raise ValueError(
                    f"{self.data_dir / name} has no line for {len(lacking)} of the {len(listed)} utterances in {of}, "
                    f"such as {lacking[0]!r}: utils/fix_data_dir.sh of Kaldi leaves them out, or remove {name}"
                )
        for utt_id, (where, value) in listed.items():
            recording, begin, end = (utt_id, 0.0, None) if segments is None else _segment(where, value)
            if recording not in recordings:
                raise ValueError(
                    f"{where}: {utt_id!r} is of the recording {recording!r}, which wav.scp lacks"
                )
            text, speaker = (
                tables[name][utt_id][1] if name in tables else None for name in ("text", "utt2spk")
            )
            seconds = None if end is None else end - begin
            if "utt2dur" in tables:
                there, written = tables["utt2dur"][utt_id]
                if not (seconds := _number(written)) > 0:
                    raise ValueError(f"{there}: {written!r} must be a number of seconds above 0")
            source, audio = recordings[recording]
            yield KaldiItem(utt_id, audio, source, where, begin, end, text, speaker, seconds)

    def _read(self, item: KaldiItem) -> tuple[Any, int]:
        source: Any = self.root / item.audio
        named = str(source)
        if item.audio.endswith("|"):
            command = item.audio.removesuffix("|").strip()
            named, source = f"the output of {command!r}", io.BytesIO(self._run(command, item.source))
        elif not source.is_file():
            missing = "is a folder" if source.is_dir() else "is not there"
            raise FileNotFoundError(f"{item.source}: {source} {missing}{_why_not(item.audio)}")
        return read_audio(source, f"{item.listed}: {named}", self.dtype, item.begin, item.end, _INEXACT)

    def _run(self, command: str, where: str) -> bytes:
        # a shell, because such a line is written for one; the user has asked for it by pipes="run"
        done = subprocess.run(["/bin/sh", "-c", command], cwd=self.root, capture_output=True, check=False)
        if done.returncode or not done.stdout:
            said = done.stderr.decode(errors="replace").strip()[-_SAID:]
            raise RuntimeError(
                f"{where}: the command {command!r} ended with {done.returncode} and {len(done.stdout)} bytes"
                + (f":\n{said}" if said else "")
            )
        return done.stdout


def _segment(where: str, value: str) -> tuple[str, float, float | None]:
    match value.split():
        case [recording, begin, end]:
            first, last = _number(begin), _number(end)
            if first >= 0 and (first < last or last == -1):
                return recording, first, None if last == -1 else last
    raise ValueError(f"{where}: {value!r} must be a recording and two times in seconds, like rec1 0.50 3.25")


def _number(written: str) -> float:
    # NaN, which no comparison holds for, is what is no number, or none that a clock shows
    try:
        number = float(written)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _why_not(audio: str) -> str:
    name, colon, offset = audio.rpartition(":")
    if colon and offset.isdigit() and name:
        return f": {offset} is a place in the archive {name}, and archives are not read here: {_TO_FILES}"
    return "; relative paths are relative to `root`, which is the current folder when left out"


def read_table(path: Path) -> dict[str, tuple[str, str]]:
    """Read lines of an id and a value, which may be empty: id -> the file and its line, and the value."""
    rows: dict[str, tuple[str, str]] = {}
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            where = f"{path}, line {number}"
            try:
                words = raw.removeprefix(codecs.BOM_UTF8).decode("utf-8").strip().split(maxsplit=1)
            except UnicodeDecodeError as error:
                raise ValueError(f"{where}: this is not UTF-8 ({error.reason})") from error
            if not words:
                raise ValueError(f"{where}: an empty line; each line is an id and a value")
            if words[0] in rows:
                first = rows[words[0]][0].rpartition(" ")[2]
                raise ValueError(f"{where}: {words[0]!r} is in the file twice, first in line {first}")
            rows[words[0]] = (where, words[1] if len(words) > 1 else "")
    return rows
