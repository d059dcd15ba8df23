"""Datasets of the recipe: the prompts by their manifest, or any folder of wav files."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

RATE = 16000
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, slots=True)
class Item:
    """One recording.

    Attributes:
        utt_id: Its name in every output.
        audio: Its file.
        text: The reference, or None where nobody wrote it down.
        seconds: Its length.
    """

    utt_id: str
    audio: Path
    text: str | None
    seconds: float


class SpeechDataset(ABC):
    """A sequence of `{utt_id, speech, text, seconds}`; `speech` is 16-bit mono numpy.

    Nothing is opened when it is made: the list is read at first use, audio item by item.

    Args:
        rate: The sampling rate that every file must have.
    """

    def __init__(self, rate: int = RATE) -> None:
        self.rate = rate

    @abstractmethod
    def _list(self) -> Sequence[Item]:
        """Return the recordings in their final order."""

    @cached_property
    def items(self) -> Sequence[Item]:
        """The recordings, without their audio."""
        return self._list()

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self.items[index]
        return {
            "utt_id": item.utt_id,
            "speech": read_speech(item.audio, self.rate),
            "text": item.text,
            "seconds": item.seconds,
        }

    def fingerprint(self) -> str:
        """Return a hash of names, lengths and references, so that a changed corpus is noticed."""
        digest = hashlib.sha256()
        for item in self.items:
            digest.update(f"{item.utt_id}\t{item.seconds!r}\t{item.text!r}\n".encode())
        return digest.hexdigest()[:16]


class ManifestDataset(SpeechDataset):
    """The utterances of a `manifest.jsonl`.

    Splits are made by what is said: prompts with the same words are in the same one, so that no test sentence was heard
    in training.

    Args:
        manifest: The file; audio paths in it are relative to its folder.
        split: `train`, `valid` or `test`: about 80, 10 and 10 % of the texts; None for all of them.
        min_words: Only utterances whose reference has at least so many words.
        at_most: Only so many of them, spread evenly over the list.
        rate: The sampling rate that every file must have.
    """

    def __init__(
        self,
        manifest: str | os.PathLike[str],
        min_words: int = 0,
        at_most: int | None = None,
        rate: int = RATE,
        split: str | None = None,
    ) -> None:
        super().__init__(rate)
        if split not in (None, *SPLITS):
            raise ValueError(f"split = {split!r}: must be one of {', '.join(SPLITS)}, or left out")
        self.manifest = Path(manifest)
        self.split = split
        self.min_words = min_words
        self.at_most = at_most

    def _list(self) -> list[Item]:
        if not self.manifest.is_file():
            raise FileNotFoundError(f"{self.manifest} is not there; run the stage create_dataset first")
        folder = self.manifest.parent
        with open(self.manifest, encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        if self.split is not None:
            rows = [row for row in rows if split_of(row["text"]) == self.split]
        rows = [row for row in rows if len(row["text"].split()) >= self.min_words]
        if self.at_most is not None and len(rows) > self.at_most:
            rows = [rows[k * len(rows) // self.at_most] for k in range(self.at_most)]
        return [Item(row["utt_id"], folder / row["audio"], row["text"], row["seconds"]) for row in rows]


def split_of(text: str) -> str:
    """Return the split of a text: by its hash, so that it is the same whatever else the corpus holds."""
    draw = hashlib.sha256(text.encode()).digest()[0] % 10
    return SPLITS[0] if draw > 1 else SPLITS[1 + draw]


class FolderDataset(SpeechDataset):
    """All wav files in a folder and below it, by name; there are no references.

    Headers are read at first use, so that a file with another rate is named before any decoding.

    Args:
        folder: The folder.
        rate: The sampling rate that every file must have.
    """

    def __init__(self, folder: str | os.PathLike[str], rate: int = RATE) -> None:
        super().__init__(rate)
        self.folder = Path(folder)

    def _list(self) -> list[Item]:
        if not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is not a folder; give one that holds wav files")
        files = sorted(
            path for path in self.folder.rglob("*") if path.suffix.lower() == ".wav" and path.is_file()
        )
        if not files:
            raise FileNotFoundError(f"{self.folder} and the folders in it hold no .wav file")
        items: dict[str, Item] = {}
        for path in files:
            # An id is one word: it is the first column of every output file.
            utt_id = "_".join(
                path.relative_to(self.folder).with_suffix("").as_posix().replace("/", " ").split()
            )
            if utt_id in items:
                raise ValueError(
                    f"{items[utt_id].audio} and {path} would both be called {utt_id!r}; rename one"
                )
            items[utt_id] = Item(utt_id, path, None, check_speech(path, self.rate))
        return list(items.values())


def check_speech(path: Path, rate: int) -> float:
    """Check a file's header and return its length in seconds.

    Raises:
        ValueError: It is no audio, or has another rate or more than one channel.
    """
    import soundfile

    try:
        info = soundfile.info(str(path))
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{path} cannot be read as audio: {error}") from error
    if info.samplerate != rate or info.channels != 1:
        raise ValueError(
            f"{path} has {info.samplerate} Hz and {info.channels} channel(s); the recogniser needs "
            f"{rate} Hz mono. Convert it, for example: ffmpeg -i IN.wav -ar {rate} -ac 1 OUT.wav"
        )
    return float(info.frames) / rate


def read_speech(path: Path, rate: int) -> Any:
    """Read a file as 16-bit samples (a one-dimensional numpy array).

    Raises:
        ValueError: As in `check_speech`.
    """
    import soundfile

    check_speech(path, rate)
    samples, _ = soundfile.read(str(path), dtype="int16")
    return samples
