"""Builds the corpus from Debian's packages of Asterisk prompts: 551 utterances, 24 minutes.

Packages are fetched with `apt-get download` and unpacked with `dpkg -x`: both write to the data
folder only and need no root. The audio is G.722 at 16 kHz; it becomes 16-bit wav.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dataset.decode import RATE, DecodeProvider, DecodeRunner, wav_name
from dataset.normalise import normalise
from espnet3.components.data.dataset_builder import BuiltFiles, DatasetBuilder, SourceError
from espnet3.components.data.files import remove_leftovers, write_text_atomic
from espnet3.parallel import ChangedRunError

logger = logging.getLogger(__name__)

SPEAKER = "allison"
VOICE = "en_US_f_Allison"
TEXT_PACKAGE = "asterisk-core-sounds-en"
AUDIO_PACKAGE = "asterisk-core-sounds-en-g722"
ATTRIBUTION = """\
Audio and transcripts: Asterisk Core Sounds (English), from the Debian packages
{packages}.
Copyright 2003-2010 Allison Smith, who is the voice; with financial contributions by Digium, Inc.
Licence: Creative Commons Attribution-Share Alike 3.0 (CC-BY-SA-3.0),
https://creativecommons.org/licenses/by-sa/3.0/.
Changes: the audio was converted from G.722 to 16-bit wav, the transcripts were normalised.
"""


@dataclass(frozen=True, slots=True)
class Utterance:
    """A line of `manifest.jsonl`.

    Attributes:
        utt_id: The prompt's name, `/` replaced by `_`.
        speaker: Always the same voice.
        audio: The wav file, relative to the manifest.
        text: The normalised transcript.
        raw: The transcript as it was.
        seconds: Length of the audio.
    """

    utt_id: str
    speaker: str
    audio: str
    text: str
    raw: str
    seconds: float


class AsteriskBuilder(DatasetBuilder):
    """Fetches, decodes and lists the English prompts.

    The data folder gets `manifest.jsonl`, the Kaldi files `wav.scp`, `text`, `utt2spk` and
    `utt2dur`, `wav/`, and `ATTRIBUTION.txt`.

    Args:
        data_dir: Where the corpus goes; `data` in the recipe's folder when left out.
        cache_dir: Where the `.deb` files are kept, and looked for: a machine without apt can be
            given them there. `downloads` in the data folder when left out.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(Path(__file__).resolve().parents[1] / "data" if data_dir is None else data_dir)
        self.cache_dir = self.data_dir / "downloads" if cache_dir is None else Path(cache_dir)

    def options(self) -> Mapping[str, Any]:
        """The voice; the packages' versions are facts, for they are not ours to choose."""
        return {"voice": VOICE, "rate": RATE}

    def is_source_prepared(self) -> bool:
        """Tell whether both packages are in the cache."""
        return self._cached(TEXT_PACKAGE) is not None and self._cached(AUDIO_PACKAGE) is not None

    def prepare_source(self) -> None:
        """Download the packages.

        Raises:
            SourceError: They cannot be downloaded.
        """
        self._packages()

    def make(self) -> BuiltFiles:
        """Build the corpus in the data folder.

        What is unpacked and decoded stays there until all is done, so that a build that was killed goes on.
        """
        packages = self._packages()
        unpacked, done = self.data_dir / ".unpacked", self.data_dir / ".decoded"
        _unpack(packages, unpacked)
        utterances = sorted(self._utterances(unpacked / "usr/share", done), key=lambda one: one.utt_id)
        if not utterances:
            raise SourceError(f"{packages[0]} and {packages[1]} hold no prompt of the voice {VOICE}")
        index = self._write_index(utterances, [package.name for package in packages])
        for folder in (unpacked, done):
            shutil.rmtree(folder)
        return BuiltFiles(
            index=index,
            payload=[self.data_dir / one.audio for one in utterances],
            facts={
                "utterances": len(utterances),
                "seconds": round(sum(one.seconds for one in utterances), 1),
                "words": sum(len(one.text.split()) for one in utterances),
                "characters": sum(len(one.text) for one in utterances),
                "packages": [package.name for package in packages],
            },
        )

    def _packages(self) -> tuple[Path, Path]:
        """Return the transcript and the audio package, downloading what is not in the cache."""
        self.cache_dir.mkdir(parents=True, exist_ok=True)
        missing = [name for name in (TEXT_PACKAGE, AUDIO_PACKAGE) if self._cached(name) is None]
        if missing:
            self._download(missing)
        text, audio = self._cached(TEXT_PACKAGE), self._cached(AUDIO_PACKAGE)
        if text is None or audio is None:
            raise SourceError(f"apt-get download left no file for {', '.join(missing)}. {self._way_out()}")
        return text, audio

    def _cached(self, name: str) -> Path | None:
        found = sorted(self.cache_dir.glob(f"{name}_*.deb"))
        return found[-1] if found else None

    def _download(self, names: list[str]) -> None:
        for tool in ("apt-get", "dpkg"):
            if shutil.which(tool) is None:
                raise SourceError(
                    f"the corpus comes from Debian packages, and {tool} is not here. {self._way_out()}"
                )
        logger.info("downloading %s with apt-get", ", ".join(names))
        # Into a folder of its own: a broken download must never look like a cached package.
        with tempfile.TemporaryDirectory(prefix=".download.", dir=self.cache_dir) as folder:
            try:
                _run(["apt-get", "download", "-q", "-o", "Acquire::Retries=3", *names], "downloading", folder)
            except SourceError as error:
                raise SourceError(
                    f"{error}\nIf the package lists are old or empty, `apt-get update` (as root) renews "
                    f"them. "
                    f"{self._way_out()}"
                ) from error
            for package in Path(folder).glob("*.deb"):
                os.replace(package, self.cache_dir / package.name)

    def _way_out(self) -> str:
        return (
            f"Either put the .deb files of {TEXT_PACKAGE} and {AUDIO_PACKAGE} into {self.cache_dir}, or "
            "decode your own recordings: `make demo AUDIO=folder` (a folder of 16 kHz wav files)"
        )

    def _utterances(self, share: Path, done: Path) -> Iterator[Utterance]:
        source, target = share / f"asterisk/sounds/{VOICE}", self.data_dir / "wav"
        texts = {}
        for key, raw in _transcripts(share / f"doc/{TEXT_PACKAGE}/core-sounds-en.txt.gz"):
            # No text: tones and silence. No file: a transcript whose prompt was never recorded.
            if (text := normalise(raw)) and (source / f"{key}.g722").is_file():
                texts[key] = (text, raw)
        lengths = _decode(list(texts), source, target, done)
        for (key, (text, raw)), samples in zip(texts.items(), lengths, strict=True):
            utt_id = key.replace("/", "_")
            yield Utterance(utt_id, SPEAKER, f"wav/{wav_name(key)}", text, raw, round(samples / RATE, 4))

    def _write_index(self, utterances: list[Utterance], packages: list[str]) -> list[Path]:
        folder = self.data_dir.resolve()
        texts = {
            "manifest.jsonl": [json.dumps(asdict(one), ensure_ascii=False) for one in utterances],
            "text": [f"{one.utt_id} {one.text}" for one in utterances],
            "utt2spk": [f"{one.utt_id} {one.speaker}" for one in utterances],
            "utt2dur": [f"{one.utt_id} {one.seconds}" for one in utterances],
            "wav.scp": [f"{one.utt_id} {folder / one.audio}" for one in utterances],
            "ATTRIBUTION.txt": ATTRIBUTION.format(packages=" and ".join(packages)).splitlines(),
        }
        for name, lines in texts.items():
            write_text_atomic(self.data_dir / name, "".join(f"{line}\n" for line in lines))
        return [self.data_dir / name for name in texts]


