"""Audio of every usual kind through the three readers: what comes out, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import soundfile

from espnet3.components.data.huggingface import HuggingFaceDataset
from espnet3.components.data.kaldi import KaldiDataset
from espnet3.components.data.lhotse import LhotseDataset
from tests.components.needed import needed

Reader = Callable[[Path, int, str], dict[str, Any]]


def by_kaldi(path: Path, rate: int, dtype: str) -> dict[str, Any]:
    """Read a file as the only recording of a data folder."""
    (path.parent / "wav.scp").write_text(f"u {path}\n")
    return KaldiDataset(path.parent, rate=rate, dtype=dtype)["u"]


def by_hugging_face(path: Path, rate: int, dtype: str) -> dict[str, Any]:
    """Read a file as the only row of a dataset."""
    datasets = needed("datasets")
    table = datasets.Dataset.from_dict({"audio": [{"bytes": path.read_bytes(), "path": None}]})
    saved = str(path.parent / "saved")
    table.cast_column("audio", datasets.Audio()).save_to_disk(saved)
    return HuggingFaceDataset(saved=saved, fields={"speech": "audio"}, rate=rate, dtype=dtype)[0]


def by_lhotse(path: Path, rate: int, dtype: str) -> dict[str, Any]:
    """Read a file as the only cut of a manifest; lhotse always gives floats."""
    lhotse = needed("lhotse")
    channels = list(range(soundfile.info(path).channels))
    recording = lhotse.Recording.from_file(path, recording_id="u")
    make: Any = lhotse.MonoCut if len(channels) == 1 else lhotse.MultiCut
    cut = make(
        "u", 0.0, recording.duration, channels[0] if len(channels) == 1 else channels, recording=recording
    )
    lhotse.CutSet.from_cuts([cut]).to_file(path.parent / "cuts.jsonl")
    return LhotseDataset(path.parent / "cuts.jsonl", rate=rate)["u"]


READERS: dict[str, Reader] = {"kaldi": by_kaldi, "hugging face": by_hugging_face, "lhotse": by_lhotse}
# name of the file: format, subtype, rate, channels, and how far a sample may be from what was written
KINDS = {
    "plain.wav": ("WAV", "PCM_16", 16000, 1, 0.0001),
    "stereo.wav": ("WAV", "PCM_16", 16000, 2, 0.0001),
    "telephone.wav": ("WAV", "PCM_16", 8000, 1, 0.0001),
    "wide.wav": ("WAV", "PCM_24", 16000, 1, 0.0001),
    "float.wav": ("WAV", "FLOAT", 16000, 1, 0.0001),
    "whole.flac": ("FLAC", "PCM_16", 16000, 1, 0.0001),
    "lossy.mp3": ("MP3", "MPEG_LAYER_III", 16000, 1, 0.05),
    "lossy.ogg": ("OGG", "VORBIS", 16000, 1, 0.1),
    "sphere.sph": ("NIST", "PCM_16", 16000, 1, 0.0001),
    "law.sph": ("NIST", "ULAW", 8000, 1, 0.02),
}


@pytest.mark.parametrize(
    ("reader", "name", "dtype"),
    [
        (reader, name, dtype)
        for reader in READERS
        for name in KINDS
        for dtype in (("float32",) if reader == "lhotse" else ("float32", "int16"))
        if not (reader == "lhotse" and name.endswith(".sph"))  # lhotse needs a program beside it, sph2pipe
    ],
)
def test_samples_come_out_as_they_were_written(tmp_path: Path, reader: str, name: str, dtype: str) -> None:
    """Each format, rate, depth and number of channels gives the samples that were written, at full scale."""
    kind, subtype, rate, channels, close = KINDS[name]
    written = 0.5 * numpy.sin(2 * numpy.pi * 200 * numpy.arange(2 * rate) / rate)
    written = numpy.stack([written, written / 2], axis=1)[:, :channels]
    soundfile.write(tmp_path / name, written, rate, format=kind, subtype=subtype)
    item = READERS[reader](tmp_path / name, rate, dtype)
    samples = item["speech"]
    assert samples.dtype == dtype
    full = -float(numpy.iinfo(dtype).min) if dtype.startswith("int") else 1.0
    found = samples.reshape(len(samples), -1) / full
    assert found.shape[1] == channels
    inner = slice(rate // 2, rate)  # the ends are where lossy codecs differ
    assert numpy.abs(found[inner] - written[inner]).max() <= close


def test_floats_beyond_full_scale_are_clipped(tmp_path: Path) -> None:
    """A float recording that is too loud has its peaks at the greatest number, never at the other sign."""
    soundfile.write(tmp_path / "loud.wav", numpy.array([1.5, -1.5, 1.0, 0.0]), 8000, subtype="FLOAT")
    found = by_kaldi(tmp_path / "loud.wav", 8000, "int16")["speech"]
    assert found.tolist() == [32767, -32768, 32767, 0]


def test_audio_without_samples_is_refused_by_name(tmp_path: Path) -> None:
    """A header alone, a file of no bytes and a pipe that ends early name the utterance's line."""
    soundfile.write(tmp_path / "empty.wav", numpy.zeros(0), 8000)
    soundfile.write(tmp_path / "full.wav", numpy.ones(800) / 2, 8000, subtype="PCM_16")
    (tmp_path / "nothing.wav").write_bytes(b"")
    names = ["empty", "nothing"]
    lines = [f"{name} {tmp_path / name}.wav" for name in names]
    lines.append(f"pipe head -c 44 {tmp_path / 'full.wav'} |")
    (tmp_path / "wav.scp").write_text("\n".join(lines) + "\n")
    dataset = KaldiDataset(tmp_path, pipes="run")
    for number, name in enumerate([*names, "pipe"], 1):
        said = "cannot be read as audio" if name == "nothing" else "has no samples"
        with pytest.raises(ValueError, match=f"wav.scp, line {number}: .*{said}"):
            dataset[name]


@pytest.mark.parametrize("name", ["cut.flac", "cut.wav"])
def test_a_file_that_is_cut_short_is_refused(name: str, tmp_path: Path) -> None:
    """A file whose end is missing is no shorter recording, and neither is what a pipe gives of it."""
    noise = numpy.random.default_rng(1).uniform(-0.5, 0.5, 16000)
    soundfile.write(tmp_path / name, noise, 8000)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=rf"line 1: .*{name}"):
        by_kaldi(tmp_path / name, 8000, "int16")
    (tmp_path / "wav.scp").write_text(f"pipe cat {tmp_path / name} |\n")
    with pytest.raises(ValueError, match="line 1"):
        KaldiDataset(tmp_path, pipes="run")["pipe"]
