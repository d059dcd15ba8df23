"""The recipe's datasets."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import soundfile

from dataset.dataset import SPLITS, FolderDataset, ManifestDataset
from espnet3.components.data.kaldi import KaldiDataset
from espnet3.systems.base.inference_provider import InferenceProvider
from src.runner import LongestFirstRunner

RECIPE = Path(__file__).resolve().parents[2] / "egs3" / "asterisk" / "asr"


def write_wav(path: Path, seconds: float, rate: int = 16000, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = numpy.arange(int(seconds * rate) * channels, dtype="int16").reshape(-1, channels)
    soundfile.write(path, samples, rate)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    rows: list[dict[str, Any]] = []
    for count, name in enumerate(["one", "two", "three"], 1):
        write_wav(tmp_path / "wav" / f"{name}.wav", count / 10)
        text = " ".join(["word"] * count)
        rows.append({"utt_id": name, "audio": f"wav/{name}.wav", "text": text, "seconds": count / 10})
    path = tmp_path / "manifest.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_an_item_has_id_speech_text_and_seconds(manifest: Path) -> None:
    """Speech is one-dimensional int16 of the length that `seconds` says."""
    dataset = ManifestDataset(manifest)
    item = dataset[1]
    assert (len(dataset), item["utt_id"], item["text"], item["seconds"]) == (3, "two", "word word", 0.2)
    assert (item["speech"].dtype, item["speech"].shape) == (numpy.int16, (3200,))
    assert item["speech"][:4].tolist() == [0, 1, 2, 3]


def test_min_words_and_at_most_choose_items(manifest: Path) -> None:
    """min_words counts reference words; at_most spreads its choice over the list."""
    assert [item.utt_id for item in ManifestDataset(manifest, min_words=2).items] == ["two", "three"]
    assert [item.utt_id for item in ManifestDataset(manifest, at_most=2).items] == ["one", "two"]
    assert len(ManifestDataset(manifest, at_most=9)) == 3


def test_splits_share_no_text_and_leave_nothing_out(corpus: Path) -> None:
    """Each prompt is in one split; the same words are in the same one; sizes are about 80, 10 and 10 %."""
    parts = {split: ManifestDataset(corpus / "manifest.jsonl", split=split).items for split in SPLITS}
    texts = {split: {item.text for item in items} for split, items in parts.items()}
    assert sum(map(len, parts.values())) == 551
    assert not texts["train"] & texts["test"] and not texts["train"] & texts["valid"]
    assert not texts["valid"] & texts["test"]
    assert {split: len(items) for split, items in parts.items()} == {"train": 439, "valid": 62, "test": 50}
    with pytest.raises(ValueError, match="split = 'dev': must be one of train, valid, test"):
        ManifestDataset(corpus / "manifest.jsonl", split="dev")


def test_the_corpus_is_a_folder_of_kaldi_too(corpus: Path) -> None:
    """The Kaldi files of the corpus, read as such, give the items of its manifest."""
    kaldi = KaldiDataset(corpus, dtype="int16", rate=16000)
    manifest = ManifestDataset(corpus / "manifest.jsonl")
    assert len(kaldi) == len(manifest) == 551
    for k in range(0, 551, 50):
        one, other = kaldi[k], manifest[k]
        assert (one["speech"] == other["speech"]).all()
        assert [one[key] for key in ("utt_id", "text", "seconds")] == [
            other[key] for key in ("utt_id", "text", "seconds")
        ]


def test_longest_recordings_come_first_whatever_items_are_called(tmp_path: Path) -> None:
    """The runner's costs are the lengths, by ids where a dataset has ids; without lengths all are alike."""
    for name, seconds in (("short", 0.1), ("long", 0.4)):
        write_wav(tmp_path / f"{name}.wav", seconds)
    (tmp_path / "wav.scp").write_text(f"a {tmp_path}/short.wav\nb {tmp_path}/long.wav\n")
    entry = {
        "name": "x",
        "_target_": "espnet3.components.data.kaldi.KaldiDataset",
        "data_src_args": {"data_dir": str(tmp_path)},
    }
    config = {"dataset": {"test": [entry]}, "test_set": "x"}
    assert LongestFirstRunner(InferenceProvider(config)).item_cost("b") == 1.0
    (tmp_path / "utt2dur").write_text("a 0.1\nb 0.4\n")
    runner = LongestFirstRunner(InferenceProvider(config))
    assert (runner.item_cost("a"), runner.item_cost("b")) == (0.1, 0.4)


def test_the_fingerprint_follows_the_content(manifest: Path) -> None:
    """Equal manifests have one fingerprint, another reference or selection has another."""
    first = ManifestDataset(manifest).fingerprint()
    assert ManifestDataset(str(manifest)).fingerprint() == first
    assert ManifestDataset(manifest, min_words=2).fingerprint() != first
    manifest.write_text(manifest.read_text().replace('"word word"', '"word world"'))
    assert ManifestDataset(manifest).fingerprint() != first


def test_a_folder_of_wav_files_is_a_dataset(tmp_path: Path) -> None:
    """Files are found below the folder, in the order of their names, without references."""
    write_wav(tmp_path / "b.wav", 0.1)
    write_wav(tmp_path / "a" / "my recording.WAV", 0.2)
    (tmp_path / "notes.txt").write_text("x")
    dataset = FolderDataset(tmp_path)
    assert [item.utt_id for item in dataset.items] == ["a_my_recording", "b"]
    assert (dataset[0]["text"], dataset[0]["seconds"], len(dataset[0]["speech"])) == (None, 0.2, 3200)


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (16000, 2)])
def test_a_wrong_rate_is_named_with_the_file(tmp_path: Path, rate: int, channels: int) -> None:
    """Another rate, or stereo, is found before any decoding, with the file and the way to convert it."""
    write_wav(tmp_path / "good.wav", 0.1)
    write_wav(tmp_path / "odd.wav", 0.1, rate, channels)
    with pytest.raises(ValueError, match=rf"odd\.wav has {rate} Hz and {channels} channel.*ffmpeg"):
        len(FolderDataset(tmp_path))


def test_a_folder_that_cannot_be_decoded_is_said(tmp_path: Path) -> None:
    """A missing folder, one without recordings, and two files with one id are errors with their names."""
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        len(FolderDataset(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match=r"hold no \.wav file"):
        len(FolderDataset(tmp_path))
    write_wav(tmp_path / "a" / "b.wav", 0.1)
    write_wav(tmp_path / "a_b.wav", 0.1)
    with pytest.raises(ValueError, match=r"would both be called 'a_b'"):
        len(FolderDataset(tmp_path))