def _unpack(packages: Sequence[Path], folder: Path) -> None:
    """Unpack Debian packages into one folder, which is removed again where one of them is broken."""
    try:
        for package in packages:
            _run(["dpkg", "-x", str(package), str(folder)], f"unpacking {package}")
    except SourceError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _decode(keys: list[str], source: Path, target: Path, done: Path) -> Sequence[int]:
    """Decode prompts on the workers of the registered configuration; return their numbers of samples.

    A build that was killed goes on where it was, unless its folders are others now, or a file was lost since.
    """
    provider = DecodeProvider({"source": str(source), "target": str(target)})
    try:
        lengths: Sequence[int] = DecodeRunner(provider, output_dir=done)(keys)
    except ChangedRunError:
        lengths = []
    if not lengths or not all((target / wav_name(key)).is_file() for key in keys):
        lengths = DecodeRunner(provider, output_dir=done, resume=False)(keys)
    remove_leftovers(target)
    return lengths


def _transcripts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (key, transcript) from `key: text` lines; `;` starts a comment."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            key, colon, raw = line.strip().partition(":")
            if colon and not key.startswith(";"):
                yield key, raw.strip()


def _run(command: list[str], doing: str, folder: str | None = None) -> None:
    """Run a command quietly; its output becomes part of the error."""
    done = subprocess.run(
        command,
        check=False,  # below, with what it said
        cwd=folder,
        text=True,
        capture_output=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise SourceError(f"{doing} failed: `{' '.join(command)}` ended with {done.returncode}:\n{said}")
